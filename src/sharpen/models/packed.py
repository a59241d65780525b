"""A frozen matrix laid out so that the CPU can multiply it with a few rows about as fast as it can be read.

Searching multiplies the vocabulary matrix with 1 to 16 rows at every level. BLAS reads such a product at a fraction of
the memory's speed; oneDNN, which comes with torch, does not, once the matrix is in its own order. That order costs a
second copy of the matrix. Elsewhere (another device or number format, a build without oneDNN) it is a plain product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PackedMatrix:
    """W (V, d), for products with rows h (n, d) that need no gradient."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._ops: Any = torch.ops.mkldnn
        self._packed: Any = self._pack()

    def __call__(self, h: Tensor) -> Tensor:
        """h W^T: (n, d) -> (n, V)."""
        if self._packed is not None:
            z: Tensor = self._ops._linear_pointwise(h, self._packed, None, "none", [], "")
            return z
        if self.weight.device.type == "cpu" and len(h) > 1:
            return (self.weight @ h.T).T.contiguous()  # for a few rows the CPU streams the matrix faster this way
        return F.linear(h, self.weight)

    def _pack(self) -> Any:
        fits = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32
        backend: Any = torch.backends.mkldnn
        if not (fits and backend.is_available() and hasattr(self._ops, "_reorder_linear_weight")):
            return None
        return self._ops._reorder_linear_weight(self.weight.detach(), None)
