"""A confusion network: what all hypotheses say at each place of one of them, the pivot.

Every hypothesis is aligned with the pivot with as few word edits as possible. Its weight goes to the word that it has
at each word of the pivot (a slot; none where it leaves the word out), and to what it has between two words of the pivot
(a gap; mostly nothing).

Words that differ in case or in the punctuation around them are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import kaldialign

_EDGES = re.compile(r"^\W+|\W+$")  # punctuation around a word
_NONE = " "  # stands for "no word" in an alignment; a word holds no space

_Place = dict[
    str, tuple[float, float, str]
]  # folded words -> their mass, the greatest single weight, how it writes them


@dataclass(frozen=True)
class Alternative:
    """What some hypotheses say at one place."""

    word: str  # as the weightiest of them writes it; empty: nothing; in a gap several words may stand
    probability: float  # their share


@dataclass(frozen=True)
class Network:
    """The places of the pivot, and what other hypotheses have there; alternatives are sorted by their probability."""

    support: tuple[float, ...]  # for each word of the pivot: the share of the hypotheses that have it
    slots: tuple[tuple[Alternative, ...], ...]  # and what the others have in its place
    gaps: tuple[tuple[Alternative, ...], ...]  # what some have before each word, and after the last: one more


def folded(word: str) -> str:
    """The word as it is compared: lower case, without the punctuation around it, unless it is nothing else."""
    word = word.strip().lower()
    return _EDGES.sub("", word) or word


def network(pivot: Sequence[str], others: Iterable[Sequence[str]], weights: Iterable[float]) -> Network:
    """The network of some hypotheses, each a sequence of words; the pivot counts only where it is among them."""
    own = [folded(word) for word in pivot]
    slots: list[_Place] = [{} for _ in own]
    gaps: list[_Place] = [{} for _ in range(len(own) + 1)]
    for words, weight in zip(others, weights, strict=True):
        found, inserted = _placed(pivot, words)
        for place, said in [*zip(slots, found, strict=True), *zip(gaps, inserted, strict=True)]:
            name = " ".join(map(folded, said))
            mass, top, shown = place.get(name, (0.0, 0.0, ""))
            if weight > top:
                top, shown = weight, " ".join(word.strip() for word in said)
            place[name] = (mass + weight, top, shown)
    support = tuple(slot.pop(word)[0] if word in slot else 0.0 for slot, word in zip(slots, own, strict=True))
    for gap in gaps:
        gap.pop("", None)  # nothing between two words of the pivot is what the pivot says
    return Network(support, tuple(map(_sorted, slots)), tuple(map(_sorted, gaps)))


def aligned(one: Sequence[str], other: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Both texts word by word, with as few edits as possible; None stands for no word."""
    ours, theirs = iter(one), iter(other)
    for a, b in kaldialign.align([folded(word) for word in one], [folded(word) for word in other], _NONE):
        yield (None if a == _NONE else next(ours)), (None if b == _NONE else next(theirs))


def _placed(pivot: Sequence[str], words: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """The words of a hypothesis at each word of the pivot (one or none), and in each gap (any number)."""
    found: list[list[str]] = []
    inserted: list[list[str]] = [[]]
    for ours, theirs in aligned(pivot, words):
        said = [] if theirs is None else [theirs]
        if ours is None:
            inserted[-1] += said
        else:
            found.append(said)
            inserted.append([])
    return found, inserted


def _sorted(place: _Place) -> tuple[Alternative, ...]:
    some = [Alternative(shown, mass) for mass, _, shown in place.values()]
    return tuple(sorted(some, key=lambda a: -a.probability))
