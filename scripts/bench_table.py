"""Prints the tables of docs/speed.md from results/bench.json, which `sharpen bench --json` writes.

    python scripts/bench_table.py

A test compares the page with the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from effort_table import markdown

from sharpen.benchmarks.bench import BATCH, MAIN, OURS, WIDE
from sharpen.benchmarks.machine import STAGES
from sharpen.benchmarks.tables import GOALS, reached, times

MODEL = "base"
METHODS = (("em-tok", 16), ("em-tok-b", 16), ("greedy-em", 1), ("em-tok", WIDE), ("em-tok-b", WIDE))
SHOWN = tuple(stage for stage in STAGES if stage not in ("stem", "optimiser"))  # the others take next to nothing
OF_LIMIT = {
    "exact_vs_reference": ("exact", 1),
    "batch4_vs_reference": ("exact", BATCH),
    "fastest_vs_reference": ("fastest", 1),
}


@cache
def bench() -> dict[str, Any]:
    path = Path(__file__).parent.parent / "results" / "bench.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def find(engine: str, method: str, samples: int, batch: int = 1) -> dict[str, Any] | None:
    want = {"model": MODEL, "engine": engine, "method": method, "samples": samples, "batch": batch}
    return next((case for case in bench()["cases"] if want.items() <= case.items()), None)


def efforts() -> Iterator[tuple[str, ...]]:
    for one in bench()["efforts"]:
        yield (
            f"{one['model']}, {one['effort']}",
            f"{one['seconds']:.2f}",
            times(one["times_plain"]),
            times(one["faster_than_paper"]),
            f"{one['left_alone']} of {one['utterances']}",
        )


def episodes() -> Iterator[tuple[str, ...]]:
    for method, samples in METHODS:
        reference = find("reference", method, samples)
        for engine in ("reference", *OURS):
            for batch in (1, BATCH):
                case = find(engine, method, samples, batch)
                if case and reference:
                    name = f"{method}, G = {samples}, {engine}" + (f", batches of {BATCH}" if batch > 1 else "")
                    seconds = [*(case["stages"][stage] for stage in SHOWN), case["seconds"]]
                    faster = times(reference["seconds"] / case["seconds"])
                    yield (name, *(f"{x:.1f}" for x in seconds), faster, str(min(case["utterances"], 8)))


def ratios() -> Iterator[tuple[str, ...]]:
    reference = find("reference", *MAIN)
    for name, value in bench()["ratios"].items():
        goal, more, what = GOALS[name]
        limit = find(OF_LIMIT[name][0], *MAIN, OF_LIMIT[name][1]) if name in OF_LIMIT else None
        at_limit = times(reference["seconds"] / sum(limit["limits"].values())) if limit and reference else ""
        said = "reached" if reached(name, value) else "not reached"
        yield (what, f"{value:.2f}", f"{'' if more else 'at most '}{goal:g}: {said}", at_limit)


def limits() -> Iterator[tuple[str, ...]]:
    for engine in OURS:
        for batch in (1, BATCH):
            case = find(engine, *MAIN, batch)
            if case:
                seconds = [*(case["limits"][stage] for stage in SHOWN), sum(case["limits"].values())]
                name = engine + (f", batches of {BATCH}" if batch > 1 else "")
                yield (name, *(f"{x:.1f}" for x in seconds), f"{case['seconds'] / seconds[-1]:.2f}")


TABLES = (
    (("effort", "seconds", "times plain", "paper / it", "left alone"), efforts),
    (("engine", *SHOWN, "total", "times faster", "utterances"), episodes),
    (("ratio", "measured", "goal", "at the machine's limit"), ratios),
    (("em-tok, G = 16, at the limit", *SHOWN, "episode", "ours / limit"), limits),
)


def tables() -> list[list[str]]:
    """The lines of each table in markdown."""
    return [markdown(head, lines()) for head, lines in TABLES]


if __name__ == "__main__":
    print("\n\n".join("\n".join(lines) for lines in tables()))
