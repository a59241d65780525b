"""Rows of tasks as tables: accuracy with its interval, what changed against a method, entropy and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sharpen.evaluation.report.accuracy import accuracy_of, entropies, gain_of, times_source
from sharpen.evaluation.report.comparisons import LineResult, line_results
from sharpen.evaluation.report.lines import Line, group_lines, said, setting_value
from sharpen.evaluation.report.statistics import Comparison, Interval
from sharpen.evaluation.runs.rows import Row

HEAD = (
    *("method", "items", "accuracy %", "against {}", "helped / hurt", "entropy before", "after", "refused"),
    *("time × source", "seconds"),
)


def tables(rows: Iterable[Row], against: str = "source") -> dict[str, list[tuple[str, ...]]]:
    """For each task its lines in the order of the rows, one for each setting; the first is the head."""
    rows = [row for row in rows if not row.failed]
    place = {id(row): n for n, row in enumerate(rows)}
    found = [line for lines in group_lines(rows).values() for line in lines]
    tasks: dict[str, list[Line]] = {}
    for line in sorted(found, key=lambda line: min(place[id(row)] for row in line.rows)):
        tasks.setdefault(f"{line.corpus}, {line.model}", []).append(line)
    return {task: _lines(line_results(lines, (against,)), against) for task, lines in tasks.items()}


def _lines(results: Sequence[LineResult], against: str) -> list[tuple[str, ...]]:
    lines = [r.line for r in results]
    made = [tuple(name.format(against) for name in HEAD)]
    for r in results:
        pair, H, times = r.paired.get(against), entropies(r.line.rows), times_source(r.line, lines)
        change = pair.average if pair else None
        made.append(
            (
                _label(r.line, lines),
                str(r.summary.utterances),
                _accuracy(r.summary.wer),
                _difference(change),
                "–" if change is None else f"{change.helped} / {change.hurt}",
                "–" if H is None else f"{H[0]:.2f}",
                f"{H[1]:.2f}" if H and r.line.adapts else "–",
                str(r.summary.refused) if r.line.adapts else "–",
                "–" if times is None else f"{times:.1f}",
                f"{sum(row.seconds for row in r.line.rows) / len(r.line.rows):.2f}",
            )
        )
    return made


def _label(line: Line, lines: Sequence[Line]) -> str:
    """The method, its G and steps, another search than greedy, and what its lines differ in."""
    facts = [f"G {line.samples}"] if line.samples > 1 else []
    facts += [said("steps", line.steps)] if line.steps else []
    same = [other for other in lines if other.method == line.method]
    names = {key for other in same for key in {*other.chosen, *line.chosen} if _value(other, key) != _value(line, key)}
    names |= {"decode"} & line.chosen.keys()
    facts += [said(key, _value(line, key)) for key in sorted(names)]
    facts += [f"{len(line.seeds)} seeds"] if len(line.seeds) > 1 else []
    return ", ".join([line.method, *facts])


def _value(line: Line, key: str) -> object:
    return setting_value(line.settings, key)


def _accuracy(errors: Interval) -> str:
    x = accuracy_of(errors)
    return f"{100 * x.value:.1f}" + ("" if math.isnan(x.low) else f" [{100 * x.low:.1f}, {100 * x.high:.1f}]")


def _difference(change: Comparison | None) -> str:
    """Of the accuracies, in points."""
    if change is None:
        return "–"
    x = gain_of(change)
    return f"{100 * x.value:+.1f}" + ("" if math.isnan(x.low) else f" [{100 * x.low:+.1f}, {100 * x.high:+.1f}]")
