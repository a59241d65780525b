"""What a page shows beside the numbers of the events: drawings, readings, and the words of an answer.

The drawings are those of the page that `sharpen transcribe --explain` writes.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import kaldialign

from sharpen.explain.alignment import GAP, split_words, stretches
from sharpen.explain.drawing import curve_svg, level, tree_svg
from sharpen.method.consensus import posterior
from sharpen.method.tree import HypothesisTree
from sharpen.models.speech import TokenText
from sharpen.serving.events import SourceTold, StepTold, Told, WindowTold
from sharpen.speech.longform import Segment
from sharpen.speech.writers import as_dict, number

SHOWN = 0.01  # alternatives of less probability are left out
MOST = 6  # alternatives of a word
_EDGES = re.compile(r"^\W+|\W+$")  # punctuation around a word


class Pictures:
    """What there is to see of one recording; its windows follow each other."""

    def __init__(self, tokenizer: TokenText) -> None:
        self.tokenizer = tokenizer
        self._entropies: list[tuple[float, float]] = []  # H_tok and H_seq of the window's steps
        self._searches: list[list[tuple[str, float]]] = []  # what its first and last search found: texts and weights
        self._read = ""  # its most probable text so far

    def of(self, event: Told) -> dict[str, Any]:
        """What to add to the event."""
        if isinstance(event, SourceTold):
            self._entropies, self._searches, self._read = [], [], event.decoded.text
            return self._drawn(event.tree, "Hypotheses of the source model", event.decoded.text)
        if isinstance(event, StepTold):
            self._entropies.append((event.step.H_tok, event.step.H_seq))
            k = len(self._entropies) - 1
            when = "before the first update" if k == 0 else f"after {k} update{'' if k == 1 else 's'}"
            curve = curve_svg([H_tok for H_tok, _ in self._entropies], [H_seq for _, H_seq in self._entropies])
            return {"curve": curve, **self._drawn(event.step.tree, f"Hypotheses {when}")}
        if isinstance(event, WindowTold):
            found = self._drawn(event.tree, "Hypotheses of the adapted model", event.adapted)
            others = [(text, weight / len(self._searches)) for some in self._searches for text, weight in some]
            return {**found, "changes": changes(event.source, event.segments, self.tokenizer, others)}
        return {}

    def _drawn(self, tree: HypothesisTree | None, title: str, text: str = "") -> dict[str, Any]:
        """The drawing of the hypotheses, and their text, or the best of them, beside that of the drawing before."""
        if tree is None or not tree.hypotheses:
            return {}
        self._searches = [*self._searches[:1], self._weighted(tree)]
        best = max(tree.hypotheses, key=lambda y: -math.inf if math.isnan(y.logprob) else y.logprob / len(y))
        text, before = text or self.tokenizer.decode(best.content).strip(), self._read
        self._read = text
        reading = [
            {"before": "".join(part.source), "after": "".join(part.adapted), "changed": part.changed}
            for part in stretches(before, text)
        ]
        return {"title": title, "drawing": tree_svg(tree, self.tokenizer.decode, title), "reading": reading}

    def _weighted(self, tree: HypothesisTree) -> list[tuple[str, float]]:
        """The texts of a search, and how probable each is among them."""
        known = {y.tokens: y for y in tree.hypotheses if math.isfinite(y.logprob)}.values()
        weights = posterior([y.logprob for y in known]) if known else []
        return [(self.tokenizer.decode(y.content).strip(), weight) for y, weight in zip(known, weights, strict=True)]


def changes(
    source: str, segments: Sequence[Segment], tokenizer: TokenText, others: Sequence[tuple[str, float]] = ()
) -> list[dict[str, Any]]:
    """The answer of a window beside the source's text: stretches of words, and what the source has in their place.

    A word has what the JSON of `sharpen transcribe` says about it, and also the highest entropy of its tokens, the
    colour of that, and what `others`, texts with their weights, say in its place.
    """
    words = [word for segment in segments for word in _words(segment, tokenizer)]
    starts = list(accumulate((len(word["word"]) for word in words), initial=0))
    starts = [at + len(word["word"]) - len(word["word"].lstrip()) for at, word in zip(starts, words, strict=False)]
    text = "".join(word["word"] for word in words)
    for word, said in zip(words, _alternatives(text, starts, others), strict=True):
        word.setdefault("alternatives", said)
    found = []
    end = len(text) - len(text.lstrip())
    for part in stretches(source, text):
        begin, end = end, end + len("".join(part.adapted))
        inside = [word for at, word in zip(starts, words, strict=True) if begin <= at < end]
        found.append({"source": "".join(part.source), "changed": part.changed, "words": inside})
    return found


def _words(segment: Segment, tokenizer: TokenText) -> Iterator[dict[str, Any]]:
    """The words of a segment: those with times where there are any, else what stands between spaces."""
    words = as_dict(segment).get("words") or [{"word": word} for word in re.findall(r"\s*\S+", segment.text)]
    ends = list(accumulate(len(tokenizer.token_bytes(token)) for token in segment.tokens))
    begin = first = 0
    for word in words:
        end = begin + len(word["word"].encode())
        last = first
        while last < len(ends) and ends[last] <= end:
            last += 1
        entropy = max(segment.entropies[first:last], default=math.nan)
        yield {**word, "entropy": number(entropy, 4), "level": level(entropy)}
        begin, first = end, last


def _alternatives(text: str, starts: Sequence[int], others: Sequence[tuple[str, float]]) -> list[list[dict[str, Any]]]:
    """What other texts have in place of the words of `text` that begin at `starts`; an empty word: nothing."""
    found: list[dict[str, float]] = [defaultdict(float) for _ in starts]
    shown: dict[str, str] = {}
    for other, weight in others:
        for at, theirs in _in_place(text, other):
            name = _folded(theirs)
            shown.setdefault(name, theirs.strip())
            found[max(0, bisect_right(starts, at) - 1)][name] += weight
    return [
        [
            {"word": shown[word], "probability": number(weight, 4)}
            for word, weight in sorted(said.items(), key=lambda pair: -pair[1])[:MOST]
            if weight >= SHOWN
        ]
        for said in found
    ]


def _in_place(text: str, other: str) -> list[tuple[int, str]]:
    """Where the other text has something else, whatever the case and the punctuation: the place in `text`, and what."""
    ours, theirs = split_words(text), split_words(other)
    pairs = kaldialign.align([_folded(word) for word in ours], [_folded(word) for word in theirs], GAP)
    found: list[tuple[int, str]] = []
    at, next_word, same = len(text) - len(text.lstrip()), iter(theirs), True
    for our, their in pairs:
        said = "" if their == GAP else next(next_word)
        if our == GAP:
            if not same:  # more words than ours have, in the place of the last of them
                found[-1] = (found[-1][0], found[-1][1] + said)
            continue
        same = our == their
        found += [] if same else [(at, said)]
        at += len(ours.pop(0))
    return found


def _folded(word: str) -> str:
    """The word as it is compared: lower case, without the punctuation around it, unless it is nothing else."""
    word = " ".join(word.lower().split())
    return " ".join(_EDGES.sub("", one) for one in word.split()).strip() or word
