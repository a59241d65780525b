"""Recordings of any length: where to cut them into windows, and how a decoded window becomes segments."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sharpen.models.timestamps import SECONDS_PER_TIMESTAMP
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.speech.decoding import Decoded, compression_ratio

FRAME = 0.02  # seconds over which loudness is measured
PAUSE = 0.3  # seconds; the quietest stretch of this length is where a window ends
EARLIEST = 0.6  # of a window's length: a cut is looked for in the rest of it
SHORTEST = 1.0  # seconds that a window must move on by
TAIL = 1.0  # seconds; a shorter rest after the last word is not looked at again


@dataclass(frozen=True)
class Segment:
    """A stretch of the transcript with its times; the names of the first ten fields are Whisper's."""

    id: int
    seek: int  # the window's start, in hops of 10 ms
    start: float  # seconds from the start of the recording
    end: float
    text: str
    tokens: tuple[int, ...]  # text tokens
    temperature: float
    avg_logprob: float  # of the whole window, as Whisper reports it
    compression_ratio: float
    no_speech_prob: float
    logprobs: tuple[float, ...]  # log pi of each token
    entropies: tuple[float, ...]  # Ent(pi) where each token was chosen, in nats

    @property
    def avg_entropy(self) -> float:
        """Mean entropy per token, in nats: how undecided the model was."""
        return sum(self.entropies) / max(1, len(self.entropies))


def window_end(samples: np.ndarray, start: int, rate: int, longest: float) -> int:
    """The end of a window of at most `longest` seconds from `start`: the recording's, or its quietest late moment."""
    limit, frame = round(longest * rate), round(FRAME * rate)
    if len(samples) - start <= limit:
        return len(samples)
    first = start + round(EARLIEST * limit)
    stretch = samples[first : start + limit]
    n = len(stretch) // frame
    energy = np.square(stretch[: n * frame].reshape(n, frame), dtype=np.float64).sum(1)  # (n,)
    width = round(PAUSE / FRAME)
    loudness = np.convolve(energy, np.ones(width), mode="valid")
    quietest = len(loudness) - 1 - int(loudness[::-1].argmin())  # the latest of equals: fewer windows
    return first + (quietest + width // 2) * frame


def settle(tokenizer: WhisperTokenizer, decoded: Decoded, duration: float, *, last: bool) -> tuple[Decoded, float]:
    """What of a window's output stands, and after how many seconds the next window starts.

    The model sometimes stops before the window does. Then the next window starts where the last closed segment ended,
    and a segment that was opened and not closed is left to it. The recording's `last` window always stands whole.
    """
    begin = tokenizer.timestamp_begin
    stamps = [i for i, token in enumerate(decoded.tokens) if token >= begin]
    if last or len(stamps) < 2:
        return decoded, duration
    closing = stamps[-1]
    if stamps[-2] == closing - 1:
        closing -= 1  # two in a row: the second opened a segment that was never closed
    elif closing != len(decoded.tokens) - 1:
        closing = stamps[-2]
    consumed = (decoded.tokens[closing] - begin) * SECONDS_PER_TIMESTAMP
    if consumed < SHORTEST or duration - consumed < TAIL:
        return decoded, duration
    n = closing + 1
    kept = replace(decoded, tokens=decoded.tokens[:n], logprobs=decoded.logprobs[:n], entropies=decoded.entropies[:n])
    return kept, consumed


def segments(
    tokenizer: WhisperTokenizer, decoded: Decoded, offset: float, duration: float, first_id: int = 0
) -> list[Segment]:
    """Divides a window that starts at `offset` seconds by its timestamps; without any it is one segment."""
    found: list[Segment] = []
    for start, end, indices in _pieces(tokenizer, decoded.tokens, duration):
        tokens = tuple(decoded.tokens[i] for i in indices)
        text = tokenizer.decode(tokens)
        if not text.strip():
            continue
        found.append(
            Segment(
                id=first_id + len(found),
                seek=round(offset * 100),
                start=round(offset + start, 3),
                end=round(offset + end, 3),
                text=text,
                tokens=tokens,
                temperature=decoded.temperature,
                avg_logprob=decoded.avg_logprob,
                compression_ratio=compression_ratio(text),
                no_speech_prob=decoded.no_speech_prob,
                logprobs=tuple(decoded.logprobs[i] for i in indices),
                entropies=tuple(decoded.entropies[i] for i in indices),
            )
        )
    return found


def _pieces(
    tokenizer: WhisperTokenizer, tokens: tuple[int, ...], duration: float
) -> list[tuple[float, float, list[int]]]:
    """(start, end, positions of the text tokens) of each stretch between timestamps, within the window."""
    pieces: list[tuple[float, float, list[int]]] = []
    start, indices = 0.0, list[int]()
    for i, token in enumerate(tokens):
        if token < tokenizer.timestamp_begin:
            indices.append(i)
            continue
        time = min(duration, (token - tokenizer.timestamp_begin) * SECONDS_PER_TIMESTAMP)
        if indices:
            pieces.append((start, max(start, time), indices))
        start, indices = time, []
    if indices:  # cut by the length limit, or decoded without timestamps
        pieces.append((start, duration, indices))
    return pieces
