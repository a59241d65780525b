"""Where in a recording somebody speaks, and where it can be cut.

A detector says how probable speech is in every frame of 32 ms. Speech begins with a frame that reaches the threshold.
It ends with the first of a row of frames that are clearly below it (by MARGIN) if nobody speaks again for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sharpen.errors import SharpenError
from sharpen.models.silero import BLOCK, FRAME, RATE, load_silero
from sharpen.speech.options import VadParameters
from sharpen.speech.stream import blocks_of

MARGIN = 0.15  # how far below the threshold a frame must be to end speech
LEAST = 0.01  # a frame below this is silent whatever the threshold
PAUSE = 3  # frames, 0.1 s: the shortest pause at which long speech is cut

Span = tuple[int, int]  # from, to (exclusive), in samples or in frames


@dataclass(frozen=True, eq=False)
class Voice:
    """What a detector heard in one recording."""

    probabilities: np.ndarray  # (frames,)
    length: int  # samples
    parameters: VadParameters

    @property
    def low(self) -> float:
        """Below this a frame is silent."""
        return max(self.parameters.threshold - MARGIN, LEAST)

    def spans(self) -> tuple[Span, ...]:
        """The stretches with speech, in samples: in order, apart, and none empty."""
        p, how = self.probabilities, self.parameters
        longest = None if how.max_speech_duration_s is None else how.max_speech_duration_s * RATE / FRAME
        pad = round(how.speech_pad_ms * RATE / 1000)
        found: list[Span] = []
        for a, b in speech_spans(p, how.threshold, self.low, _frames(how.min_silence_duration_ms)):
            if b - a < how.min_speech_duration_ms * RATE / 1000 / FRAME:
                continue
            room = b - a if longest is None else max(1, int(longest - 2 * pad / FRAME))
            found += cut(p, a, b, room, self.low)
        inside = [(a * FRAME, min(b * FRAME, self.length)) for a, b in found]
        return tuple(_padded(inside, pad, self.length))

    def chunks(self, seconds: float) -> tuple[Span, ...]:
        """The same stretches, cut at pauses into pieces of at most so many seconds."""
        pieces: list[Span] = []
        for start, stop in self.spans():
            a, b = start // FRAME, -(-stop // FRAME)
            cuts = [x for x, _ in cut(self.probabilities, a, b, int(seconds * RATE / FRAME), self.low)][1:]
            pieces += pairwise([start, *(x * FRAME for x in cuts), stop])
        return tuple(pieces)

    def voiced(self, start: int, stop: int) -> float:
        """Seconds of speech between two samples: the frames that reach the threshold."""
        frames = self.probabilities[-(-start // FRAME) : stop // FRAME]
        return int((frames >= self.parameters.threshold).sum()) * FRAME / RATE


def find_voice(samples: Any, sampling_rate: int, parameters: VadParameters) -> Voice:
    """Listens to a whole recording, array or stream."""
    if sampling_rate != RATE:
        raise SharpenError(f"voice activity is found at {RATE} Hz, the model takes {sampling_rate} Hz: turn it off")
    heard = list(load_silero().probabilities(blocks_of(samples, FRAME * BLOCK)))
    return Voice(np.concatenate(heard), len(samples), parameters)


def speech_spans(p: np.ndarray, threshold: float, low: float, patience: float) -> Iterator[Span]:
    """From a frame that reaches the threshold to where `patience` frames or more are silent; in frames."""
    start = quiet = None  # where speech began; where it may have ended
    for i, value in enumerate(p.tolist()):
        if value >= threshold:
            start, quiet = i if start is None else start, None
        elif start is not None and (quiet is not None or value < low):
            quiet = i if quiet is None else quiet
            if i + 1 - quiet >= patience:
                yield start, quiet
                start = quiet = None
    if start is not None:
        yield start, len(p) if quiet is None else quiet


def cut(p: np.ndarray, a: int, b: int, longest: int, low: float) -> list[Span]:
    """The frames from a to b in pieces of at most `longest`, cut in the middle of pauses.

    Of the pauses in the second half of what is allowed the longest is taken, the last of equals; where there is none,
    one in the first half, else the frame where speech is least probable. No short rest is left over.
    """
    pieces: list[Span] = []
    while b - a > longest:
        most = a + min(longest, b - a - longest // 4)
        middle = a + (most - a) // 2
        at = _pause(p, middle, most, low) or _pause(p, a + 1, middle, low) or middle + int(np.argmin(p[middle:most]))
        at = max(at, a + 1)
        pieces.append((a, at))
        a = at
    return [*pieces, (a, b)]


def _pause(p: np.ndarray, a: int, b: int, low: float) -> int | None:
    """The middle of the longest pause between two frames."""
    best: Span | None = None
    start = None
    for i, silent in enumerate([*(p[a:b] < low).tolist(), False], a):
        if silent:
            start = i if start is None else start
        elif start is not None:
            if i - start >= PAUSE and (best is None or i - start >= best[1] - best[0]):
                best = start, i
            start = None
    return None if best is None else (best[0] + best[1]) // 2


def _padded(spans: Sequence[Span], pad: int, length: int) -> list[Span]:
    """Each span longer by `pad` on both sides; two that would meet share what is between them."""
    gaps = [b[0] - a[1] for a, b in pairwise(spans)]
    left = [spans[0][0], *(gap - gap // 2 for gap in gaps)] if spans else []
    right = [*(gap // 2 for gap in gaps), length - spans[-1][1]] if spans else []
    return [
        (start - min(pad, before), stop + min(pad, after))
        for (start, stop), before, after in zip(spans, left, right, strict=True)
    ]


def _frames(milliseconds: float) -> float:
    return max(1.0, milliseconds * RATE / 1000 / FRAME)
