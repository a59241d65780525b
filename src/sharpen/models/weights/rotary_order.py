"""The two orders in which a head's numbers are stored for rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def halves(weight: Tensor, heads: int) -> Tensor:
    """From pairs that turn together, as Meta and llama.cpp store them, to two halves: (heads * size, d)."""
    rows = weight.shape[0]
    return weight.view(heads, rows // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)
