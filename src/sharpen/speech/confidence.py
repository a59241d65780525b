"""How far to trust a transcript: the confidence of each word, the expected word error rate, and what is unreliable.

The confidence is a logistic map of a few numbers (`features`). Which of three maps is used depends on what is known:
`greedy` takes only the entropies, `beam` also the beams, `adapted` also those of the adapted model. They were fitted by
scripts/fit_confidence.py on noisy speech that no result is reported on; docs/confidence.md has how well they do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from sharpen.method.guard import COMPRESSION_RATIO, loop
from sharpen.method.guard import words as guard_words
from sharpen.method.network import Alternative, Network, folded
from sharpen.models.speech import TokenText
from sharpen.speech.answers import Decoded
from sharpen.speech.evidence import WindowEvidence, evidence, pools, together
from sharpen.speech.longform import Segment, spoken_before
from sharpen.speech.options import Options
from sharpen.speech.words import Word

LEAST = 0.05  # nats, added before the logarithm of an entropy
STABLE = 0.5  # share of an adapted model's words below which its text has little to do with the source's
SHOWN = 0.01  # alternatives of less probability are left out
CONSTANT = "constant"


@dataclass(frozen=True)
class Reading:
    """One text of a window, and its share of the beams' posterior."""

    text: str
    probability: float


@dataclass(frozen=True)
class WindowReadings:
    """The best texts of a window: first the answer, then the others by their probability."""

    start: float  # seconds
    end: float
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Trust:
    """How far to trust a recording."""

    confidence: float  # mean over its words; NaN where it has none
    expected_wer: float
    unreliable: str  # why, or nothing


def readings(
    tokenizer: TokenText, decoded: Decoded, made: Sequence[Segment], start: float, until: float, most: int
) -> WindowReadings:
    """The best texts of a window that starts at `start` seconds and is used for `until` seconds."""
    answer = "".join(segment.text for segment in made).strip()
    mass: dict[str, float] = {_words(answer): 0.0}  # texts that differ in case and punctuation alone are one
    shown = {_words(answer): answer}
    for y, weight in sorted(together(pools(decoded)), key=lambda pair: -pair[1]):
        parts = spoken_before(tokenizer, y.content, until)
        text = "".join(tokenizer.decode([y.content[i] for i in part]) for part in parts).strip()
        shown.setdefault(_words(text), text)
        mass[_words(text)] = mass.get(_words(text), 0.0) + weight
    own, *others = mass
    best = [own, *sorted(others, key=lambda words: -mass[words])[: most - 1]]
    found = tuple(Reading(shown[words], mass[words]) for words in best)
    return WindowReadings(round(start, 3), round(start + until, 3), found)


def _words(text: str) -> str:
    return " ".join(map(folded, text.split()))


def features(known: WindowEvidence) -> list[dict[str, float]]:
    """The numbers that the maps take, for each word of a window."""
    words = [word for some in known.words for word in some]
    doubts = [math.log(LEAST + word.doubt) for word in words]
    mean = math.log(LEAST + math.fsum(word.doubt for word in words) / max(1, len(words)))
    found = []
    for i, word in enumerate(words):
        near = [*doubts[max(0, i - 1) : i], *doubts[i + 1 : i + 2]] or [doubts[i]]
        numbers = {"doubt": doubts[i], "neighbours": math.fsum(near) / len(near), "window": mean}
        beams = {"support": word.support, "adapted": word.adapted}
        found.append(numbers | {name: value for name, value in beams.items() if not math.isnan(value)})
    return found


def which_map(numbers: Mapping[str, float]) -> str:
    return "adapted" if "adapted" in numbers else "beam" if "support" in numbers else "greedy"


