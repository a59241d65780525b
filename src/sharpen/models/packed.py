"""Frozen linear layers in oneDNN's own memory order, in which a few rows are multiplied about as fast as W is read.

A search sends 1 to 16 rows through every matrix of the decoder, and through the vocabulary, at every level. BLAS reads
such a product at a fraction of the memory's speed; oneDNN, which comes with torch, does not, once a matrix is in its
own order, in float32 and, where the hardware multiplies it, in bfloat16. Elsewhere (another device or number format,
a build without oneDNN) it is a plain product.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether matrices of that kind can be packed here."""
    backend: Any = torch.backends.mkldnn
    if device.type != "cpu" or not backend.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16("cpu"))


@cache
def multiplies_bfloat16(device: str) -> bool:
    """Whether a device has instructions for bfloat16 products, rather than an emulation."""
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


class PackedLinear:
    """W (out, in) and b, for rows that need no gradient. A packed W is a copy; the plain one is not kept."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._ops: Any = torch.ops.mkldnn
        self._packed: Any = None
        self._plain: Tensor | None = None
        if packs(weight.device, weight.dtype):
            self._packed = self._ops._reorder_linear_weight(weight.detach(), None)
        else:
            self._plain = weight.detach()

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b: (..., in) -> (..., out)."""
        if self._plain is not None:
            return F.linear(x, self._plain, self._bias)
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = self._ops._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return y.view(*x.shape[:-1], -1)
