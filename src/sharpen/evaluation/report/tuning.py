"""A grid of settings, on speech that no result is reported on: which one is best, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.report.drawing import new_figure, save_figure
from sharpen.evaluation.report.lines import COLUMN_OPTIONS, MACHINE_OPTIONS, said, setting_value
from sharpen.evaluation.report.statistics import Comparison, Interval, Item, compare, rate
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.evaluation.runs.settings import Setting, settings
from sharpen.method.objectives import METHODS
from sharpen.options import as_text, declared
from sharpen.speech.options import Options
from sharpen.terminal import columns

PAPER = (1e-3, 10, 16)  # lr, updates, G: chosen by the paper on a held-out part of Common Voice
ALWAYS = ("lr", "samples", "steps")  # named at every point; others where the grid has several of them


@dataclass(frozen=True, eq=False)
class GridPoint:
    """One point of the grid, and its rows."""

    values: Mapping[str, Any]  # of ALWAYS, and of what else is varied
    usual: bool  # whether what else is varied has its default here
    rows: tuple[Row, ...]

    @property
    def choice(self) -> tuple[float, int, int]:
        return self.values["lr"], self.values["steps"], self.values["samples"]

    @property
    def line(self) -> tuple[Any, ...]:
        """All values but the steps: what has a line of its own in the table."""
        return tuple(value for name, value in self.values.items() if name != "steps")

    @property
    def paper(self) -> bool:
        """Whether it is the paper's choice; greedy search has no G to choose."""
        lr, steps, samples = PAPER
        G = 1 if METHODS[self.rows[0].method].search == "greedy" else samples
        return self.usual and self.choice == (lr, steps, G)

    @property
    def items(self) -> list[Item]:
        """One for each utterance: all its noises together, since they are not drawn independently of each other."""
        counts: dict[str, ErrorCounts] = {}
        speakers: dict[str, str] = {}
        for row in self.rows:
            name = f"{row.corpus} {row.id}"
            counts[name] = counts.get(name, ErrorCounts()) + row.errors
            speakers[name] = row.speaker
        return [Item("", name, speakers[name], one.errors, one.reference) for name, one in counts.items()]

    @property
    def wer(self) -> float:
        """All errors over all words."""
        return _wer(self.rows)

    def __str__(self) -> str:
        lr, steps, samples = self.choice
        others = "".join(f", {said(name, value)}" for name, value in self.values.items() if name not in ALWAYS)
        return f"lr {lr:g}, {steps} steps, G {samples}{others}"


def grid(method: str, **values: Sequence[Any]) -> tuple[Setting, ...]:
    """The settings: the source once, and an episode for each combination of values, which serves all its steps."""
    if method not in METHODS or METHODS[method].search is None:
        adapting = [name for name, row in METHODS.items() if row.search]
        raise SharpenError(f"{method!r} has nothing to tune; choose from {', '.join(adapting)}")
    decoding = {name: many for name, many in values.items() if name in declared(Options)}
    return (*settings(["source"], **decoding), *settings([method], **values))


def points(rows: Sequence[Row]) -> list[GridPoint]:
    """The grid's points, with the rows that have an answer at all of them, so that they can be compared."""
    answered = [row for row in rows if row.method != "source" and not row.failed]
    if not answered:
        raise SharpenError("no row of the grid has an answer; the reasons are listed above")
    names = [*ALWAYS, *_varied(answered)]
    groups: dict[tuple[Any, ...], dict[tuple[str, str, int], Row]] = {}
    for row in answered:
        groups.setdefault(tuple(_value(row, name) for name in names), {})[_column(row), row.id, row.seed] = row
    shared = set.intersection(*(set(group) for group in groups.values()))
    if not shared:
        raise SharpenError("no utterance has an answer at all points of the grid: run the same command to resume")
    return [
        GridPoint(
            dict(zip(names, values, strict=True)),
            all(values[i] == setting_value({}, names[i]) for i in range(len(ALWAYS), len(names))),
            tuple(group[key] for key in sorted(shared)),
        )
        for values, group in sorted(groups.items(), key=lambda entry: tuple(map(_sortable, entry[0])))
    ]


def _varied(rows: Sequence[Row]) -> list[str]:
    """The options besides ALWAYS that have several values."""
    names = sorted({name for row in rows for name in row.options}.difference(ALWAYS, COLUMN_OPTIONS, MACHINE_OPTIONS))
    return [name for name in names if len({as_text(_value(row, name)) for row in rows}) > 1]


