"""Tries thresholds of the guard on the rows of runs, which keep the source and the adapted text of every utterance.

    python scripts/guard_table.py DIR…

Prints, for each threshold alone and for all together, how often it fires, how often that was right (the source's text
has fewer errors), wrong (more) or without effect, and the word error rate with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from sharpen.evaluation.report.lines import read
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts, recount
from sharpen.method import guard

Fires = Callable[[str, str], bool]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    args = parser.parse_args()
    adapted = [row for row in read(args.folders) if row.steps and not row.failed]
    # If an utterance was run at two batch sizes, the first counts.
    rows = list({key(row): row for row in reversed(adapted)}.values())
    pairs = [(row, errors(row, row.source_text), errors(row, row.adapted_text)) for row in rows]
    off = sum((adapted for _, _, adapted in pairs), ErrorCounts())
    source = sum((before for _, before, _ in pairs), ErrorCounts())
    print(f"{len(rows)} rows; source {100 * source.rate:.2f} %, adapted without guard {100 * off.rate:.2f} %\n")
    print("| threshold | fires | right / wrong / no effect | WER % with it |")
    print("|---|---|---|---|")
    for name, fires in thresholds().items():
        print(f"| {name} | {line(pairs, fires)} |")
    return 0


def key(row: Row) -> tuple[object, ...]:
    utterance = row.corpus, row.domain, row.options.get("snr"), row.id
    return *utterance, row.model, row.method, row.samples, row.steps, row.seed


def line(pairs: Sequence[tuple[Row, ErrorCounts, ErrorCounts]], fires: Fires) -> str:
    fired = [fires(row.source_text, row.adapted_text) for row, _, _ in pairs]
    hit = [(before, after) for (_, before, after), yes in zip(pairs, fired, strict=True) if yes]
    right = sum(before.errors < after.errors for before, after in hit)
    wrong = sum(before.errors > after.errors for before, after in hit)
    chosen = [b if yes else a for (_, b, a), yes in zip(pairs, fired, strict=True)]
    rate = sum(chosen, ErrorCounts()).rate
    return f"{len(hit)} | {right} / {wrong} / {len(hit) - right - wrong} | {100 * rate:.2f}"


def thresholds() -> dict[str, Fires]:
    tried: dict[str, Fires] = {"none": lambda s, a: False, "all, as shipped": lambda s, a: bool(guard.check(s, a))}
    for ratio in (1.8, 2.0, 2.2, 2.4, 2.8):
        tried[f"compression over {ratio}"] = lambda s, a, r=ratio: (
            guard.compression_ratio(a) > max(r, guard.compression_ratio(s))
        )
    for times in (2, 3, 4):
        tried[f"a phrase {times} times"] = lambda s, a, n=times: repeats(a, n) and not repeats(s, n)
    for low, high in ((0.8, 1.25), (0.67, 1.5), (0.5, 2.0), (0.33, 3.0)):
        tried[f"words under {low} or over {high} times"] = lambda s, a, lo=low, hi=high: outside(s, a, lo, hi)
    return tried


def repeats(text: str, times: int) -> bool:
    before, guard.REPEATS = guard.REPEATS, times
    try:
        return bool(guard.loop(text))
    finally:
        guard.REPEATS = before


def outside(source: str, adapted: str, low: float, high: float) -> bool:
    before, after = len(source.split()), len(adapted.split())
    return after > high * before + guard.SLACK or after < low * before - guard.SLACK


def errors(row: Row, text: str) -> ErrorCounts:
    return recount(row.reference, text, row.normaliser)[0]


if __name__ == "__main__":
    raise SystemExit(main())
