"""Words and their times, by the method of openai-whisper: where the model listened while it wrote each token.

Tokens are grouped to words and get the segment of audio that dynamic time warping gives them. Punctuation joins its
word, without its time: a full stop or a comma has the pause after the word. The rules and numbers that shorten a word
which has swallowed a pause are openai-whisper's own (release 20250625).
"""

from __future__ import annotations

import codecs
import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from sharpen.method.network import Alternative
from sharpen.models.speech import Attention, TokenText
from sharpen.speech.warping import onsets

BEFORE = "\"'“¿([{-"  # punctuation that belongs to the next word
AFTER = "\"'.。,，!！?？:：”)]}、"  # and to the word before
ENDS = ".。!！?？"  # of a sentence
LONGEST_USUAL = 0.7  # seconds; the median word of a window counts as no longer than this
TOLERANCE = 0.5  # seconds by which a word may reach out of its segment

Span = tuple[float, float]  # start and end, in seconds


@dataclass(frozen=True)
class Word:
    """A word of a transcript. The words of a segment, joined, are its text: a word begins with its space."""

    word: str  # with its punctuation
    start: float  # seconds from the start of the recording; NaN without word_timestamps
    end: float
    probability: float  # mean over its tokens, without punctuation
    confidence: float = math.nan  # the chance that it is right (sharpen.speech.confidence)
    alternatives: tuple[Alternative, ...] = ()  # what other hypotheses have in its place; an empty word: nothing
    before: tuple[Alternative, ...] = ()  # words that other hypotheses have between the last word and this one
    after: tuple[Alternative, ...] = ()  # and behind it, where it is the last word of a window


@dataclass(frozen=True)
class Spelling:
    """Which tokens write a word."""

    word: str  # with its punctuation
    tokens: range  # positions in the text
    letters: range  # those without punctuation


@dataclass(frozen=True)
class TimedTokens:
    """The text tokens of one segment, with its times in the window."""

    start: float
    end: float
    tokens: Sequence[int]
    spans: Sequence[Span]  # of each token
    logprobs: Sequence[float]


def token_spans(tokenizer: TokenText, tokens: Sequence[int], attention: Attention) -> tuple[Span, ...]:
    """The time of each token; a timestamp has the time at which the text after it begins."""
    starts = attention.times[onsets(attention.weights)[1:]].tolist()  # of the text tokens, and of the end
    spans, i = list[Span](), 0
    for token in tokens:
        after = i + 1 if tokenizer.time(token) is None else i
        spans.append((starts[i], starts[after]))
        i = after
    return tuple(spans)


def words(
    tokenizer: TokenText, segments: Sequence[TimedTokens], *, spaced: bool, end: float, last: float
) -> list[tuple[Word, ...]]:
    """The words of each segment of one window, with times in the window.

    `spaced`: the language has spaces between its words; else every character is a word. No word lies after `end`.
    `last` is when the speech before this window ended, and may be negative.
    """
    raw = [list(_grouped(tokenizer, segment, spaced, end)) for segment in segments]
    durations = [word.end - word.start for some in raw for word in some if word.end > word.start]
    usual = min(LONGEST_USUAL, median(durations)) if durations else 0.0
    found = []
    for segment, some in zip(segments, _after_sentences(raw, 2 * usual), strict=True):
        merged = _after_pause(_merged(some), last, usual)
        merged = _within(merged, segment, usual)
        last = merged[-1].end if merged else last
        found.append(tuple(merged))
    return found


def spellings(tokenizer: TokenText, tokens: Sequence[int], *, spaced: bool) -> list[Spelling]:
    """The words of text tokens, as `words` has them."""
    parts = list(_parts(tokenizer, tokens, spaced))
    texts = [text for text, _ in parts]
    return [
        Spelling("".join(texts[a : b + 1]), range(parts[a][1].start, parts[b][1].stop), parts[i][1])
        for a, i, b in _joined(texts)
    ]


def _grouped(tokenizer: TokenText, segment: TimedTokens, spaced: bool, end: float) -> Iterator[Word]:
    """The words of a segment, punctuation still apart."""
    for text, tokens in _parts(tokenizer, segment.tokens, spaced):
        spans = segment.spans[tokens.start : tokens.stop]
        probability = mean_probability(segment.logprobs[tokens.start : tokens.stop])
        yield Word(text, min(end, spans[0][0]), min(end, spans[-1][1]), probability)


