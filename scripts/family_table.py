"""Prints the table of other models in docs/results/README.md from the rows in results/families.

    python scripts/family_table.py

Its first lines have the utterances that all models have, so that errors and seconds can be compared; the others all
utterances of a model in one condition. A test compares the page with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sharpen.evaluation.report.markup import difference, percent
from sharpen.evaluation.report.statistics import Item, compare, rate
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.store import read_rows

FOLDER = Path(__file__).parent.parent / "results" / "families"
MODELS = ("moonshine-tiny", "tiny", "base", "small")
METHODS = ("source", "beam", "em-tok-b")
CONDITIONS = {"GS": "Gaussian", "BA": "babble", "VC": "vacuum cleaner", "": "Chinese accent"}
HEAD = (
    *("condition", "model", "utterances", *METHODS),
    *("em-tok-b − source", "em-tok-b − beam", *(f"seconds, {method}" for method in METHODS)),
)


def condition(row: Row) -> str:
    return str(row.options.get("noise", ""))


def table() -> list[str]:
    """The lines of the table in markdown."""
    rows = read_rows(FOLDER)
    shared = set.intersection(*({row.id for row in rows if row.model == model} for model in MODELS))
    together = [row for row in rows if row.id in shared and condition(row) == "GS"]
    lines = [cells(CONDITIONS["GS"], model, [row for row in together if row.model == model]) for model in MODELS]
    for name, label in CONDITIONS.items():
        for model in MODELS:
            own = [row for row in rows if row.model == model and condition(row) == name]
            if any(row.id not in shared or name != "GS" for row in own):
                lines.append(cells(label, model, own))
    made = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    return made + ["| " + " | ".join(line) + " |" for line in lines]


def cells(label: str, model: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """A line: one model in one condition."""
    of = {method: {row.id: row for row in rows if row.method == method} for method in METHODS}
    ids = set.intersection(*({*found} for found in of.values()))
    kept = {method: [row for name, row in found.items() if name in ids] for method, found in of.items()}
    items = {method: [item(row) for row in found] for method, found in kept.items()}
    adapted = items["em-tok-b"]
    gains = [compare(adapted, items[other]).difference for other in ("source", "beam")]
    return (
        *(label, model, str(len(ids))),
        *(percent(rate(items[method]).value) for method in METHODS),
        *(difference(gain.value, gain.low, gain.high) for gain in gains),
        *(f"{sum(row.seconds for row in kept[method]) / len(ids):.1f}" for method in METHODS),
    )


def item(row: Row) -> Item:
    return Item(row.domain, row.id, row.speaker, row.errors.errors, row.errors.reference)


if __name__ == "__main__":
    print("\n".join(table()))
