"""A line over all its domains: errors, time, the guard, entropy and seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharpen.evaluation.report.lines import Column, Line
from sharpen.evaluation.report.rescore import errors_in, total
from sharpen.evaluation.report.statistics import Interval, Spread, rate, spread
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts, recount


@dataclass(frozen=True)
class Summary:
    """A line over all its domains, with its rows pooled."""

    utterances: int
    seeds: tuple[int, ...]
    words: ErrorCounts
    characters: ErrorCounts
    wer: Interval  # mean over the domains; an utterance's errors are the mean over its seeds
    spread: Spread | None  # of the WER over the seeds, on the utterances that all seeds have; None for one seed
    utterance_wer: float  # mean of the rows' WERs
    over_one: float  # share of the rows with a WER over 1
    real_time_factor: float  # computing seconds per second of audio
    refused: int  # rows in which the guard fired
    # Words, with the source's text where the guard fired, and with the adapted text everywhere; None where nothing
    # adapts, or only a scorer of one's own could judge a text.
    guard_on: ErrorCounts | None
    guard_off: ErrorCounts | None
    fell: float | None  # share of the rows whose mean H_tok is lower at the last step than at the first
    changed: int  # rows whose stored counts differ from a recount of their texts


def summarise(line: Line) -> Summary:
    rows = line.rows
    guard_on = guard_off = None
    if line.adapts:
        guarded = [row.source_text if row.refused else row.adapted_text for row in rows]
        guard_off = total(errors_in(row, row.adapted_text) for row in rows)
        guard_on = total(errors_in(row, text) for row, text in zip(rows, guarded, strict=True))
    letters = [recount(row.reference, row.text, row.normaliser)[1] for row in rows if not row.scorer]
    traces = [row.trace["H_tok"] for row in rows if len(row.trace.get("H_tok") or ()) > 1]
    return Summary(
        utterances=line.utterances,
        seeds=line.seeds,
        words=sum((row.errors for row in rows), ErrorCounts()),
        characters=sum(letters, ErrorCounts()),
        wer=rate(line.items()),
        spread=_spread(line),
        utterance_wer=float(np.mean([row.errors.rate for row in rows])),
        over_one=float(np.mean([row.errors.rate > 1 for row in rows])),
        real_time_factor=sum(row.seconds for row in rows) / max(1e-9, sum(row.duration for row in rows)),
        refused=sum(bool(row.refused) for row in rows),
        guard_on=guard_on,
        guard_off=guard_off,
        fell=float(np.mean([trace[-1] < trace[0] for trace in traces])) if traces else None,
        changed=sum(row.errors != errors_in(row, row.text) for row in rows),
    )


def _spread(line: Line) -> Spread | None:
    if len(line.seeds) < 2:
        return None
    by_seed: dict[int, dict[tuple[Column, str], Row]] = {}
    for c, rows in line.cells.items():
        for row in rows:
            by_seed.setdefault(row.seed, {})[c, row.id] = row
    shared = set.intersection(*(set(rows) for rows in by_seed.values()))
    if not shared:
        return None
    rates = []
    for rows_of_seed in by_seed.values():
        domains: dict[Column, ErrorCounts] = {}
        for c, name in shared:
            domains[c] = domains.get(c, ErrorCounts()) + rows_of_seed[c, name].errors
        rates.append(float(np.mean([counts.rate for counts in domains.values()])))
    return spread(rates)
