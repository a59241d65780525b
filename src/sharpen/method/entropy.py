"""Entropies of nodes and log-probabilities of edges, and their gradient through the vocabulary projection.

    Ent(n)    = -sum_v pi(v|n) log pi(v|n)
    log pi(e) = log pi(y_t | y_<t)   for the edge e = (n, y_t)

With z = W h, p = softmax(z):

    d Ent / d h    = W^T ( -p * (log p + Ent) )
    d log pi / d h = W_{y_t} - W^T p

Two heads follow from it, and neither holds the (nodes x vocabulary) logits whole: nodes are taken in chunks.
`node_entropies_and_edge_logprobs` is differentiable in any way one likes, at the price of three products with W.
`head_gradient` is given what every node and edge weighs in the loss, and needs one product, or two where the
distributions are no longer there: it is what an episode uses, whose search has seen every distribution already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 21  # of them in a chunk: 8 MB in float32, which a CPU's last cache can hold


def entropy(log_pi: Tensor) -> Tensor:
    """Ent(pi) over the last axis; forbidden tokens (-inf) contribute nothing."""
    minus: Tensor = torch.linalg.vecdot(log_pi.exp(), log_pi.clamp(min=-1e30))  # 0 * -inf is NaN, 0 * -1e30 is 0
    return -minus


def head_gradient(
    log_pi: Callable[[slice], Tensor],  # of some nodes, (m, V), to be overwritten
    weight: Tensor,  # (V, d) the vocabulary matrix
    c: Tensor,  # (M,) what multiplies Ent(n) in the loss
    a: Tensor,  # (E,) what multiplies log pi(e)
    edge_node: Tensor,  # (E,) int64
    edge_token: Tensor,  # (E,) int64
) -> Tensor:
    """d L / d h (M, d) of L = sum_e a(e) log pi(e) + sum_n c(n) Ent(n), with constant a and c.

    At a node, d L / d z = -p * (c (log p + Ent) + sum of its a) + the a of each edge at its token. It sums to zero over
    the vocabulary, and has to: what is left would be multiplied by W^T p, which is long. So p is normalised once more,
    and Ent taken from it here.
    """
    of_hidden = weight.new_empty(len(c), weight.shape[1])
    total = torch.zeros_like(c).index_add_(0, edge_node, a)  # (M,) sum of a over a node's edges
    for rows in _chunks(len(c), len(weight)):
        z = log_pi(rows)
        p = z.exp()
        z.clamp_(min=-1e30)
        mass = p.sum(-1)  # 1, but for the rounding of a float32 softmax over a large vocabulary
        offset = total[rows] - c[rows] * torch.linalg.vecdot(p, z) / mass
        p.mul_(z.mul_((c[rows] / mass)[:, None]).add_((offset / mass)[:, None])).neg_()
        inside = ((edge_node >= rows.start) & (edge_node < rows.stop)).nonzero()[:, 0]
        at = edge_node[inside] - rows.start, edge_token[inside]
        p.index_put_(at, a[inside].to(p.dtype), accumulate=True)
        of_hidden[rows] = p.to(weight.dtype) @ weight
    return of_hidden


def _chunks(nodes: int, vocabulary: int) -> Iterator[slice]:
    step = max(1, LOGITS_AT_ONCE // vocabulary)
    for start in range(0, nodes, step):
        yield slice(start, min(nodes, start + step))


def log_softmax(z: Tensor, forbidden: Tensor) -> Tensor:
    """log pi from logits (m, V), in place where their type is wide enough, -inf where forbidden."""
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    z.masked_fill_(forbidden, -torch.inf)
    z -= z.logsumexp(-1, keepdim=True)
    return z


def node_entropies_and_edge_logprobs(
    hidden: Tensor,  # (M, d) of the nodes
    weight: Tensor,  # (V, d) the vocabulary matrix, frozen
    forbidden: Tensor,  # (F, V) bool, the masks in use
    mask: Tensor,  # (M,) int64: which of them holds at a node
    edge_node: Tensor,  # (E,) int64
    edge_token: Tensor,  # (E,) int64
) -> tuple[Tensor, Tensor]:
    """Ent of each node (M,) and log pi of each edge (E,), float32 or better, differentiable in `hidden`."""
    fused: Any = _FusedHead.apply
    entropies, logprobs = fused(hidden, weight, forbidden, mask, edge_node, edge_token)
    return entropies, logprobs


class _FusedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        forbidden: Tensor,
        mask: Tensor,
        edge_node: Tensor,
        edge_token: Tensor,
    ) -> tuple[Tensor, Tensor]:
        M, d = hidden.shape
        wide = torch.promote_types(hidden.dtype, torch.float32)
        entropies = torch.empty(M, dtype=wide, device=hidden.device)
        logprobs = torch.empty(len(edge_node), dtype=wide, device=hidden.device)
        needed = ctx.needs_input_grad[0]
        d_entropy = hidden.new_empty(M, d) if needed else None  # row n: d Ent(n) / d h
        expected = hidden.new_empty(M, d) if needed else None  # row n: W^T p
        for rows in _chunks(M, len(weight)):
            z = log_softmax(hidden[rows] @ weight.T, forbidden[mask[rows]])  # (m, V)
            inside = ((edge_node >= rows.start) & (edge_node < rows.stop)).nonzero()[:, 0]
            logprobs[inside] = z[edge_node[inside] - rows.start, edge_token[inside]]
            p = z.exp()
            z.clamp_(min=-1e30)
            entropies[rows] = -torch.linalg.vecdot(p, z)
            if d_entropy is not None and expected is not None:
                expected[rows] = p.to(weight.dtype) @ weight
                p *= z.add_(entropies[rows, None])
                d_entropy[rows] = -(p.to(weight.dtype) @ weight)
        if needed:
            ctx.save_for_backward(d_entropy, expected, weight, edge_node, edge_token)
        return entropies, logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_entropies, of_logprobs = gradients
        d_entropy, expected, weight, edge_node, edge_token = ctx.saved_tensors
        of_hidden = of_entropies[:, None].to(d_entropy.dtype) * d_entropy
        g = of_logprobs[:, None].to(d_entropy.dtype)
        of_hidden.index_add_(0, edge_node, g * (weight[edge_token] - expected[edge_node]))
        return of_hidden, None, None, None, None, None
