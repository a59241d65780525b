"""Scaled dot-product attention: torch's own kernel, and products of our own where they are faster on a CPU.

torch's fused kernel multiplies bfloat16 no faster than float32, with a slower backward pass, and float32 through MKL,
which leaves half of some processors idle (`sharpen.products`). Two products and a softmax in between run at the speed
of the hardware's instructions: many heads at once where they are small, one after the other where each is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from sharpen.products import multiplies, multiplies_bfloat16, product

CACHED = 1 << 20  # weights, of as many heads as that allows, are computed at a time in bfloat16
LARGE = 1 << 17  # weights of a head, from which on its own products beat torch's kernel in float32


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Queries (B, heads, n, d), keys and values (B, heads, m, d) -> (B, heads, n, d).

    The bias is (B, 1 or heads, 1 or n, m) and gets no gradient from products of our own.
    """
    together = _together(q, k)
    if together is None:
        mask = None if bias is None else bias.expand(-1, -1, q.shape[2], -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return _products(q, k, v, bias, scale, together)


def _together(q: Tensor, k: Tensor) -> int | None:
    """How many heads are multiplied at a time, or None for torch's kernel."""
    weights = q.shape[2] * k.shape[2]
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and multiplies_bfloat16("cpu"):
        return max(1, CACHED // weights)
    return 1 if weights >= LARGE and multiplies(q) else None


def _products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, together: int) -> Tensor:
    """Some heads at a time, so that their weights stay in the processor's cache."""
    B, H, _, d = q.shape
    q = q * (d**-0.5 if scale is None else scale)
    if bias is not None:
        bias = bias.expand(B, H, -1, -1)
    rows = []
    for b in range(B):
        if together == 1:
            rows.append(
                torch.stack([_head(q[b, h], k[b, h], v[b, h], None if bias is None else bias[b, h]) for h in range(H)])
            )
            continue
        parts = []
        for start in range(0, H, together):
            some = slice(start, start + together)
            parts.append(_heads(q[b, some], k[b, some], v[b, some], None if bias is None else bias[b, some]))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


class _Head(Function):
    """softmax(q k^T + bias) v of one large head, (n, d); the bias is (n, m) or (1, m).

    Its weights are computed again rather than kept: those of 1500 frames would take 430 MB in the encoder of base.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        ctx.save_for_backward(q, k, v, bias)
        return product(_weights(q, k, bias), v.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, bias = ctx.saved_tensors
        weights, gradient = _weights(q, k, bias), gradient.contiguous()
        of_values = product(gradient.T.contiguous(), weights.T).T  # the small matrix is copied, the large one is not
        inner = product(gradient, v)
        of_logits = torch._softmax_backward_data(inner, weights, -1, inner.dtype)
        return product(of_logits, k.T), product(q.T.contiguous(), of_logits.T).T, of_values, None


def _weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """What each query gives to each key: (n, m)."""
    if bias is None or len(bias) == 1:
        return product(q, k, None if bias is None else bias[0]).softmax(-1)
    return product(q, k).add_(bias).softmax(-1)


class _Heads(Function):
    """The same of some small heads, (heads, n, d)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = _dense(q), _dense(k), _dense(v)
        logits = q @ k.mT
        weights = (logits if bias is None else logits.add_(bias)).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights = ctx.saved_tensors
        gradient = _dense(gradient)
        inner = gradient @ v.mT
        of_logits = torch._softmax_backward_data(inner, weights, -1, inner.dtype)
        return of_logits @ k, of_logits.mT @ q, weights.mT @ gradient, None


_head: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = _Head.apply
_heads: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = _Heads.apply


def _dense(x: Tensor) -> Tensor:
    """The same with the rows of each head one behind the other."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
