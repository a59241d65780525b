"""A grid over learning rate, updates and G, on speech that no result is reported on."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sharpen.errors import SharpenError
from sharpen.evaluation.report.statistics import Comparison, Interval, Item, compare, rate
from sharpen.evaluation.runs.plan import Setting, settings
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.method.objectives import METHODS

PAPER = (1e-3, 10, 16)  # lr, updates, G: chosen by the paper on a held-out part of Common Voice


@dataclass(frozen=True, eq=False)
class Cell:
    """One point of the grid."""

    lr: float
    steps: int
    samples: int
    rows: tuple[Row, ...]

    @property
    def choice(self) -> tuple[float, int, int]:
        return self.lr, self.steps, self.samples

    @property
    def paper(self) -> bool:
        """Whether it is the paper's choice; greedy search has no G to choose."""
        lr, steps, samples = PAPER
        return self.choice == (lr, steps, 1 if METHODS[self.rows[0].method].search == "greedy" else samples)

    @property
    def items(self) -> list[Item]:
        """One for each utterance: all its noises together, since they are not drawn independently of each other."""
        counts: dict[str, ErrorCounts] = {}
        speakers: dict[str, str] = {}
        for row in self.rows:
            name = f"{row.corpus} {row.id}"
            counts[name] = counts.get(name, ErrorCounts()) + row.errors
            speakers[name] = row.speaker
        return [Item("", name, speakers[name], found.errors, found.reference) for name, found in counts.items()]

    @property
    def wer(self) -> float:
        """All errors over all words."""
        return sum(row.errors.errors for row in self.rows) / max(1, sum(row.errors.reference for row in self.rows))

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.steps} steps, G {self.samples}"


def grid(
    method: str, lrs: Iterable[float], steps: Sequence[int], samples: Sequence[int], seed: int = 0
) -> tuple[Setting, ...]:
    """The settings: the source once, and an episode for each learning rate and G, which serves all numbers of steps."""
    if method not in METHODS or METHODS[method].search is None:
        adapting = [name for name, row in METHODS.items() if row.search]
        raise SharpenError(f"{method!r} has nothing to tune; choose from {', '.join(adapting)}")
    chosen = [setting for lr in lrs for setting in settings([method], samples, steps, [seed], lr=lr)]
    return (*settings(["source"], seeds=[seed]), *dict.fromkeys(chosen))


def cells(rows: Sequence[Row]) -> list[Cell]:
    """The grid's points, with the rows that have an answer at all of them, so that they can be compared."""
    points: dict[tuple[float, int, int], dict[tuple[str, str], Row]] = {}
    for row in rows:
        if row.steps and not row.failed:
            points.setdefault((row.options["lr"], row.steps, row.samples), {})[_column(row), row.id] = row
    if not points:
        raise SharpenError("no row of the grid has an answer: see what failed above")
    shared = set.intersection(*(set(found) for found in points.values()))
    if not shared:
        raise SharpenError("no utterance has an answer at all points of the grid: run the same command to go on")
    return [Cell(*choice, tuple(found[key] for key in sorted(shared))) for choice, found in sorted(points.items())]


def best(found: Sequence[Cell]) -> Cell:
    """The lowest error rate; of equal ones the cheapest."""
    return min(found, key=lambda cell: (cell.wer, cell.steps * cell.samples, cell.lr))


def table(found: Sequence[Cell], source: Sequence[Row] = ()) -> str:
    """Error rates in %: a line for each learning rate and G, a column for each number of steps."""
    steps, lowest = sorted({cell.steps for cell in found}), best(found)
    by_choice = {cell.choice: cell for cell in found}
    out = [f"{'lr':>8} {'G':>4}" + "".join(f"{f'{n} steps':>12}" for n in steps)]
    for lr, G in sorted({(cell.lr, cell.samples) for cell in found}):
        line = f"{lr:8g} {G:4}"
        for n in steps:
            cell = by_choice.get((lr, n, G))
            mark = "" if cell is None else "*" * cell.paper + "<" * (cell is lowest)
            line += f"{'-' if cell is None else f'{100 * cell.wer:.2f}'}{mark:2}".rjust(12)
        out.append(line.rstrip())
    out.append(f"WER % on {len(found[0].items)} utterances. < the lowest; * the paper's choice")
    return "\n".join([*out, *_source(found[0], source), *_verdict(found)])


def _source(cell: Cell, source: Sequence[Row]) -> list[str]:
    keys = {(_column(row), row.id) for row in cell.rows}
    rows = tuple(row for row in source if (_column(row), row.id) in keys and not row.failed)
    return [f"source: {100 * Cell(0.0, 0, 0, rows).wer:.2f}"] if rows else []


def _verdict(found: Sequence[Cell]) -> list[str]:
    """The lowest against the paper's choice, with how sure that is."""
    lowest, paper = best(found), next((cell for cell in found if cell.paper), None)
    out = [f"lowest: {lowest}, {_percent(rate(lowest.items))}"]
    if paper is None:
        return [*out, "the paper's choice (lr 0.001, 10 steps, G 16) is not in this grid"]
    if paper is lowest:
        return [*out, "the paper's choice is the lowest of this grid"]
    comparison: Comparison | None = compare(lowest.items, paper.items)
    assert comparison is not None  # all cells hold the same utterances
    out.append(f"the paper's choice: {paper}, {_percent(rate(paper.items))}")
    sure = "which does not tell them apart"
    if comparison.difference.high < 0:
        sure = (
            f"to be confirmed on other speech: the lowest of {len(found)} is partly luck, which the interval leaves out"
        )
    return [*out, f"difference {_percent(comparison.difference, sign='+')}, {sure}"]


def plot(found: Sequence[Cell], path: str | Path, method: str) -> None:
    """Error rate against the learning rate, a line for each G and number of steps; the suffix says the format."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")
    except ImportError as error:
        raise SharpenError("the plot needs matplotlib, which is not here: pip install 'sharpen[report]'") from error
    axes = figure.subplots()
    steps = sorted({cell.steps for cell in found})
    for i, G in enumerate(sorted({cell.samples for cell in found})):
        for n in steps:
            line = sorted((cell for cell in found if (cell.samples, cell.steps) == (G, n)), key=lambda cell: cell.lr)
            width = 1 + 2 * steps.index(n) / max(1, len(steps) - 1)
            values = [100 * cell.wer for cell in line]
            axes.plot([cell.lr for cell in line], values, f"C{i}o-", linewidth=width, label=f"G {G}, {n} steps")
    for cell in found:
        if cell.paper:
            axes.plot(cell.lr, 100 * cell.wer, "k*", markersize=14, zorder=3, label="the paper's choice")
    axes.set(xscale="log", xlabel="learning rate", ylabel="WER %", title=f"{method}, {len(found[0].items)} utterances")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise SharpenError(f"cannot write the plot to {path}: {error}") from error


def _column(row: Row) -> str:
    return f"{row.corpus} {row.domain} {row.options.get('snr', '')}"


def _percent(interval: Interval, sign: str = "") -> str:
    value, low, high = (f"{100 * x:{sign}.2f}" for x in (interval.value, interval.low, interval.high))
    return (
        f"{value} (no interval: one speaker or utterance)" if math.isnan(interval.low) else f"{value} [{low}, {high}]"
    )
