"""Two transcripts of the same speech aligned word by word, for display."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

import kaldialign

from sharpen.method.guard import UNSPACED
from sharpen.terminal import clusters

GAP = " "  # stands for "no word" in an alignment; a word holds no space
_UNSPACED = re.compile(f"[{UNSPACED}]")


@dataclass(frozen=True)
class Stretch:
    """Consecutive words that both texts share, or that differ; each word keeps the spaces that follow it."""

    source: tuple[str, ...]
    adapted: tuple[str, ...]
    changed: bool


def stretches(source: str, adapted: str) -> list[Stretch]:
    """The two texts aligned word by word with as few edits as possible; in scripts without spaces, by character."""
    a, b = split_words(source), split_words(adapted)
    pairs = kaldialign.align([w.strip() for w in a], [w.strip() for w in b], GAP)
    aligned = []
    i = j = 0
    for changed, group in groupby(pairs, key=lambda pair: pair[0] != pair[1]):
        run = list(group)
        k, m = i + sum(left != GAP for left, _ in run), j + sum(right != GAP for _, right in run)
        aligned.append(Stretch(tuple(a[i:k]), tuple(b[j:m]), changed))
        i, j = k, m
    return aligned


def split_words(text: str) -> list[str]:
    """Words with the spaces behind them; in scripts without spaces, characters with their combining marks."""
    words: list[str] = []
    open_word = False  # the last word may grow by another letter
    for cluster in clusters(text.lstrip()):
        if cluster.isspace():
            words[-1] += cluster
            open_word = False
        elif _UNSPACED.match(cluster):
            words.append(cluster)
            open_word = False
        elif open_word:
            words[-1] += cluster
        else:
            words.append(cluster)
            open_word = True
    return words
