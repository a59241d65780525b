"""Scaled dot-product attention: torch's own kernel, and products of our own where they are faster on a CPU.

torch's fused kernel multiplies bfloat16 no faster than float32, with a slower backward pass, and float32 through MKL,
which leaves half of some processors idle (`sharpen.products`). Two products and a softmax in between run at the speed
of the hardware's instructions: many heads at once where they are small, one after the other where each is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from sharpen.products import filled_up, multiplies, multiplies_bfloat16, packs, product

CACHED = 1 << 20  # weights, of as many heads as that allows, are computed at a time in bfloat16
LARGE = 1 << 17  # weights of a head, from which on its own products beat torch's kernel in float32


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Queries (B, heads, n, d), keys and values (B, heads, m, d) -> (B, heads, n, d).

    The bias is (B, 1 or heads, 1 or n, m) and gets no gradient from products of our own.
    """
    n = q.shape[2]
    together = _together(q, k)
    if together is None:
        mask = None if bias is None else bias.expand(-1, -1, n, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    if together > 1 or not packs(q.device, q.dtype):  # without oneDNN bfloat16 has torch's products alone
        return _small(q, k, v, None if bias is None else bias.expand(q.shape[0], q.shape[1], -1, -1), together)
    missing = filled_up(n) - n
    if missing:
        q = F.pad(q, (0, 0, 0, missing))
        bias = bias if bias is None or bias.shape[2] == 1 else F.pad(bias, (0, 0, 0, missing))
    return _large(q, k, v, None if bias is None else bias.expand(q.shape[0], q.shape[1], -1, -1))[:, :, :n]


def _together(q: Tensor, k: Tensor) -> int | None:
    """How many heads are multiplied at a time, or None for torch's kernel."""
    weights = q.shape[2] * k.shape[2]
    if q.dtype == torch.bfloat16 and q.device.type == "cpu" and multiplies_bfloat16("cpu"):
        return max(1, CACHED // weights)
    few_shapes = k.shape[2] == filled_up(k.shape[2])
    return 1 if weights >= LARGE and few_shapes and multiplies(q) else None


def _small(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, together: int) -> Tensor:
    """Some heads at a time, so that their weights stay in the processor's cache."""
    rows = []
    for b in range(len(q)):
        parts = []
        for start in range(0, q.shape[1], together):
            some = slice(start, start + together)
            parts.append(_heads(q[b, some], k[b, some], v[b, some], None if bias is None else bias[b, some]))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


class _Large(Function):
    """softmax(q k^T + bias) v, one head after the other.

    The weights are computed again rather than kept: those of 1500 frames would take 430 MB in the encoder of base.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(q, k, v, bias)
        rows = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)  # heads side by side
        for at in np.ndindex(q.shape[0], q.shape[1]):
            one, key, value = q[at].contiguous(), k[at].contiguous(), v[at].contiguous()
            rows[at] = product(_weights(one, key, None if bias is None else bias[at]), value.T)
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, bias = ctx.saved_tensors
        of_q, of_k, of_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for at in np.ndindex(q.shape[0], q.shape[1]):
            one, key, value, own = q[at].contiguous(), k[at].contiguous(), v[at].contiguous(), gradient[at].contiguous()
            weights = _weights(one, key, None if bias is None else bias[at])
            inner = product(own, value)
            of_logits = torch._softmax_backward_data(inner, weights, -1, inner.dtype)
            of_q[at] = product(of_logits, key.T)
            of_k[at] = product(one.T.contiguous(), of_logits.T).T  # the small matrix is copied, the large one is not
            of_v[at] = product(own.T.contiguous(), weights.T).T
        return of_q, of_k, of_v, None


def _weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """What each query gives to each key: (n, m); the bias is (n, m) or (1, m)."""
    if bias is None or len(bias) == 1:
        return product(q, k, None if bias is None else bias[0]).softmax(-1)
    return product(q, k).add_(bias).softmax(-1)


class _Heads(Function):
    """The same of some heads at once, (heads, n, d)."""

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


_large: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = _Large.apply
_heads: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = _Heads.apply


def _dense(x: Tensor) -> Tensor:
    """The same with the rows of each head one behind the other."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
