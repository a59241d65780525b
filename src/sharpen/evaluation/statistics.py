"""What error counts say about a method, and how surely: rates with intervals, paired differences, spread over seeds.

Intervals are percentile bootstraps over what was drawn independently: speakers where every speaker is known, else
utterances. The rate of several domains is the mean of their rates, each being all errors over all reference words.
Domains that share speakers or utterances (one recording under ten noises) are resampled together, others apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sharpen.errors import SharpenError

RESAMPLES = 10_000
TAIL = 0.025  # on either side: 95 % intervals
SEED = 0
BLOCK = 4_000_000  # weights held at once

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Item:
    """What one utterance adds to a rate."""

    domain: str
    id: str
    speaker: str  # empty where unknown
    errors: float  # mean over the seeds
    words: int  # of its reference


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval."""

    value: float
    low: float  # not a number, as `high`, where a domain has a single unit: nothing can be resampled there
    high: float
    unit: str  # what was resampled: speakers or utterances
    units: int  # how many of them


@dataclass(frozen=True)
class Comparison:
    """A first method against a second one on the utterances that both have."""

    difference: Interval  # of the rates, first minus second: below zero, the first is better
    better: float  # share of the resamples in which the first is better; a tie counts half; may be not a number
    helped: int  # utterances on which the first makes fewer errors
    hurt: int
    unchanged: int

    @property
    def utterances(self) -> int:
        return self.helped + self.hurt + self.unchanged


@dataclass(frozen=True)
class Spread:
    """One number for each seed, seen together."""

    mean: float
    deviation: float  # standard deviation over the seeds, with n - 1
    seeds: int


def rate(items: Sequence[Item], *, resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """The error rate of the items, with its interval."""
    value, draws, unit, units = _bootstrap(items, resamples, seed)
    return _interval(value, draws, unit, units)


def compare(
    first: Sequence[Item], second: Sequence[Item], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Comparison | None:
    """The paired comparison; None where the two share no utterance."""
    others = {(item.domain, item.id): item for item in second}
    pairs = [(item, others[item.domain, item.id]) for item in first if (item.domain, item.id) in others]
    if not pairs:
        return None
    for a, b in pairs:
        if a.words != b.words:
            raise SharpenError(
                f"utterance {a.id!r} has {a.words} reference words in one result and {b.words} in the other: "
                "compare results with the same references and the same normaliser"
            )
    change = [Item(a.domain, a.id, a.speaker, a.errors - b.errors, a.words) for a, b in pairs]
    value, draws, unit, units = _bootstrap(change, resamples, seed)
    draws = draws[np.isfinite(draws)]
    better = float(np.mean(draws < 0) + np.mean(draws == 0) / 2) if len(draws) else math.nan
    helped, hurt = sum(c.errors < 0 for c in change), sum(c.errors > 0 for c in change)
    return Comparison(_interval(value, draws, unit, units), better, helped, hurt, len(change) - helped - hurt)


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of the same number under several seeds."""
    if len(values) < 2:
        raise SharpenError(f"a spread of {len(values)} values: expected at least two seeds")
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))


def _interval(value: float, draws: Array, unit: str, units: int) -> Interval:
    finite = draws[np.isfinite(draws)]
    low, high = np.quantile(finite, [TAIL, 1 - TAIL]) if len(finite) else (math.nan, math.nan)
    return Interval(value, float(low), float(high), unit, units)


def _bootstrap(items: Sequence[Item], resamples: int, seed: int) -> tuple[float, Array, str, int]:
    """The mean over domains of errors / words, the same of every resample, and what was resampled."""
    if not items:
        raise SharpenError("a rate of no utterances: expected at least one result that did not fail")
    known = all(item.speaker for item in items)
    units, totals = _totals(items, by_speaker=known)
    if known and _alone(totals):  # one speaker cannot be resampled, but what was said can
        known = False
        units, totals = _totals(items, by_speaker=False)
    value = float(_rates(totals.sum(1, keepdims=True)).mean())
    # A single unit would give an interval without width, and so claim a certainty that is not there.
    draws = np.full(resamples, math.nan if _alone(totals) else 0.0)
    generator = np.random.default_rng(seed)
    for together in _linked(totals[2] > 0):
        part = totals[:, :, together]
        part = part[:, part[2].any(1)]  # (3, K, D): those who speak in these domains
        drawn = [_rates(np.einsum("rk,skd->srd", w, part)) for w in _weights(part.shape[1], resamples, generator)]
        draws += np.concatenate(drawn).sum(1) / totals.shape[2]
    return value, draws, "speakers" if known else "utterances", units


def _totals(items: Sequence[Item], by_speaker: bool) -> tuple[int, Array]:
    """How many units there are, K, and (3, K, D) errors, words and utterances of each in each domain."""
    units = {name: k for k, name in enumerate(sorted({i.speaker if by_speaker else i.id for i in items}))}
    domains = {name: d for d, name in enumerate(sorted({i.domain for i in items}))}
    totals = np.zeros((3, len(units), len(domains)))
    for item in items:
        unit = units[item.speaker if by_speaker else item.id]
        totals[:, unit, domains[item.domain]] += item.errors, item.words, 1
    return len(units), totals


def _alone(totals: Array) -> bool:
    """Whether any domain has a single unit."""
    return bool(((totals[2] > 0).sum(0) < 2).any())


def _rates(totals: Array) -> Array:
    """(3, R, D) errors, words, utterances -> (R, D); not a number where a resample has no utterance of a domain."""
    errors, words, utterances = totals
    return np.where(utterances > 0, errors / np.maximum(1, words), np.nan)


def _weights(K: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """How often each of K units is drawn, (R, K), in blocks of resamples."""
    block = max(1, BLOCK // K)
    for start in range(0, resamples, block):
        R = min(block, resamples - start)
        drawn = generator.integers(K, size=(R, K)) + K * np.arange(R)[:, None]
        yield np.bincount(drawn.ravel(), minlength=R * K).reshape(R, K).astype(np.float64)


def _linked(present: NDArray[np.bool_]) -> list[list[int]]:
    """(K, D) who is in which domain -> the domains that share somebody, directly or through others."""
    left, groups = set(range(present.shape[1])), []
    while left:
        group, fresh = set(), {min(left)}
        while fresh:
            group |= fresh
            people = present[:, sorted(fresh)].any(1)
            fresh = {int(d) for d in np.flatnonzero(present[people].any(0))} - group
        groups.append(sorted(group))
        left -= group
    return groups
