"""Two transcripts of the same speech aligned word by word, for display: what they share and where they part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

import kaldialign

from sharpen.method.guard import UNSPACED

GAP = " "  # stands for "no word" in an alignment; a word holds no space
_WORD = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]+\s*")


@dataclass(frozen=True)
class Stretch:
    """A run of words that both texts share, or that one has in place of the other's; spaces stay with their words."""

    source: tuple[str, ...]
    adapted: tuple[str, ...]
    changed: bool


def stretches(source: str, adapted: str) -> list[Stretch]:
    """Two texts aligned word by word, with as few edits as possible."""
    a, b = _WORD.findall(source), _WORD.findall(adapted)
    pairs = kaldialign.align([w.strip() for w in a], [w.strip() for w in b], GAP)
    found = []
    i = j = 0
    for changed, group in groupby(pairs, key=lambda pair: pair[0] != pair[1]):
        run = list(group)
        k, m = i + sum(left != GAP for left, _ in run), j + sum(right != GAP for _, right in run)
        found.append(Stretch(tuple(a[i:k]), tuple(b[j:m]), changed))
        i, j = k, m
    return found
