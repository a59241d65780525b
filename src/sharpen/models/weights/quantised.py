"""Matrices of a few bits a number, as they lie in a file, and the float32 numbers they stand for.

Nothing is converted when a file is read: a policy asks for the numbers when it first needs them, and looking up a few
tokens converts a few rows. ggml's formats are in `models.weights.blocks`. Torch is imported late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sharpen.models.weights.stored import ITEM_SIZE, Stored

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Quantised(Stored):
    """What a matrix of any quantised format answers; `tensor` gives all of it, float32."""

    @property
    def bits(self) -> int:
        """Of one number, without its scale."""
        raise NotImplementedError

    def lines(self, rows: Tensor) -> Tensor:
        """Some rows as float32: (...) int64 -> (..., columns)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Scaled(Quantised):
    """Whole numbers q that stand for (q - zero) scale, with one scale and zero for all rows or one for each."""

    scale: np.ndarray = field(repr=False, default_factory=lambda: np.ones(1, np.float32))  # (1,) or (rows,)
    zero: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(1, np.float32))  # (1,) or (rows,)
    turned: bool = False  # stored with rows and columns exchanged, as ONNX multiplies it

    @property
    def bits(self) -> int:
        return 8 * ITEM_SIZE[self.dtype]

    def rows(self, start: int, stop: int) -> Scaled:
        """A slice along the first axis, without a copy."""
        scale = self.scale if len(self.scale) == 1 else self.scale[start:stop]
        zero = self.zero if len(self.zero) == 1 else self.zero[start:stop]
        part = super().rows(start, stop)
        return replace(self, shape=part.shape, data=part.data, scale=scale, zero=zero)

    def tensor(self) -> Tensor:
        return (self._whole().float().contiguous() - self._own(self.zero)) * self._own(self.scale)

    def lines(self, rows: Tensor) -> Tensor:
        return (self._whole()[rows].float() - self._own(self.zero)[rows]) * self._own(self.scale)[rows]

    def _whole(self) -> Tensor:
        import torch

        flat = torch.frombuffer(self.data, dtype=getattr(torch, self.dtype), count=math.prod(self.shape))
        return flat.view(self.shape[::-1]).T if self.turned else flat.view(self.shape)

    def _own(self, values: np.ndarray) -> Tensor:
        """The number of each row: (rows, 1, ...)."""
        import torch

        ones = (1,) * (len(self.shape) - 1)
        return torch.from_numpy(values.astype(np.float32)).view(-1, *ones).expand(self.shape[0], *ones)
