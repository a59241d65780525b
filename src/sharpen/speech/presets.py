"""Ways to run the same model: exactly, fast, and fastest, each with a measured cost (docs/speed.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]
Padding = Literal["full", "condensed", "sparse"]


@dataclass(frozen=True)
class Preset:
    """What a preset's name stands for."""

    padding: Padding
    bfloat16: bool  # where the hardware multiplies in it; elsewhere float32, which is faster there

    def dtype(self, device: str) -> Dtype:
        from sharpen.products import multiplies_bfloat16  # torch with it

        return "bfloat16" if self.bfloat16 and multiplies_bfloat16(device) else "float32"


PRESETS = {
    "exact": Preset("full", bfloat16=False),
    "fast": Preset("condensed", bfloat16=True),
    "fastest": Preset("sparse", bfloat16=True),  # not with tiny: beam search loops there
}


def default_device() -> str:
    """What `auto` stands for: cuda or cpu. mps must be asked for: it has no float64 and is not tested."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
