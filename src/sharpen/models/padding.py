"""Condensed padding: Whisper's thirty-second window with fewer frames for the silence after the speech.

Whisper was trained on windows of exactly thirty seconds, padded with silence, and breaks when the padding is cut away.
But the padded frames are nearly equal, so a few can stand for all: every frame of the speech and of a short margin
after it is kept; of the rest one frame in four (condensed) or sixteen (sparse). log(frames it stands for) is added to
the attention logit of such a frame, as if each of them were there with the same key and value. This is an
approximation: docs/speed.md has its cost. The margin is as long as it takes for one of a few numbers of frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sharpen.products import filled_up

EVERY = {"condensed": 4, "sparse": 16}  # how many padded frames one stands for
MARGIN = 25  # frames after the speech that are all kept: half a second


@dataclass(frozen=True)
class Kept:
    """Which frames of a batch are kept, and what is added to the attention logits of each."""

    frames: Tensor  # (B, S) int64: each frame's number in its window, rising; 0 for filling
    bias: Tensor  # (B, S) 0 for a frame that stands for itself, log(m) for one that stands for m, -inf for filling

    def of(self, x: Tensor) -> Tensor:
        """The kept frames: (B, total, d) -> (B, S, d)."""
        return x.gather(1, self.frames.to(x.device)[:, :, None].expand(-1, -1, x.shape[2]))


def condense(speech: Sequence[int], total: int, every: int, margin: int = MARGIN) -> Kept:
    """Keeps the first `speech` frames of each utterance and a margin, and one in `every` of the rest of `total`."""
    kept, stands_for = [], []
    for count in speech:
        whole = min(total, count + margin)
        while whole < total and (S := whole - (whole - total) // every) != filled_up(S):
            whole += 1
        starts = list(range(whole, total, every))
        ends = [*starts[1:], total]
        kept.append([*range(whole), *((a + b) // 2 for a, b in zip(starts, ends, strict=False))])
        stands_for.append([1] * whole + [b - a for a, b in zip(starts, ends, strict=False)])
    S = max(map(len, kept))
    frames = torch.tensor([row + [0] * (S - len(row)) for row in kept])
    bias = torch.tensor([[math.log(m) for m in row] + [-math.inf] * (S - len(row)) for row in stands_for])
    return Kept(frames, bias)
