"""Entropies of nodes, log-probabilities of edges, and their gradient through the vocabulary projection.

    Ent(n)    = -sum_v pi(v|n) log pi(v|n)
    log pi(e) = log pi(y_t | y_<t)   for the edge e = (n, y_t)

With z = W h, p = softmax(z):

    d Ent / d h    = W^T ( -p * (log p + Ent) )
    d log pi / d h = W_{y_t} - W^T p

`head_gradient` sums these over a tree with given coefficients. It takes the nodes in chunks, so it never holds all
(nodes x vocabulary) logits. It needs one product with W, or two where the search did not keep the distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sharpen.products import filled_up, pulled

LOGITS_AT_ONCE = 1 << 21  # per chunk: 8 MB in float32, which fits the last cache of a CPU
PRODUCTS_AT_ONCE = 1 << 23  # a product with W reads all of it: rows of several chunks share one


def entropy(log_pi: Tensor) -> Tensor:
    """Ent(pi) over the last axis; forbidden tokens (-inf) contribute nothing."""
    minus: Tensor = torch.linalg.vecdot(log_pi.exp(), log_pi.clamp(min=-1e30))  # 0 * -inf is NaN, 0 * -1e30 is 0
    return -minus


def head_gradient(
    log_pi: Callable[[slice], Tensor],  # of some nodes, (m, V); overwritten
    weight: Tensor,  # (V, d) the vocabulary matrix
    c: Tensor,  # (M,) coefficient of Ent(n) in the loss
    a: Tensor,  # (E,) coefficient of log pi(e)
    edge_node: Tensor,  # (E,) int64
    edge_token: Tensor,  # (E,) int64
) -> Tensor:
    """d L / d h (M, d) of L = sum_e a(e) log pi(e) + sum_n c(n) Ent(n), with constant a and c.

    At a node, d L / d z = -p * (c (log p + Ent) + sum of its a) + the a of each edge at its token. It must sum to zero
    over the vocabulary: a remainder would be multiplied by W^T p, which is large. So p is normalised once more here,
    and Ent is computed from it.
    """
    of_hidden = weight.new_empty(len(c), weight.shape[1])
    total = torch.zeros_like(c).index_add_(0, edge_node, a)  # (M,) sum of a over a node's edges
    for whole in chunks(0, len(c), len(weight), PRODUCTS_AT_ONCE):
        nodes = whole.stop - whole.start
        of_logits = weight.new_empty(filled_up(nodes), len(weight))
        of_logits[nodes:] = 0
        for rows in chunks(whole.start, whole.stop, len(weight), LOGITS_AT_ONCE):
            z = log_pi(rows)
            p = z.exp()
            z.clamp_(min=-1e30)
            mass = p.sum(-1)  # 1, but for the rounding of a float32 softmax over a large vocabulary
            offset = total[rows] - c[rows] * torch.linalg.vecdot(p, z) / mass
            z.mul_((-c[rows] / mass)[:, None]).sub_((offset / mass)[:, None]).mul_(p)
            inside = ((edge_node >= rows.start) & (edge_node < rows.stop)).nonzero()[:, 0]
            at = edge_node[inside] - rows.start, edge_token[inside]
            z.index_put_(at, a[inside].to(z.dtype), accumulate=True)
            of_logits[rows.start - whole.start : rows.stop - whole.start] = z
        of_hidden[whole] = pulled(of_logits, weight)[:nodes]
    return of_hidden


def chunks(start: int, stop: int, vocabulary: int, at_once: int) -> Iterator[slice]:
    """Stretches of nodes whose logits are that many together, or one node."""
    step = max(1, at_once // vocabulary)
    for first in range(start, stop, step):
        yield slice(first, min(stop, first + step))


def log_softmax(z: Tensor, forbidden: Tensor) -> Tensor:
    """log pi from logits (m, V), in place if they are float32 or wider, -inf where forbidden."""
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    z.masked_fill_(forbidden, -torch.inf)
    z -= z.logsumexp(-1, keepdim=True)
    return z
