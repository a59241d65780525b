"""ggml's block formats: what the bytes of a block stand for. Each is written once, for ggml and GGUF files alike.

A row of a matrix is a sequence of blocks. The first formats have 32 numbers in a block; the k-quants, whose names end
in _k, have 256, in groups with small integer scales of their own. d and m are float16. Torch is imported late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.quantised import Quantised
from sharpen.models.weights.stored import Reader

if TYPE_CHECKING:
    from torch import Tensor

SUPER = 256  # numbers in a block of the k-quants
_AT_ONCE = (
    1 << 18
)  # numbers that are converted at once: what lies between bytes and numbers stays in the processor's cache


@dataclass(frozen=True)
class Format:
    """One block format."""

    name: str
    code: int  # of a tensor, in ggml and GGUF files
    numbers: int  # in a block
    size: int  # of a block, in bytes
    values: Callable[[Tensor], Tensor]  # (blocks, size) uint8 -> (blocks, numbers) float32

    @property
    def bits(self) -> int:
        """Of one number, without its scale."""
        return int(self.name[1])


@dataclass(frozen=True)
class Blocks(Quantised):
    """A tensor in one of these formats; its `dtype` is the name of the format."""

    @property
    def bits(self) -> int:
        return FORMATS[self.dtype].bits

    def tensor(self) -> Tensor:
        return self._values(self._bytes()).view(self.shape)

    def lines(self, rows: Tensor) -> Tensor:
        return self._values(self._bytes()[rows]).view(*rows.shape, *self.shape[1:])

    def reordered(self, rows: Callable[[Tensor], Tensor]) -> Blocks:
        """With its rows in the order that a function puts those of a matrix in; a row is whole blocks."""
        return replace(self, data=rows(self._bytes()).flatten().numpy().data)

    def _bytes(self) -> Tensor:
        import torch

        return torch.frombuffer(self.data, dtype=torch.uint8).view(self.shape[0], -1)

    def _values(self, raw: Tensor) -> Tensor:
        import torch

        form = FORMATS[self.dtype]
        raw = raw.reshape(-1, form.size)
        whole = torch.empty(len(raw), form.numbers)
        some = _AT_ONCE // form.numbers
        for start in range(0, len(raw), some):
            whole[start : start + some] = form.values(raw[start : start + some])
        return whole


def read_blocks(reader: Reader, dtype: str, shape: tuple[int, ...], what: str) -> Blocks:
    """The tensor where a reader is; its rows must be whole blocks."""
    form = FORMATS[dtype]
    if shape[-1] % form.numbers:
        raise WeightsError(
            f"{reader.name}: damaged: {what} of shape {shape} is {dtype}, and that has rows of {form.numbers}; "
            f"{GET_AGAIN}"
        )
    return Blocks(dtype, shape, reader.take(math.prod(shape) // form.numbers * form.size, what))


def _q8_0(raw: Tensor) -> Tensor:
    """d and 32 signed bytes: d q."""
    return _signed(raw[:, 2:]) * _halves(raw[:, :2])


def _q4_0(raw: Tensor) -> Tensor:
    """d (q - 8)."""
    return (_four_bits(raw[:, 2:]).float() - 8) * _halves(raw[:, :2])


def _q4_1(raw: Tensor) -> Tensor:
    """d q + m, with m behind d."""
    return _four_bits(raw[:, 4:]).float() * _halves(raw[:, :2]) + _halves(raw[:, 2:4])


def _q5_0(raw: Tensor) -> Tensor:
    """d (q - 16), the fifth bits in a u32 before the others."""
    return (_five_bits(raw[:, 2:]).float() - 16) * _halves(raw[:, :2])


def _q5_1(raw: Tensor) -> Tensor:
    """d q + m."""
    return _five_bits(raw[:, 4:]).float() * _halves(raw[:, :2]) + _halves(raw[:, 2:4])


def _q4_k(raw: Tensor) -> Tensor:
    """Eight groups of 32 numbers: d s q - m l, with six bits for a scale s and six for a minimum l of each group.

    d, m, 12 bytes of scales and minima, 128 bytes of numbers. The first four bytes have the scales of groups 0 to 3,
    the next four their minima, and the highest two bits of each those of groups 4 to 7; the last four have the low
    bits of the latter, scales below minima.
    """
    import torch

    d, m = _halves(raw[:, :2]), _halves(raw[:, 2:4])
    first, second, low = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    s = torch.cat([first & 63, (low & 15) | (first >> 6 << 4)], dim=1).float()  # (blocks, 8)
    l = torch.cat([second & 63, (low >> 4) | (second >> 6 << 4)], dim=1).float()  # noqa: E741
    q = raw[:, 16:].reshape(-1, 4, 1, 32)  # a run of 32 bytes has two groups, the first in the low halves
    q = torch.cat([q & 15, q >> 4], dim=2).view(-1, 8, 32).float()
    return ((d * s)[:, :, None] * q - (m * l)[:, :, None]).flatten(1)


def _q6_k(raw: Tensor) -> Tensor:
    """Sixteen groups of 16 numbers: d s (q - 32), with a signed byte s for each group.

    128 bytes of four low bits, 64 of two high bits, 16 scales, d. Of 128 numbers, in four runs of 32, the first two
    runs are in the low halves of 64 bytes and the last two in the high halves; each of 32 bytes has the high bits of
    one number of every run, the first run's lowest.
    """
    import torch

    low = raw[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([low & 15, low >> 4], dim=2).view(-1, 2, 4, 32)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    q = (low | (high & 3) << 4).view(-1, 16, 16).float() - 32
    s = _signed(raw[:, 192:208]) * _halves(raw[:, 208:])  # (blocks, 16)
    return (s[:, :, None] * q).flatten(1)


def _halves(raw: Tensor) -> Tensor:
    """Two bytes as float16: (blocks, 2) -> (blocks, 1)."""
    import torch

    return raw.contiguous().view(torch.float16).float()


def _signed(raw: Tensor) -> Tensor:
    import torch

    return raw.contiguous().view(torch.int8).float()


def _four_bits(raw: Tensor) -> Tensor:
    """16 bytes, the first sixteen numbers in their low halves -> (blocks, 32)."""
    import torch

    return torch.cat([raw & 15, raw >> 4], dim=1)


def _five_bits(raw: Tensor) -> Tensor:
    """A u32 of fifth bits, then as four bits."""
    import torch

    fifth = (raw[:, :4, None] >> torch.arange(8, dtype=torch.uint8)) & 1  # (blocks, 4, 8)
    return _four_bits(raw[:, 4:]) | fifth.flatten(1) << 4


FORMATS = {
    form.name: form
    for form in (
        Format("q4_0", 2, 32, 18, _q4_0),
        Format("q4_1", 3, 32, 20, _q4_1),
        Format("q5_0", 6, 32, 22, _q5_0),
        Format("q5_1", 7, 32, 24, _q5_1),
        Format("q8_0", 8, 32, 34, _q8_0),
        Format("q4_k", 12, SUPER, 144, _q4_k),
        Format("q6_k", 14, SUPER, 210, _q6_k),
    )
}
FLOAT_CODES = {0: "float32", 1: "float16"}  # by code
UNREAD = {  # other types of ggml, so that they can be refused by name
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    13: "q5_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    30: "bf16",
}
BY_CODE = {form.code: form.name for form in FORMATS.values()}


def type_name(code: int) -> str:
    """What ggml calls a type of tensors."""
    return {**FLOAT_CODES, **BY_CODE, **UNREAD}.get(code, f"type {code}")
