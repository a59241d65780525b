"""Products with frozen matrices, as fast as the processor makes them.

torch multiplies float32 on an x86 CPU through MKL, which leaves half of an AMD processor with AVX-512 idle. oneDNN,
which comes with torch, does not: `linear` and its gradient run at more than twice the speed there, without a copy of a
matrix. A search sends 1 to 16 rows through every matrix of the decoder, and through the vocabulary, at every level:
they are multiplied about as fast as W is read once W is in oneDNN's own order (`PackedLinear`), in float32 and, where
the hardware multiplies it, in bfloat16. Elsewhere (another device or number format, a build without oneDNN) all are
torch's products.

oneDNN keeps the code that it makes for each shape, over half a megabyte. So that inputs of any length have few shapes,
rows are filled up with zeros to one of a few numbers (`filled_up`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


@cache
def multiplies_bfloat16(device: str) -> bool:
    """Whether a device has instructions for bfloat16 products, rather than an emulation."""
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether matrices of that kind can be packed here."""
    if device.type != "cpu" or not _onednn():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and multiplies_bfloat16("cpu"))


def multiplies(x: Tensor) -> bool:
    """Whether `product` is for rows of that kind here. bfloat16 goes to oneDNN without it."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and _onednn()


def filled_up(rows: int) -> int:
    """The number of rows that so many are filled up to: a multiple of 60, as Whisper's 1500 frames are, or of 20."""
    step = 20 if rows <= 120 else 60
    return -(-rows // step) * step


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b through oneDNN, without gradient: (n, in) -> (n, out). W may be the transpose of a matrix."""
    ops: Any = torch.ops.mkldnn
    y: Tensor = ops._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def pulled(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient g of x W^T in x, which is g W, without gradient of its own: (n, out) -> (n, in)."""
    return product(gradient, weight.T) if multiplies(gradient) else gradient @ weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with frozen W and b; gradients flow to the rows: (..., in) -> (..., out)."""
    if not multiplies(x):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    missing = filled_up(len(rows)) - len(rows)
    y = _frozen(F.pad(rows, (0, 0, 0, missing)) if missing else rows, weight, bias)
    return y[: len(rows)].view(*x.shape[:-1], -1)


class PackedLinear:
    """W (out, in) and b, for rows that need no gradient. A packed W is a copy; the plain one is not kept."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._weight, self._packed = weight.detach(), packs(weight.device, weight.dtype)
        if self._packed:
            ops: Any = torch.ops.mkldnn
            self._weight = ops._reorder_linear_weight(self._weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b: (..., in) -> (..., out)."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        return product(x.reshape(-1, x.shape[-1]), self._weight, self._bias).view(*x.shape[:-1], -1)


class _Frozen(Function):
    """A product whose gradient is the product with the matrix as it lies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return pulled(gradient.contiguous(), weight), None, None


_frozen: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _Frozen.apply


@cache
def _onednn() -> bool:
    """Whether this build has oneDNN's product, and it takes a matrix and its transpose."""
    backend: Any = torch.backends.mkldnn
    if not backend.is_available() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    W = torch.ones(2, 3)
    try:
        return bool((product(torch.ones(1, 3), W) == 3).all() and (product(torch.ones(1, 2), W.T) == 2).all())
    except RuntimeError:
        return False
