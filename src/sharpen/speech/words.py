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
    start: float  # seconds from the start of the recording
    end: float
    probability: float  # mean over its tokens, without punctuation


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


def _grouped(tokenizer: TokenText, segment: TimedTokens, spaced: bool, end: float) -> Iterator[Word]:
    """The words of a segment, punctuation still apart."""
    groups: list[tuple[str, int]] = []  # text, and how many tokens it has
    for text, count in _characters(tokenizer, segment.tokens):
        if groups and spaced and not text.startswith(" ") and not _consists_of(text, string.punctuation):
            groups[-1] = (groups[-1][0] + text, groups[-1][1] + count)
        else:
            groups.append((text, count))
    first = 0
    for text, count in groups:
        spans, logprobs = segment.spans[first : first + count], segment.logprobs[first : first + count]
        probability = math.fsum(map(math.exp, logprobs)) / count
        yield Word(text, min(end, spans[0][0]), min(end, spans[-1][1]), probability)
        first += count


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
    backwards: list[Word] = []
    for word in reversed(some):
        if backwards and word.word.startswith(" ") and _consists_of(word.word, BEFORE):
            backwards[-1] = replace(backwards[-1], word=word.word + backwards[-1].word)
        else:
            backwards.append(word)
    merged: list[Word] = []
    for word in reversed(backwards):
        if merged and not merged[-1].word.endswith(" ") and set(word.word) <= set(AFTER):
            merged[-1] = replace(merged[-1], word=merged[-1].word + word.word)
        else:
            merged.append(word)
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