@cache
def fitted() -> Mapping[str, Mapping[str, float]]:
    """The numbers of the maps, and of `unreliable`."""
    text = files("sharpen.speech").joinpath("assets/confidence.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, float]] = json.loads(text)["maps"]
    return found


def word_confidence(numbers: Mapping[str, float]) -> float:
    """The chance that a word with these features is right."""
    weights = fitted()[which_map(numbers)]
    z = weights[CONSTANT] + math.fsum(weight * numbers[name] for name, weight in weights.items() if name != CONSTANT)
    return 1 / (1 + math.exp(-z))


def judged(
    tokenizer: TokenText,
    made: Sequence[Segment],
    decoded: Decoded,
    until: float,
    options: Options,
    *,
    spaced: bool,
) -> list[Segment]:
    """The segments of a window with their words, whose times stay as they are, and with what to trust of them."""
    known = evidence(tokenizer, made, decoded, until, spaced=spaced)
    confidences = [word_confidence(numbers) for numbers in features(known)]
    found, at = [], 0
    for segment, some in zip(made, known.words, strict=True):
        own = segment.words or tuple(Word(word.word, math.nan, math.nan, word.probability) for word in some)
        words = tuple(_trusted(word, confidences[i], known.network, i) for i, word in enumerate(own, at))
        mean = math.fsum(word.confidence for word in words) / len(words)
        wer = expected_wer(words)
        why = unreliable(segment, decoded, known.stable, wer, options)
        found.append(replace(segment, words=words, confidence=mean, expected_wer=wer, unreliable=why))
        at += len(own)
    return found


def _trusted(word: Word, confidence: float, network: Network, i: int) -> Word:
    """The word with its confidence, and what other hypotheses have in its place, before it, and behind the last one."""

    def worth_showing(some: Sequence[Alternative]) -> tuple[Alternative, ...]:
        return tuple(a for a in some if a.probability >= SHOWN)

    return replace(
        word,
        confidence=confidence,
        alternatives=worth_showing(network.slots[i]),
        before=worth_showing(network.gaps[i]),
        after=worth_showing(network.gaps[i + 1]) if i + 1 == len(network.slots) else (),
    )


def expected_wer(words: Sequence[Word]) -> float:
    """Expected errors for each word: words that may be wrong, and words that may be missing between them."""
    wrong = math.fsum(1 - word.confidence for word in words)
    between = math.fsum(a.probability for word in words for a in (*word.before, *word.after))
    missing = fitted()["missing"]
    return (wrong + missing["wrong"] * wrong + missing["between"] * between) / len(words)


def unreliable(segment: Segment, decoded: Decoded, stable: float, wer: float, options: Options) -> str:
    """Why not to trust a segment at all, or nothing."""
    how = decoded.adaptation
    threshold = options.no_speech_threshold
    if threshold is not None and segment.no_speech_prob > threshold:
        return f"silence: the probability of no speech is {segment.no_speech_prob:.2f}"
    phrase = loop(segment.text) or loop(decoded.text)  # it may repeat from segment to segment
    if phrase and phrase.replace(" ", "") in "".join(guard_words(segment.text)):
        return f"loop: {phrase!r} repeats itself"
    ratio = max(segment.compression_ratio, decoded.compression_ratio)
    if ratio > COMPRESSION_RATIO:
        return f"loop: compression ratio {ratio:.1f} is over {COMPRESSION_RATIO}"
    if how is not None and how.refused:
        return f"guard: {how.refused}"
    if stable < STABLE:
        return f"unstable: the source model has {stable:.0%} of the adapted model's words"
    return _doubtful(wer)


def _doubtful(wer: float) -> str:
    return f"doubt: {wer:.0%} of the words are expected to be wrong" if wer > fitted()["unreliable"]["wer"] else ""


def trust(made: Sequence[Segment]) -> Trust:
    """How far to trust all segments together: by their words, and unreliable if most of its words are."""
    words = [max(1, len(segment.text.split())) for segment in made]
    if not made:
        return Trust(math.nan, math.nan, "")
    total = sum(words)
    wer = math.fsum(n * segment.expected_wer for n, segment in zip(words, made, strict=True)) / total
    mean = math.fsum(n * segment.confidence for n, segment in zip(words, made, strict=True)) / total
    doubted = [(n, segment.unreliable) for n, segment in zip(words, made, strict=True) if segment.unreliable]
    most = sum(n for n, _ in doubted) > total / 2
    return Trust(mean, wer, max(doubted)[1] if most else _doubtful(wer))
