"""Condensed padding: Whisper's thirty seconds with the silence behind the speech told in fewer frames.

Whisper was trained on windows of exactly thirty seconds, padded with silence, and breaks when the padding is cut away.
But the padded frames are much alike, so a few can stand for all: speech and a margin behind it keep every frame; behind
them one frame of every four (condensed) or sixteen (sparse) is kept, and wherever it is attended to, log(frames it
stands for) is added to its logit, as if each of them had been there with the same key and value. An approximation:
docs/speed.md has its cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EVERY = {"condensed": 4, "sparse": 16}  # padded frames that one stands for
MARGIN = 25  # frames behind the speech that are kept whole: half a second


@dataclass(frozen=True)
class Kept:
    """Which frames of a batch stay, and what is added to the attention logits of each."""

    frames: Tensor  # (B, S) int64 numbers of frames, rising; 0 where a shorter utterance has fewer
    bias: Tensor  # (B, S) 0 for a frame of its own, log(m) for one that stands for m, -inf where there is none

    def of(self, x: Tensor) -> Tensor:
        """The frames that stay: (B, total, d) -> (B, S, d)."""
        return x.gather(1, self.frames.to(x.device)[:, :, None].expand(-1, -1, x.shape[2]))


def condense(speech: Sequence[int], total: int, every: int, margin: int = MARGIN) -> Kept:
    """Keeps the first `speech` frames of each utterance and a margin, and thins out the rest of `total`."""
    kept, stands_for = [], []
    for count in speech:
        whole = min(total, count + margin)
        starts = list(range(whole, total, every))
        ends = [*starts[1:], total]
        kept.append([*range(whole), *((a + b) // 2 for a, b in zip(starts, ends, strict=False))])
        stands_for.append([1] * whole + [b - a for a, b in zip(starts, ends, strict=False)])
    S = max(map(len, kept))
    frames = torch.tensor([row + [0] * (S - len(row)) for row in kept])
    bias = torch.tensor([[math.log(m) for m in row] + [-math.inf] * (S - len(row)) for row in stands_for])
    return Kept(frames, bias)
