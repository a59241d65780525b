"""What is known about each word of a window's answer: how sure the model was, and which hypotheses agree.

Adapting makes a model sure of whatever it says, so an adapted model's own entropy says little: doubt is the entropy of
the source model at the same place. Beams are weighted as `decode="mbr"` does: by their posterior among the beams of one
search, and each search counts the same. Samples at a temperature over 0 count equally.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sharpen.method.consensus import posterior
from sharpen.method.network import Network, aligned, folded, network
from sharpen.method.tree import Hypothesis
from sharpen.models.speech import TokenText
from sharpen.speech.answers import Decoded
from sharpen.speech.longform import Segment, spoken_before
from sharpen.speech.words import Spelling, mean_probability, spellings

Weighted = tuple[Hypothesis, float]


@dataclass(frozen=True)
class Evidence:
    """What is known about one word. NaN where nothing is: a greedy search has no other beams to agree."""

    word: str
    probability: float  # mean over its tokens without punctuation, as Whisper's
    logprob: float  # of all these tokens together
    entropy: float  # mean over these tokens, in nats
    doubt: float  # the highest entropy over these tokens, or over the source's where the model was adapted
    support: float  # share of the source's beams that have this word here
    adapted: float  # share of the adapted model's


@dataclass(frozen=True)
class WindowEvidence:
    """What is known about the words of a window, segment by segment."""

    words: tuple[tuple[Evidence, ...], ...]
    network: Network  # of all beams together; its pivot is the words of all segments
    stable: float  # share of the words that the source's answer has as well; NaN where nothing was adapted


def pools(decoded: Decoded) -> list[list[Weighted]]:
    """The hypotheses behind an answer with their weights: the source's, and the adapted model's where it stands."""
    how = decoded.adaptation
    if how is None:
        return [_weighted(decoded)]
    adapted = how.result is not how.source and not how.refused
    return [_weighted(one) for one in ([how.source, how.result] if adapted else [how.source])]


def _weighted(decoded: Decoded) -> list[Weighted]:
    beams = [y for y in decoded.beams if math.isfinite(y.logprob)]
    if not beams:
        return []
    equal = decoded.temperature > 0
    weights = [1 / len(beams)] * len(beams) if equal else posterior([y.logprob for y in beams])
    return list(zip(beams, weights, strict=True))


def together(found: Sequence[Sequence[Weighted]]) -> list[Weighted]:
    """The hypotheses of all searches, each search counting the same."""
    known = [pool for pool in found if pool]
    return [(y, weight / len(known)) for pool in known for y, weight in pool]


def evidence(
    tokenizer: TokenText, made: Sequence[Segment], decoded: Decoded, until: float, *, spaced: bool
) -> WindowEvidence:
    """What is known about the words of these segments of a window, which is used up to `until` seconds.

    `spaced`: the text has spaces between its words; else every character is a word.
    """
    spelt = [spellings(tokenizer, segment.tokens, spaced=spaced) for segment in made]
    pivot = [word.word for some in spelt for word in some]

    def compared(some: Sequence[Weighted]) -> Network:
        texts = [[word.word for word, _ in _words(tokenizer, y.content, until, spaced)] for y, _ in some]
        return network(pivot, texts, [weight for _, weight in some])

    found = pools(decoded)
    adapted = len(found) > 1
    unknown = (math.nan,) * len(pivot)
    support = compared(found[0]).support if adapted or len(found[0]) > 1 else unknown
    after = compared(found[1]).support if adapted and len(found[1]) > 1 else unknown
    source = _source(tokenizer, pivot, decoded, until, spaced) if adapted else [(math.nan, math.nan)] * len(pivot)
    judged, at = list[tuple[Evidence, ...]](), 0
    for segment, some in zip(made, spelt, strict=True):
        numbers = zip(some, support[at:], after[at:], source[at:], strict=False)
        judged.append(tuple(_evidence(segment, word, s, a, doubt) for word, s, a, (_, doubt) in numbers))
        at += len(some)
    stable = math.fsum(kept for kept, _ in source) / len(source) if source else math.nan
    return WindowEvidence(tuple(judged), compared(together(found)), stable)


def _words(
    tokenizer: TokenText, tokens: Sequence[int], until: float, spaced: bool
) -> Iterator[tuple[Spelling, list[int]]]:
    """The words of an output up to `until`, and where in it their tokens without punctuation are."""
    for part in spoken_before(tokenizer, tokens, until):
        for word in spellings(tokenizer, [tokens[i] for i in part], spaced=spaced):
            yield word, [part[i] for i in word.letters]


def _source(
    tokenizer: TokenText, pivot: Sequence[str], decoded: Decoded, until: float, spaced: bool
) -> list[tuple[float, float]]:
    """For each word of an adapted model: whether the source's answer has it (1 or 0), and how much it doubts there.

    Where the source has no word, its doubt is that of its most doubtful word beside the place.
    """
    assert decoded.adaptation is not None
    before = decoded.adaptation.source
    words = list(_words(tokenizer, before.tokens, until, spaced))
    doubts = [max(before.entropies[i] for i in letters) for _, letters in words]
    found, i = list[tuple[float, float]](), 0
    for ours, theirs in aligned(pivot, [word.word for word, _ in words]):
        near = doubts[i : i + 1] if theirs is not None else doubts[max(0, i - 1) : i + 1]
        i += theirs is not None
        if ours is not None:
            kept = theirs is not None and folded(ours) == folded(theirs)
            found.append((float(kept), max(near, default=math.nan)))
    return found


def _evidence(segment: Segment, word: Spelling, support: float, adapted: float, doubt: float) -> Evidence:
    letters = slice(word.letters.start, word.letters.stop)
    logprobs, entropies = segment.logprobs[letters], segment.entropies[letters]
    return Evidence(
        word=word.word,
        probability=mean_probability(logprobs),
        logprob=math.fsum(logprobs),
        entropy=math.fsum(entropies) / len(entropies),
        doubt=max(entropies) if math.isnan(doubt) else doubt,
        support=support,
        adapted=adapted,
    )
