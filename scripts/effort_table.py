"""Prints the table of the README from the rows in results/frontier-*: what each effort gains and costs; or draws it.

    python scripts/effort_table.py
    python scripts/effort_table.py --figure docs/figures/frontier.png

A search repeats itself now and then, up to the length limit, and one such text can have more errors than all others of
a run. A second line of the table leaves out the utterances on which some setting does, for all settings; so does the
figure. A test compares the README with the table, cell by cell.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from sharpen.evaluation.report import drawing
from sharpen.evaluation.report.frontier import (
    BEAM,
    PAPER,
    WIDE,
    FrontierPoint,
    RunFrontier,
    effort_names,
    figure,
    frontiers,
    search_name,
)
from sharpen.evaluation.report.lines import Column, column_of, read
from sharpen.evaluation.report.markup import difference, percent
from sharpen.evaluation.report.statistics import Interval
from sharpen.evaluation.runs.rows import Row
from sharpen.method import guard

RESULTS = Path(__file__).parent.parent / "results"
RUNS = {  # condition, as the README names it -> folder of its rows
    "Gaussian noise": "frontier-gaussian",
    "eight other noises": "frontier-noises",
    "Chinese accent": "frontier-accents",
    "seven languages": "frontier-languages",
    "Gaussian noise, tiny": "frontier-tiny",
    "clean": "frontier-clean",
}
EFFORTS = ("normal", "high")
SHOWN = ("greedy", "beam 5", "beam 16", *EFFORTS, PAPER)
HEAD = (
    "condition", "utterances", *SHOWN, *(f"{effort} − beam 5" for effort in EFFORTS),
    *(f"{effort} − {other}" for effort in EFFORTS[1:] for other in ("beam 16", PAPER)), "time ×",
)  # fmt: skip


@cache
def rows(condition: str) -> list[Row]:
    return list(read([RESULTS / RUNS[condition]]))


def earlier(condition: str) -> list[Row]:
    """Those of the first run, before float32 went through oneDNN, which other experiments are compared with."""
    first = RESULTS / "earlier" / RUNS[condition]
    return read([first]) if first.exists() else rows(condition)


@cache
def loops(condition: str) -> frozenset[tuple[str, str]]:
    """The utterances on which some setting repeats itself."""
    return frozenset((row.domain, row.id) for row in rows(condition) if guard.repeats(row.text or ""))


@cache
def frontier(condition: str, with_loops: bool = True) -> RunFrontier:
    """The settings of a run, on the utterances that all of them have."""
    kept = [row for row in rows(condition) if with_loops or (row.domain, row.id) not in loops(condition)]
    (found,) = frontiers({condition: kept}, effort_names())
    assert found.reference == "beam 5"
    return found


def seconds(rows: Iterable[Row]) -> dict[tuple[str, str, Column, str], float]:
    """Of a beam of five, by utterance."""
    return {
        (row.corpus, row.model, column_of(row), row.id): row.seconds
        for row in rows
        if search_name(row.method, {**row.options, "samples": row.samples}) == "beam 5"
    }


def points(condition: str, with_loops: bool = True) -> dict[str, FrontierPoint]:
    """The settings of a run by name: greedy, beam 16, and the efforts, of which plain is the beam of 5."""
    found = frontier(condition, with_loops).points
    return {"beam 5" if point.label == "plain" else point.label: point for point in found}


def against(point: FrontierPoint, other: int | str) -> str:
    """The difference from another setting, if the run has that."""
    return signed(point.against[other].difference) if other in point.against else ""


def signed(x: Interval) -> str:
    return difference(x.value, x.low, x.high)


def cells(condition: str, with_loops: bool = True) -> tuple[str, ...]:
    """A line of a condition."""
    of = points(condition, with_loops)
    return (
        f"[{condition}](docs/results/{RUNS[condition]}.md)" + ("" if with_loops else ", loops left out"),
        str(sum(frontier(condition, with_loops).utterances.values())),
        *(percent(of[name].wer.value) if name in of else "" for name in SHOWN),
        *(against(of[effort], BEAM) for effort in EFFORTS),
        *(against(of[effort], other) for effort in EFFORTS[1:] for other in (WIDE, PAPER)),
        " / ".join(f"{of[name].times:.1f}" for name in (*EFFORTS, PAPER) if name in of),
    )


def table() -> list[str]:
    """The lines of the table in markdown."""
    lines = [(name, with_loops) for name in RUNS for with_loops in (True, False) if with_loops or loops(name)]
    return markdown(HEAD, [cells(*line) for line in lines])


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table whose first column is text."""
    made = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return made + ["| " + " | ".join(line) + " |" for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", metavar="FILE", type=Path, help="draw instead of printing")
    args = parser.parse_args()
    if args.figure:
        drawing.as_png(figure([frontier(condition, with_loops=False) for condition in RUNS]), args.figure)
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
