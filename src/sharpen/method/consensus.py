"""Minimum Bayes risk: the hypothesis with the fewest expected word errors, if the truth is one of the hypotheses.

The most probable text is right most often as a whole; the text of least risk has the fewest wrong words. A hypothesis
counts by its probability among the others. A beam search finds only the top of the distribution, which is flatter than
these few probabilities say, so they are softened by SOFT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import kaldialign

from sharpen.method.guard import words

_EDGES = re.compile(r"^\W+|\W+$")  # punctuation around a word
SOFT = 2.0  # what log-probabilities are divided by


def posterior(logprobs: Sequence[float], soft: float = SOFT) -> list[float]:
    """The softened probability of each hypothesis among the others."""
    top = max(logprobs, default=0.0)
    weights = [math.exp((value - top) / soft) for value in logprobs]
    return [weight / math.fsum(weights) for weight in weights]


def least_risk(texts: Sequence[str], weights: Sequence[float], candidates: int | None = None) -> int:
    """The number of the text with the fewest expected word errors; of equal ones the weightiest, then the first.

    With `candidates`, one of the first so many texts; the others only weigh.
    """
    mass: dict[tuple[str, ...], float] = {}
    said = [tuple(_EDGES.sub("", word) for word in words(text)) for text in texts]
    for own, weight in zip(said, weights, strict=True):
        mass[own] = mass.get(own, 0.0) + weight
    among = range(len(texts) if candidates is None else candidates)
    eligible = dict.fromkeys(said[i] for i in among)
    risk = {own: math.fsum(weight * _errors(other, own) for other, weight in mass.items()) for own in eligible}
    return min(among, key=lambda i: (risk[said[i]], -mass[said[i]], -weights[i], i))


def _errors(truth: Sequence[str], said: Sequence[str]) -> int:
    total: int = kaldialign.edit_distance(list(truth), list(said))["total"]
    return total
