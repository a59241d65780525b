"""Entropies of nodes and log-probabilities of edges, plain and fused with the vocabulary projection.

    Ent(n)    = -sum_v pi(v|n) log pi(v|n)
    log pi(e) = log pi(y_t | y_<t)   for the edge e = (n, y_t)

The fused head never holds the (nodes x vocabulary) logits whole: it takes the nodes in chunks and keeps, for each node,
two vectors of the hidden size from which any gradient follows. With z = W h, p = softmax(z):

    d Ent / d h    = W^T ( -p * (log p + Ent) )
    d log pi / d h = W_{y_t} - W^T p
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 22  # of them in a chunk: 16 MB in float32, which the caches of a CPU can still follow


def entropy(log_pi: Tensor) -> Tensor:
    """Ent(pi) over the last axis; forbidden tokens (-inf) contribute nothing."""
    return -(log_pi.exp() * log_pi.clamp(min=-1e30)).sum(-1)  # 0 * -inf would be NaN, 0 * -1e30 is 0


def node_entropies_and_edge_logprobs(
    hidden: Tensor,  # (M, d) of the nodes
    weight: Tensor,  # (V, d) the vocabulary matrix, frozen
    forbidden: Tensor,  # (F, V) bool, the masks in use
    mask: Tensor,  # (M,) int64: which of them holds at a node
    edge_node: Tensor,  # (E,) int64
    edge_token: Tensor,  # (E,) int64
    project: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Ent of each node (M,) and log pi of each edge (E,), float32 or better, differentiable in `hidden`.

    `project` computes h W^T (n, d) -> (n, V) where there is a faster way than the plain product.
    """
    fused: Any = _FusedHead.apply
    project = project or (lambda h: h @ weight.T)
    entropies, logprobs = fused(hidden, weight, forbidden, mask, edge_node, edge_token, project)
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
        project: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        M, d = hidden.shape
        wide = torch.promote_types(hidden.dtype, torch.float32)
        entropies = torch.empty(M, dtype=wide, device=hidden.device)
        logprobs = torch.empty(len(edge_node), dtype=wide, device=hidden.device)
        needed = ctx.needs_input_grad[0]
        d_entropy = hidden.new_empty(M, d) if needed else None  # row n: d Ent(n) / d h
        expected = hidden.new_empty(M, d) if needed else None  # row n: W^T p
        step = max(1, LOGITS_AT_ONCE // len(weight))
        for start in range(0, M, step):
            rows = slice(start, min(M, start + step))
            z = project(hidden[rows]).to(wide)  # (m, V)
            z.masked_fill_(forbidden[mask[rows]], -torch.inf)
            z -= z.logsumexp(-1, keepdim=True)  # now log pi
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
        return of_hidden, None, None, None, None, None, None