def mean_probability(logprobs: Sequence[float]) -> float:
    return math.fsum(map(math.exp, logprobs)) / len(logprobs)


def _parts(tokenizer: TokenText, tokens: Sequence[int], spaced: bool) -> Iterator[tuple[str, range]]:
    """Words and punctuation apart from each other, and the positions of their tokens."""
    text, first, stop = "", 0, 0
    for piece, count in _characters(tokenizer, tokens):
        joins = spaced and not piece.startswith(" ") and not _consists_of(piece, string.punctuation)
        if stop and not joins:
            yield text, range(first, stop)
            text, first = "", stop
        text, stop = text + piece, stop + count
    if stop:
        yield text, range(first, stop)


def _characters(tokenizer: TokenText, tokens: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Whole characters: the text of as few tokens as end where a character ends, and how many they are."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, count = "", 0
    for i, token in enumerate(tokens):
        text += decoder.decode(tokenizer.token_bytes(token), final=i == len(tokens) - 1)
        count += 1
        if not decoder.getstate()[0]:
            yield text, count
            text, count = "", 0


def _consists_of(text: str, marks: str) -> bool:
    return bool(text.strip()) and set(text.strip()) <= set(marks)


def _after_sentences(raw: Sequence[Sequence[Word]], longest: float) -> list[list[Word]]:
    """Shortens a full stop, or the first word after one, that is too long: it has swallowed a pause."""
    found: list[list[Word]] = []
    before = None
    for some in raw:
        found.append([])
        for word in some:
            changed = word
            if before is not None and word.end - word.start > longest:
                if _consists_of(word.word, ENDS):
                    changed = replace(word, end=word.start + longest)
                elif _consists_of(before.word, ENDS):
                    changed = replace(word, start=word.end - longest)
            found[-1].append(changed)
            before = word
    return found


def _merged(some: Sequence[Word]) -> list[Word]:
    """Punctuation in its word, whose times and probability stay as they are."""
    texts = [word.word for word in some]
    return [replace(some[i], word="".join(texts[a : b + 1])) for a, i, b in _joined(texts)]


def _joined(texts: Sequence[str]) -> list[tuple[int, int, int]]:
    """Which parts belong together: the number of the first, of the word itself, and of the last."""
    backwards: list[tuple[int, int, int]] = []
    for i in reversed(range(len(texts))):
        if backwards and texts[i].startswith(" ") and _consists_of(texts[i], BEFORE):
            backwards[-1] = (i, *backwards[-1][1:])
        else:
            backwards.append((i, i, i))
    merged: list[tuple[int, int, int]] = []
    for a, i, b in reversed(backwards):
        open_end = bool(merged) and not texts[merged[-1][2]].endswith(" ")
        if open_end and set("".join(texts[a : b + 1])) <= set(AFTER):
            merged[-1] = (*merged[-1][:2], b)
        else:
            merged.append((a, i, b))
    return merged


def _after_pause(some: list[Word], last: float, usual: float) -> list[Word]:
    """Shortens the first words of a segment that have swallowed the pause before them."""
    if not some:
        return some
    longest = 2 * usual
    first, *rest = some
    long = first.end - first.start > longest or (bool(rest) and rest[0].end - first.start > 2 * longest)
    if first.end - last <= 2 * longest or not long:
        return some
    if rest and rest[0].end - rest[0].start > longest:
        boundary = max(rest[0].end / 2, rest[0].end - longest)
        first, rest[0] = replace(first, end=boundary), replace(rest[0], start=boundary)
    return [replace(first, start=max(0.0, first.end - longest)), *rest]


def _within(some: list[Word], segment: TimedTokens, usual: float) -> list[Word]:
    """Clips words to their segment where they reach far out of it."""
    if not some:
        return some
    first = some[0]
    if first.start < segment.start - TOLERANCE and segment.start < first.end:
        some = [replace(first, start=max(first.start, min(first.end - usual, segment.start))), *some[1:]]
    final = some[-1]
    if final.end > segment.end + TOLERANCE and segment.end > final.start:
        some = [*some[:-1], replace(final, end=min(final.end, max(final.start + usual, segment.end)))]
    return some
