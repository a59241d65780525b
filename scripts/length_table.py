"""Prints the table of docs/results/README.md about the length penalty: beams compared by the root of their length.

    python scripts/length_table.py

The rows are in results/length-penalty, those of beams that are compared as Whisper does it, on the same utterances, in
results/earlier. A test compares the page with the table.
"""

from __future__ import annotations

from dataclasses import replace

from effort_table import RESULTS, RUNS, earlier, markdown
from other_steps_table import paired, signed

from sharpen.evaluation.report.figures import shared_ids
from sharpen.evaluation.report.frontier import BEAM, WIDE, search_name
from sharpen.evaluation.report.lines import Line, column_of, group_lines, read, setting_value
from sharpen.evaluation.report.markup import percent
from sharpen.evaluation.report.statistics import Comparison, Item, compare, rate
from sharpen.method import guard

ROOT = 0.5  # the power of the length
HEAD = (
    "condition", "utterances", "beam", "length", "its root", "difference", "helped / hurt", "loops", "loops left out",
)  # fmt: skip


def searches(condition: str) -> dict[tuple[int, float], Line]:
    """The beam searches of a condition by width and length penalty."""
    usual = earlier(condition)
    there = {(row.corpus, row.model, column_of(row)) for row in usual}
    other = (row for row in read([RESULTS / "length-penalty"]) if (row.corpus, row.model, column_of(row)) in there)
    ((_, lines),) = group_lines([*usual, *other]).items()
    named = {}
    for line in lines:
        power = setting_value(line.settings, "length_penalty")
        named[search_name(line.method, line.settings), power] = line
    return {(width, power): named[f"beam {width}", power] for width in (BEAM, WIDE) for power in (1.0, ROOT)}


def looping(line: Line) -> set[tuple[str, str]]:
    """The utterances on which a search repeats itself."""
    return {(column_of(row).key, row.id) for row in line.rows if guard.repeats(row.text or "")}


def cells(condition: str, width: int) -> tuple[str, ...]:
    found = searches(condition)
    length, root = found[width, 1.0], found[width, ROOT]
    shared, loops = shared_ids([length, root]), (looping(length), looping(root))
    either = loops[0] | loops[1]
    pair, without = paired(root, length, shared), paired(root, length, shared - either)
    rates = (percent(rate(line.items(only=shared)).value) for line in (length, root))
    counts = f"{pair.helped} / {pair.hurt}", " / ".join(str(len(some)) for some in loops)
    return (condition, str(len(shared)), str(width), *rates, signed(pair), *counts, signed(without) if either else "")


def of_base(width: int) -> Comparison:
    """All utterances of base together, those left out on which either search loops; a word counts the same in all."""
    items: dict[float, list[Item]] = {1.0: [], ROOT: []}
    for condition in RUNS:
        found = searches(condition)
        lines = {power: found[width, power] for power in items}
        if lines[ROOT].model != "base":
            continue
        kept = shared_ids(list(lines.values())) - looping(lines[1.0]) - looping(lines[ROOT])
        for power, line in lines.items():
            items[power] += [
                replace(one, domain="", id=f"{condition} {one.domain} {one.id}") for one in line.items(only=kept)
            ]
    pair = compare(items[ROOT], items[1.0])
    assert pair is not None
    return pair


def table() -> list[str]:
    return markdown(HEAD, [cells(condition, width) for width in (BEAM, WIDE) for condition in RUNS])


if __name__ == "__main__":
    print("\n".join(table()))
    for width in (BEAM, WIDE):
        pair = of_base(width)
        print(f"base, loops left out, beam {width}: {signed(pair)}, {pair.helped} helped, {pair.hurt} hurt")
