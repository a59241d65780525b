"""Scaled dot-product attention: torch's own kernel, and plain products in bfloat16 on a CPU that multiplies it.

There torch's fused kernel multiplies bfloat16 no faster than float32, and its backward pass is slower. Two products and
a softmax in between run at the speed of the hardware's instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from sharpen.models.packed import multiplies_bfloat16

CACHED = 2**20  # weights, of as many heads as that allows, are computed at a time


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Queries (B, heads, n, d), keys and values (B, heads, m, d) -> (B, heads, n, d).

    The bias is (B, 1 or heads, 1 or n, m) and gets no gradient from plain products.
    """
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and multiplies_bfloat16("cpu"):
        return _products(q, k, v, bias, scale)
    mask = None if bias is None else bias.expand(-1, -1, q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """The same out of plain products, some heads at a time, so that their weights stay in the processor's cache."""
    B, H, n, d = q.shape
    together = max(1, CACHED // (n * k.shape[2]))
    q = q * (d**-0.5 if scale is None else scale)
    if bias is not None:
        bias = bias.expand(B, H, -1, -1)
    rows = []
    for b in range(B):
        parts = []
        for start in range(0, H, together):
            some = slice(start, start + together)
            parts.append(_heads(q[b, some], k[b, some], v[b, some], None if bias is None else bias[b, some]))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


class _Heads(Function):
    """softmax(q k^T + bias) v of some heads, (heads, n, d)."""

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


_heads: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = _Heads.apply


def _dense(x: Tensor) -> Tensor:
    """The same with the rows of each head one behind the other."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
