"""Recordings longer than a window: where the next window starts, and the segments of a decoded window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sharpen.method.guard import compression_ratio
from sharpen.models.speech import TokenText
from sharpen.speech.answers import Decoded
from sharpen.speech.words import TimedTokens, Word, words

SHORTEST = 0.5  # seconds; a shorter stretch is too short for a word
PAUSE = 0.3  # seconds; as long as a pause between words must be to end a window in it


@dataclass(frozen=True)
class Segment:
    """A part of the transcript with its times; the first ten fields have Whisper's names."""

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
    words: tuple[Word, ...] = ()  # with word_timestamps or confidence; timed, they begin and end with the segment
    confidence: float = math.nan  # mean over its words
    expected_wer: float = math.nan  # the word error rate that its words and the beams let expect
    unreliable: str = ""  # why not to trust it at all (sharpen.speech.confidence), or nothing


def settle(tokenizer: TokenText, decoded: Decoded, duration: float, *, last: bool) -> tuple[Decoded, float]:
    """The part of a window's output to keep, and after how many seconds the next window starts: Whisper's own rule.

    If the output ends with the end of a segment, all of it is kept and the next window starts after this one. Otherwise
    it is cut after the last segment that was closed before another was opened, and the next window starts there: so the
    end of a window splits no word. The next window starts at least SHORTEST seconds later. In the `last` window of a
    recording, a rest shorter than SHORTEST is not decoded again.
    """
    times = [tokenizer.time(token) for token in decoded.tokens]
    stamped = [time is not None for time in times]
    pairs = [i for i in range(len(stamped) - 1) if stamped[i] and stamped[i + 1]]
    if not pairs or stamped[-2:] == [False, True]:
        return decoded, duration
    n = pairs[-1] + 1
    consumed = min(duration, times[n - 1] or 0.0)
    if consumed < SHORTEST or (last and duration - consumed < SHORTEST):
        return decoded, duration
    cut = {name: getattr(decoded, name)[:n] for name in ("tokens", "logprobs", "entropies", "spans")}
    return replace(decoded, **cut), consumed


def quiet_end(samples: np.ndarray, rate: int) -> int:
    """Where to end a window that has more speech behind it: in the middle of the quietest PAUSE of its last third."""
    start, width = 2 * len(samples) // 3, round(PAUSE * rate)
    energy = np.concatenate([[0.0], np.cumsum(samples[start:].astype(np.float64) ** 2)])
    sums = energy[width:] - energy[:-width]  # of each stretch of that width
    return start + int(sums.argmin()) + width // 2 if len(sums) else len(samples)


def segments(
    tokenizer: TokenText, decoded: Decoded, offset: float, duration: float, first_id: int = 0
) -> list[Segment]:
    """The segments of a window that starts at `offset` seconds, by its timestamps; without any it is one segment."""
    made: list[Segment] = []
    for start, end, indices in _spoken(tokenizer, decoded, duration):
        tokens = tuple(decoded.tokens[i] for i in indices)
        text = tokenizer.decode(tokens)
        made.append(
            Segment(
                id=first_id + len(made),
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
    return made


def with_words(
    tokenizer: TokenText,
    made: Sequence[Segment],
    decoded: Decoded,
    offset: float,
    duration: float,
    *,
    spaced: bool,
    last: float,
) -> list[Segment]:
    """The segments of that window with their words, from the first of which to the last they reach then.

    `spaced`: the text has spaces between its words. `last`: when the speech before this window ended.
    """
    parts = [
        TimedTokens(start, end, segment.tokens, [decoded.spans[i] for i in indices], segment.logprobs)
        for segment, (start, end, indices) in zip(made, _spoken(tokenizer, decoded, duration), strict=True)
    ]
    found = []
    said = words(tokenizer, parts, spaced=spaced, end=duration, last=last - offset)
    for segment, some in zip(made, said, strict=True):
        moved = tuple(replace(w, start=round(offset + w.start, 3), end=round(offset + w.end, 3)) for w in some)
        found.append(replace(segment, start=moved[0].start, end=moved[-1].end, words=moved))
    return found


def spoken_before(tokenizer: TokenText, tokens: Sequence[int], until: float) -> list[list[int]]:
    """Positions of the text tokens of a window's output, part by part, of the parts that begin before `until`."""
    return [indices for start, _, indices in _pieces(tokenizer, tuple(tokens), math.inf) if start < until]


def _spoken(tokenizer: TokenText, decoded: Decoded, duration: float) -> list[tuple[float, float, list[int]]]:
    """The parts between timestamps that have text. Whisper drops those of no duration: they are hallucinated."""
    pieces = _pieces(tokenizer, decoded.tokens, duration)
    texts = [tokenizer.decode([decoded.tokens[i] for i in indices]) for _, _, indices in pieces]
    return [piece for piece, text in zip(pieces, texts, strict=True) if text.strip() and piece[0] < piece[1]]


def _pieces(tokenizer: TokenText, tokens: tuple[int, ...], duration: float) -> list[tuple[float, float, list[int]]]:
    """(start, end, positions of the text tokens) of each part between timestamps, within the window."""
    pieces: list[tuple[float, float, list[int]]] = []
    start, indices = 0.0, list[int]()
    for i, token in enumerate(tokens):
        time = tokenizer.time(token)
        if time is None:
            indices.append(i)
            continue
        time = min(duration, time)
        if indices:
            pieces.append((start, max(start, time), indices))
        start, indices = time, []
    if indices:  # cut by the length limit, or decoded without timestamps
        pieces.append((start, duration, indices))
    return pieces