def _value(row: Row, name: str) -> Any:
    return setting_value({"samples": row.samples, "steps": row.steps, **row.options}, name)


def _sortable(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, int | float)
    return not number, value if number else as_text(value)


def _wer(rows: Sequence[Row]) -> float:
    return sum(row.errors.errors for row in rows) / max(1, sum(row.errors.reference for row in rows))


def best(tried: Sequence[GridPoint]) -> GridPoint:
    """The lowest error rate; of equal ones the cheapest."""

    def rank(point: GridPoint) -> tuple[float, ...]:
        lr, steps, samples = point.choice
        return point.wer, steps * samples, lr

    return min(tried, key=rank)


def table(tried: Sequence[GridPoint], source: Sequence[Row] = ()) -> str:
    """Error rates in %: a line for each learning rate, G and what else is varied, a column for each number of steps."""
    steps, lowest = sorted({point.values["steps"] for point in tried}), best(tried)
    others = [name for name in tried[0].values if name not in ALWAYS]
    by_place = {(point.line, point.values["steps"]): point for point in tried}
    rows = [["lr", "G", *others, *(f"{n} steps" for n in steps)]]
    for values in dict.fromkeys(point.line for point in tried):
        cells = []
        for n in steps:
            point = by_place.get((values, n))
            mark = "" if point is None else "*" * point.paper + "<" * (point is lowest)
            cells.append(f"{'-' if point is None else f'{100 * point.wer:.2f}'}{mark:2}")
        rows.append([*map(as_text, values), *cells])
    out = columns(rows, right=range(len(rows[0])))
    out.append(f"WER % on {len(tried[0].items)} utterances. < the lowest; * the paper's choice")
    return "\n".join([*out, *_source(tried[0], source), *_verdict(tried)])


def _source(point: GridPoint, source: Sequence[Row]) -> list[str]:
    keys = {(_column(row), row.id) for row in point.rows}
    rows = [row for row in source if (_column(row), row.id) in keys and not row.failed]
    return [f"source: {100 * _wer(rows):.2f}"] if rows else []


def _verdict(tried: Sequence[GridPoint]) -> list[str]:
    """The lowest against the paper's choice, with how sure that is."""
    lowest, paper = best(tried), next((point for point in tried if point.paper), None)
    out = [f"lowest: {lowest}, {_percent(rate(lowest.items))}"]
    if paper is None:
        return [*out, "the paper's choice (lr 0.001, 10 steps, G 16) is not in this grid"]
    if paper is lowest:
        return [*out, "the paper's choice is the lowest of this grid"]
    comparison: Comparison | None = compare(lowest.items, paper.items)
    assert comparison is not None  # all points have the same utterances
    out.append(f"the paper's choice: {paper}, {_percent(rate(paper.items))}")
    sure = "which is not significant"
    if comparison.difference.high < 0:
        sure = f"to be confirmed on other speech: the interval ignores that it was picked as the lowest of {len(tried)}"
    return [*out, f"difference {_percent(comparison.difference, sign='+')}, {sure}"]


def plot(tried: Sequence[GridPoint], path: str | Path, method: str) -> None:
    """Error rate against the learning rate, a line for each other setting; the suffix says the format."""
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    steps = sorted({point.values["steps"] for point in tried})
    for i, (G, *rest) in enumerate(dict.fromkeys(point.line[1:] for point in tried)):
        for n in steps:
            line = [p for p in tried if p.line[1:] == (G, *rest) and p.values["steps"] == n]
            width = 1 + 2 * steps.index(n) / max(1, len(steps) - 1)
            others = [name for name in tried[0].values if name not in ALWAYS]
            label = ", ".join([f"G {G}", f"{n} steps", *map(said, others, rest)])
            values = [100 * point.wer for point in line]
            axes.plot([point.values["lr"] for point in line], values, f"C{i}o-", linewidth=width, label=label)
    for point in tried:
        if point.paper:
            axes.plot(point.values["lr"], 100 * point.wer, "k*", markersize=14, zorder=3, label="the paper's choice")
    axes.set(xscale="log", xlabel="learning rate", ylabel="WER %", title=f"{method}, {len(tried[0].items)} utterances")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _column(row: Row) -> str:
    return f"{row.corpus} {row.domain} {row.options.get('snr', '')}"


def _percent(interval: Interval, sign: str = "") -> str:
    value, low, high = (f"{100 * x:{sign}.2f}" for x in (interval.value, interval.low, interval.high))
    return (
        f"{value} (no interval: one speaker or utterance)" if math.isnan(interval.low) else f"{value} [{low}, {high}]"
    )
