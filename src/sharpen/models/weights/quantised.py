"""Matrices of a few bits a number, as they lie in a file, and the float32 numbers they stand for.

Nothing is converted when a file is read: a policy asks for the numbers when it first needs them, and looking up a few
tokens converts a few rows. Torch is imported late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sharpen.models.weights.stored import ITEM_SIZE, Stored

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 32  # numbers that share a scale in ggml's formats
BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34}


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
class Blocks(Quantised):
    """ggml's: blocks of 32 numbers along a row, each with a float16 scale d.

    q8_0 is d and 32 signed bytes. The others keep the four low bits of a number in 16 bytes, the first sixteen numbers
    in the low halves; q5 has a u32 of fifth bits before them. A format that ends in _0 stands for d (q - 8) or
    d (q - 16); one that ends in _1 has a float16 minimum m after d and stands for d q + m.
    """

    @property
    def bits(self) -> int:
        return int(self.dtype[1])

    def tensor(self) -> Tensor:
        return self._values(self._bytes()).view(self.shape)

    def lines(self, rows: Tensor) -> Tensor:
        return self._values(self._bytes()[rows]).view(*rows.shape, *self.shape[1:])

    def _bytes(self) -> Tensor:
        import torch

        return torch.frombuffer(self.data, dtype=torch.uint8).view(self.shape[0], -1)

    def _values(self, raw: Tensor) -> Tensor:
        """Whole blocks of bytes -> (blocks, 32)."""
        import torch

        raw = raw.reshape(-1, BLOCK_BYTES[self.dtype])
        start = 4 if self.dtype.endswith("_1") else 2
        halves = raw[:, :start].contiguous().view(torch.float16).float()  # (blocks, 1 or 2)
        if self.bits == 8:
            return raw[:, start:].contiguous().view(torch.int8).float() * halves
        low = raw[:, -BLOCK // 2 :]
        q = torch.cat([low & 15, low >> 4], dim=1)  # (blocks, 32)
        if self.bits == 5:
            fifth = (raw[:, start : start + 4, None] >> torch.arange(8, dtype=torch.uint8)) & 1  # (blocks, 4, 8)
            q |= fifth.flatten(1) << 4
        if start == 4:
            return q.float() * halves[:, :1] + halves[:, 1:]
        return (q.float() - (1 << (self.bits - 1))) * halves


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
