"""Prints the table of docs/results/README.md about the efforts run again, with other rounding and a longer margin.

    python scripts/again_table.py

results/earlier has the first run of each condition, results/frontier-* the one after float32 went through oneDNN. A
test compares the page with the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from effort_table import RESULTS, RUNS, earlier, markdown, rows
from other_steps_table import BEAM, HIGH, NORMAL, PAPER, WIDE, by_name, paired, signed

from sharpen.evaluation.report.figures import shared_ids
from sharpen.evaluation.report.lines import Line
from sharpen.evaluation.report.markup import percent
from sharpen.evaluation.report.statistics import rate

HEAD = ("condition", "utterances", "setting", "first run", "again", "difference", "other texts")


def texts(line: Line) -> Mapping[tuple[str, str], str]:
    return {(row.domain, row.id): row.text or "" for row in line.rows}


def of_condition(condition: str) -> list[tuple[str, ...]]:
    """A line for each setting that both runs have."""
    first, again = by_name(earlier(condition)), by_name(rows(condition))
    made = []
    for name in (BEAM, WIDE, NORMAL, HIGH, PAPER):
        if name not in first or name not in again:
            continue
        pair = (first[name], again[name])
        shared = shared_ids(list(pair))
        old, new = (texts(line) for line in pair)
        other = sum(old[key] != text for key, text in new.items() if key in old)
        rates = (percent(rate(line.items(only=shared)).value) for line in pair)
        made.append(
            (
                condition,
                str(len(shared)),
                name.partition(",")[0],
                *rates,
                signed(paired(pair[1], pair[0], shared)),
                str(other),
            )
        )
    return made


def table() -> list[str]:
    """The conditions that were run again."""
    again = [condition for condition, folder in RUNS.items() if (RESULTS / "earlier" / folder).exists()]
    return markdown(HEAD, [line for condition in again for line in of_condition(condition)])


if __name__ == "__main__":
    print("\n".join(table()))
