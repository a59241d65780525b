"""Where Whisper listens while it writes: the attention of its alignment heads, made comparable and averaged."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 7  # frames that the median is taken over, as in openai-whisper


def consensus(logits: Tensor) -> Tensor:
    """One matrix for all heads, larger where a token listens more than the others: (heads, n, S) -> (n, S).

    A head listens to some frames whatever the token. So its weights are standardised over the tokens, frame by frame,
    and what stands out in a single frame is removed by a median over its neighbours.
    """
    total = torch.zeros_like(logits[0])
    for weights in logits.softmax(
        -1
    ):  # one head after the other: the windows of the median need seven times the memory
        deviation, mean = torch.std_mean(weights, dim=0, correction=0)  # (S,)
        total += _median((weights - mean) / deviation.clamp(min=torch.finfo(weights.dtype).tiny))
    return total / len(logits)


def _median(x: Tensor) -> Tensor:
    """The median of the frames around each frame, mirrored at both ends: (n, S) -> (n, S)."""
    around = WIDTH // 2
    if x.shape[-1] <= around:
        return x
    windows = F.pad(x[None], (around, around), mode="reflect")[0].unfold(-1, WIDTH, 1)  # (n, S, WIDTH)
    return windows.sort(-1).values[..., around]
