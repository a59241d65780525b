"""Frozen linear layers laid out so that the CPU multiplies them with a few rows about as fast as it can read them.

A search sends 1 to 16 rows through every matrix of the decoder, and through the vocabulary, at every level. BLAS reads
such a product at a fraction of the memory's speed; oneDNN, which comes with torch, does not, once a matrix is in its
own order. That order costs a second copy. Elsewhere (another device or number format, a build without oneDNN) it is a
plain product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedLinear:
    """W (out, in) and b, for rows that need no gradient."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self._ops: Any = torch.ops.mkldnn
        self._packed: Any = self._pack()

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b: (..., in) -> (..., out)."""
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = self._ops._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return y.view(*x.shape[:-1], -1)

    def _pack(self) -> Any:
        fits = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32
        backend: Any = torch.backends.mkldnn
        if not (fits and backend.is_available() and hasattr(self._ops, "_reorder_linear_weight")):
            return None
        return self._ops._reorder_linear_weight(self.weight, None)
