"""Error rates with intervals, paired differences, and the spread over seeds.

Intervals are percentile bootstraps over independent units: speakers where every speaker is known and a domain has at
least two, else utterances. The rate of several domains is the mean of their rates; a domain's rate is all errors over
all reference words. Domains that share speakers or utterances (one recording under ten noises) are resampled together,
by one kind of unit; others separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sharpen.errors import SharpenError

RESAMPLES = 10_000
FEWEST = 1_000  # usable resamples that an interval needs; a resample without words of some domain is not usable
TAIL = 0.025  # on either side: 95 % intervals
SEED = 0
BLOCK = 4_000_000  # weights held at once

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Item:
    """The errors of one utterance."""

    domain: str
    id: str
    speaker: str  # empty where unknown
    errors: float  # mean over the seeds
    words: int  # of its reference


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval."""

    value: float
    low: float  # NaN, as `high`, where a domain has a single unit or too few resamples are usable
    high: float
    unit: str  # what was resampled: "speakers", "utterances", or "speakers and utterances" (each in some domains)
    units: int  # how many of them


@dataclass(frozen=True)
class Comparison:
    """A first method against a second, on the utterances that both have."""

    difference: Interval  # of the rates, first minus second; negative if the first is better
    better: float  # share of the resamples in which the first is better, a tie counting half; may be NaN
    helped: int  # utterances on which the first makes fewer errors
    hurt: int
    unchanged: int

    @property
    def utterances(self) -> int:
        return self.helped + self.hurt + self.unchanged


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number over seeds."""

    mean: float
    deviation: float  # with n - 1
    seeds: int


def rate(items: Sequence[Item], *, resamples: int = RESAMPLES, seed: int = SEED) -> Interval:
    """The error rate of the items, with its interval."""
    value, draws, unit, units = _bootstrap(items, resamples, seed)
    return _interval(value, draws, unit, units)


def compare(
    first: Sequence[Item], second: Sequence[Item], *, resamples: int = RESAMPLES, seed: int = SEED
) -> Comparison | None:
    """The paired comparison; None if the two share no utterance."""
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
    change = [Item(a.domain, a.id, a.speaker or b.speaker, a.errors - b.errors, a.words) for a, b in pairs]
    value, draws, unit, units = _bootstrap(change, resamples, seed)
    finite = draws[np.isfinite(draws)]
    better = float(np.mean(finite < 0) + np.mean(finite == 0) / 2) if len(finite) >= _fewest(draws) else math.nan
    helped, hurt = sum(c.errors < 0 for c in change), sum(c.errors > 0 for c in change)
    return Comparison(_interval(value, draws, unit, units), better, helped, hurt, len(change) - helped - hurt)


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of the same number under several seeds."""
    if len(values) < 2:
        raise SharpenError(f"a spread needs at least two seeds, got {len(values)}")
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))


def _interval(value: float, draws: Array, unit: str, units: int) -> Interval:
    finite = draws[np.isfinite(draws)]
    enough = len(finite) >= _fewest(draws)
    low, high = np.quantile(finite, [TAIL, 1 - TAIL]) if enough else (math.nan, math.nan)
    return Interval(value, float(low), float(high), unit, units)


def _fewest(draws: Array) -> int:
    return max(1, min(FEWEST, len(draws) // 10))


def _bootstrap(items: Sequence[Item], resamples: int, seed: int) -> tuple[float, Array, str, int]:
    """The mean over domains of errors / words, the same of every resample, and what was resampled."""
    if not items:
        raise SharpenError("an error rate needs at least one utterance that did not fail")
    domains = sorted({item.domain for item in items})
    value, draws = 0.0, np.zeros(resamples)
    units: dict[str, int] = {}
    generator = np.random.default_rng(seed)
    for together in _linked(items, domains):
        part = [item for item in items if item.domain in together]
        totals, unit = _totals(part, by_speaker=True), "speakers"
        if not all(item.speaker for item in part) or _alone(
            totals
        ):  # a single speaker cannot be resampled, utterances can
            totals, unit = _totals(part, by_speaker=False), "utterances"
        units[unit] = units.get(unit, 0) + totals.shape[1]
        errors, words = totals.sum(1)
        value += float((errors / np.maximum(1, words)).sum()) / len(domains)
        if _alone(totals):  # resampling one unit would give an interval of width zero
            draws += math.nan
            continue
        drawn = [_rates(np.einsum("rk,skd->srd", w, totals)) for w in _weights(totals.shape[1], resamples, generator)]
        draws += np.concatenate(drawn).sum(1) / len(domains)
    return value, draws, " and ".join(sorted(units)), sum(units.values())


def _totals(items: Sequence[Item], by_speaker: bool) -> Array:
    """(2, K, D): errors and words of each of K speakers or utterances in each domain."""
    units = {name: k for k, name in enumerate(sorted({i.speaker if by_speaker else i.id for i in items}))}
    domains = {name: d for d, name in enumerate(sorted({i.domain for i in items}))}
    totals = np.zeros((2, len(units), len(domains)))
    for item in items:
        unit = units[item.speaker if by_speaker else item.id]
        totals[:, unit, domains[item.domain]] += item.errors, item.words
    return totals


def _alone(totals: Array) -> bool:
    """Whether any domain has the words of fewer than two units."""
    return bool(((totals[1] > 0).sum(0) < 2).any())


def _rates(totals: Array) -> Array:
    """(2, R, D) errors and words -> (R, D); NaN where a resample has no words of a domain."""
    errors, words = totals
    return np.where(words > 0, errors / np.maximum(1, words), np.nan)


def _weights(K: int, resamples: int, generator: np.random.Generator) -> Iterator[Array]:
    """Blocks of (R, K): how often each of K units is drawn in each resample."""
    block = max(1, BLOCK // K)
    for start in range(0, resamples, block):
        R = min(block, resamples - start)
        drawn = generator.integers(K, size=(R, K)) + K * np.arange(R)[:, None]
        yield np.bincount(drawn.ravel(), minlength=R * K).reshape(R, K).astype(np.float64)


def _linked(items: Sequence[Item], domains: Sequence[str]) -> list[set[str]]:
    """Groups of domains that share a speaker (or an utterance, if it has none), directly or through other domains."""
    Source = tuple[str, str]
    held: dict[str, set[Source]] = {domain: set() for domain in domains}
    for item in items:
        held[item.domain].add(("speaker", item.speaker) if item.speaker else ("utterance", item.id))
    left, groups = list(domains), []
    while left:
        group, seen, fresh = set[str](), set[Source](), [left[0]]
        while fresh:
            group |= set(fresh)
            seen |= set[Source]().union(*(held[domain] for domain in fresh))
            fresh = [domain for domain in left if domain not in group and held[domain] & seen]
        groups.append(group)
        left = [domain for domain in left if domain not in group]
    return groups
