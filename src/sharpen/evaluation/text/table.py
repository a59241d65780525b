"""Rows of tasks as tables: accuracy with its interval, what changed against a method, entropy and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sharpen.evaluation.report.statistics import Comparison, Interval, Item, compare, rate
from sharpen.evaluation.runs.rows import Row

HEAD = (
    *("method", "items", "accuracy %", "against {}", "helped / hurt", "entropy before", "after", "refused"),
    "seconds",
)


def tables(rows: Iterable[Row], against: str = "source") -> dict[str, list[tuple[str, ...]]]:
    """For each task its lines, one for each setting; the first is the head."""
    tasks: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if not row.failed:
            tasks.setdefault(f"{row.corpus}, {row.model}", {}).setdefault(row.setting, []).append(row)
    return {task: _lines(list(settings.values()), against) for task, settings in tasks.items()}


def _lines(settings: Sequence[Sequence[Row]], against: str) -> list[tuple[str, ...]]:
    base = next((_items(rows) for rows in settings if rows[0].method == against), None)
    lines = [tuple(name.format(against) for name in HEAD)]
    for rows in settings:
        items, first = _items(rows), rows[0]
        change = None if base is None or first.method == against else compare(items, base)
        before, after = _entropies(rows)
        lines.append(
            (
                _label(first, settings),
                str(len(rows)),
                _accuracy(rate(items)),
                _difference(change),
                "–" if change is None else f"{change.helped} / {change.hurt}",
                before,
                after,
                str(sum(bool(row.refused) for row in rows)) if first.steps else "–",
                f"{sum(row.seconds for row in rows) / len(rows):.2f}",
            )
        )
    return lines


def _items(rows: Sequence[Row]) -> list[Item]:
    return [Item(row.domain, row.id, "", row.errors.errors, row.errors.reference) for row in rows]


def _label(row: Row, settings: Sequence[Sequence[Row]]) -> str:
    """The method and, where it occurs with several settings, what it was run with."""
    facts = [f"G {row.samples}"] if row.samples > 1 else []
    facts += [f"{row.steps} steps"] if row.steps else []
    same = [rows[0] for rows in settings if rows[0].method == row.method]
    if len(same) > 1:
        names = {key for other in same for key in other.options if other.options.get(key) != row.options.get(key)}
        facts += [f"{key} {row.options.get(key)}" for key in sorted(names)]
    return ", ".join([row.method, *facts])


def _accuracy(errors: Interval) -> str:
    if math.isnan(errors.low):
        return f"{100 * (1 - errors.value):.1f}"
    return f"{100 * (1 - errors.value):.1f} [{100 * (1 - errors.high):.1f}, {100 * (1 - errors.low):.1f}]"


def _difference(change: Comparison | None) -> str:
    """Of the accuracies, in points."""
    if change is None:
        return "–"
    d = change.difference
    value, low, high = (0.0 - 100 * x for x in (d.value, d.high, d.low))  # errors to accuracy, without a -0.0
    return f"{value:+.1f}" if math.isnan(low) else f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _entropies(rows: Sequence[Row]) -> tuple[str, str]:
    """Mean over the items of the entropy per token of the answer, by the source and by the adapted model."""
    pairs = [row.trace["entropy"] for row in rows if "entropy" in row.trace and None not in row.trace["entropy"]]
    if not pairs:
        return "–", "–"
    before, after = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    return f"{before:.2f}", f"{after:.2f}" if rows[0].steps else "–"
