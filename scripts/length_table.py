"""Prints the table of docs/results/README.md about the length penalty: beams compared by the root of their length.

    python scripts/length_table.py

The rows are in results/length-penalty, those of beams that are compared as Whisper does it, on the same utterances, in
results/frontier-*. A test compares the page with the table.
"""

from __future__ import annotations

from effort_table import RESULTS, RUNS, markdown
from other_steps_table import paired, signed

from sharpen.evaluation.report.figures import shared_ids
from sharpen.evaluation.report.frontier import BEAM, WIDE, search_name
from sharpen.evaluation.report.lines import Line, column_of, group_lines, read, setting_value
from sharpen.evaluation.report.markup import percent
from sharpen.evaluation.report.statistics import rate
from sharpen.method import guard

ROOT = 0.5  # the power of the length
HEAD = (
    "condition", "utterances", "beam", "length", "its root", "difference", "helped / hurt", "loops", "loops left out",
)  # fmt: skip


def searches(condition: str) -> dict[tuple[int, float], Line]:
    """The beam searches of a condition by width and length penalty."""
    usual = read([RESULTS / RUNS[condition]])
    there = {(row.corpus, row.model, column_of(row)) for row in usual}
    other = (row for row in read([RESULTS / "length-penalty"]) if (row.corpus, row.model, column_of(row)) in there)
    ((_, lines),) = group_lines([*usual, *other]).items()
    named = {}
    for line in lines:
        power = setting_value(line.settings, "length_penalty")
        named[search_name(line.method, line.settings), power] = line
    return {(width, power): named[f"beam {width}", power] for width in (BEAM, WIDE) for power in (1.0, ROOT)}


def cells(condition: str, width: int) -> tuple[str, ...]:
    found = searches(condition)
    length, root = found[width, 1.0], found[width, ROOT]
    shared = shared_ids([length, root])
    loops = [[row for row in line.rows if guard.repeats(row.text or "")] for line in (length, root)]
    looping = {(column_of(row).key, row.id) for rows in loops for row in rows}

    pair, without = paired(root, length, shared), paired(root, length, shared - looping)
    rates = (percent(rate(line.items(only=shared)).value) for line in (length, root))
    counts = f"{pair.helped} / {pair.hurt}", f"{len(loops[0])} / {len(loops[1])}"
    return (condition, str(len(shared)), str(width), *rates, signed(pair), *counts, signed(without) if looping else "")


def table() -> list[str]:
    return markdown(HEAD, [cells(condition, width) for width in (BEAM, WIDE) for condition in RUNS])


if __name__ == "__main__":
    print("\n".join(table()))
