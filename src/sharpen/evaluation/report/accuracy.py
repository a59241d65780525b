"""The report of a language model on tasks: accuracy, gains, details, and the answers that changed.

A wrong answer is one error in one word (evaluation.text.run): an accuracy is one minus the error rate of a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.report.comparisons import LineResult, nan_to_none, source_of
from sharpen.evaluation.report.lines import MACHINE_OPTIONS, Column, Line, column_names, columns, partner
from sharpen.evaluation.report.markup import Cell, Table, bounds, number, percent
from sharpen.evaluation.report.statistics import Comparison, Interval
from sharpen.evaluation.report.tables import EMPTY, paired_table, protocol, size_of
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts

SHOWN = 5  # items that were helped, and that were hurt
LONGEST = 100  # characters of an answer


def of_answers(rows: Sequence[Row]) -> bool:
    """Whether the rows are a language model's answers to tasks; a report is about them or about speech."""
    kinds = {bool(row.scorer): row.corpus for row in rows}
    if len(kinds) > 1:
        raise SharpenError(
            f"{kinds[False]} is speech, and {kinds[True]} a task of a language model; make one report for each"
        )
    return True in kinds


def accuracy_of(errors: Interval) -> Interval:
    return Interval(1 - errors.value, 1 - errors.high, 1 - errors.low, errors.unit, errors.units)


def gain_of(change: Comparison) -> Interval:
    """The difference of the accuracies; positive where the first method is better."""
    d = change.difference
    return Interval(0.0 - d.value, 0.0 - d.high, 0.0 - d.low, d.unit, d.units)  # without a -0.0


def times_source(line: Line, lines: Sequence[Line]) -> float | None:
    """Mean seconds of an item over the source's, on the items that both have.

    None without a source of the same batch size and threads, whose seconds would say nothing.
    """
    source = partner(line, "source", lines) if line.method != "source" else line
    if source is None or any(line.options.get(key) != source.options.get(key) for key in MACHINE_OPTIONS):
        return None
    own, theirs = _seconds(line), _seconds(source)
    shared = own.keys() & theirs.keys()
    base = math.fsum(theirs[key] for key in shared)
    return math.fsum(own[key] for key in shared) / base if base > 0 else None


def _seconds(line: Line) -> dict[tuple[Column, str], float]:
    """Of each item, mean over its seeds."""
    by: dict[tuple[Column, str], list[float]] = {}
    for column, rows in line.cells.items():
        for row in rows:
            by.setdefault((column, row.id), []).append(row.seconds)
    return {key: math.fsum(values) / len(values) for key, values in by.items()}


def entropies(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Mean over the rows of the entropy per token of the answer, by the source and by the adapted model."""
    pairs = [row.trace["entropy"] for row in rows if "entropy" in row.trace and None not in row.trace["entropy"]]
    if not pairs:
        return None
    before, after = (math.fsum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    return before, after


def tables_of(results: Sequence[LineResult], against: Sequence[str], shown: Line | None) -> list[Table]:
    """All tables of one task; `shown` is the line whose changed answers are listed."""
    lines = [r.line for r in results]
    source = source_of(shown, lines) if shown is not None else None
    made = [_rates(results), *(_gains(results, name) for name in against), _details(results)]
    made += [_changed(shown, source)] if shown is not None and source is not None else []
    return [table for table in made if table is not None]


def _rates(results: Sequence[LineResult]) -> Table:
    """Methods as rows, domains as columns, then the mean over the domains."""
    over = columns([r.line for r in results])
    called = column_names(over)
    rows = []
    for r in results:
        row = [Cell(r.line.label), Cell(size_of(r))]
        row += [_accuracy(r.cells[c].wer) if c in r.cells else EMPTY for c in over]
        if len(over) > 1:
            row.append(_accuracy(r.average.wer) if r.average else EMPTY)
        rows.append(tuple(row))
    head = ("method", "items", *(called[c] for c in over), *(("average",) if len(over) > 1 else ()))
    note = "Accuracy in %: right answers over items, with its 95 % interval" + (
        "; average: mean over the domains." if len(over) > 1 else "."
    )
    return Table(f"{results[0].line.corpus}: accuracy", head, tuple(rows), (note, protocol(results)))


def _gains(results: Sequence[LineResult], against: str) -> Table | None:
    """Each method minus the method `against`, on the items that both have."""
    note = (
        "Difference of accuracy in points with its 95 % interval, on the items that both have; positive where the "
        "method is right more often, bold where the interval excludes zero. P(better): share of the resamples in which "
        "the method is right more often, a tie counting half. Helped / hurt / same: items that the method alone "
        "answers right, that the other alone does, and the rest."
    )
    return paired_table(results, against, _gain, note, "items")


def _details(results: Sequence[LineResult]) -> Table:
    """Time, entropy, the guard and seeds, with all domains and seeds pooled."""
    lines, rows = [r.line for r in results], []
    for r in results:
        s, line, H = r.summary, r.line, entropies(r.line.rows)
        times = times_source(line, lines)
        row = [Cell(line.label), Cell(str(s.utterances)), Cell(percent(1 - s.words.rate))]
        row.append(Cell(number(sum(row.seconds for row in line.rows) / len(line.rows))))
        row.append(EMPTY if times is None else Cell(number(times, 1)))
        row += [EMPTY if H is None else Cell(number(H[0])), Cell(number(H[1])) if H and line.adapts else EMPTY]
        row.append(EMPTY if s.fell is None else Cell(percent(s.fell, 1)))
        row.append(Cell(str(s.refused)) if line.adapts else EMPTY)
        row += [_counted(s.guard_on), _counted(s.guard_off)]
        seeds = "" if s.spread is None else f": {percent(1 - s.spread.mean)} ± {percent(s.spread.deviation)}"
        row.append(Cell(f"{len(s.seeds)}{seeds}"))
        rows.append(tuple(row))
    head = (
        *("method", "items", "accuracy", "seconds", "× source", "entropy before", "after", "H_tok fell"),
        *("guard fired", "accuracy guarded", "unguarded", "seeds"),
    )
    note = (
        "Accuracy in %, over all domains and seeds together. Seconds: computing time of an item, which depends on the "
        "machine and its load; × source: the same as a multiple of the source's on the same items, with the same batch "
        "size and threads. Entropy: per token of the answer in nats, by the source and by the adapted model. H_tok "
        "fell: share of items whose mean H_tok was lower before the last update than before the first. Guard fired: "
        "how often the guard refused the adapted answer; then the accuracy with and without the guard. Seeds: their "
        "number, and if there are several the mean accuracy over them ± its standard deviation."
    )
    return Table(f"{results[0].line.corpus}: details", head, tuple(rows), (note,))


def _changed(line: Line, source: Line) -> Table | None:
    """Answers that became right, then answers that became wrong, of the line's first seed."""
    before = {(column, row.id): row for column, rows in source.cells.items() for row in rows}
    pairs = [
        (row, before[column, row.id])
        for column, rows in line.cells.items()
        for row in rows
        if row.seed == line.seeds[0] and (column, row.id) in before
    ]
    rows = []
    for word, sign in (("helped", -1), ("hurt", 1)):
        found = [(a, b) for a, b in pairs if a.errors.errors - b.errors.errors == sign]
        for a, b in sorted(found, key=lambda pair: pair[0].id)[:SHOWN]:
            texts = (a.reference, b.text, a.text)
            rows.append((Cell(a.id), Cell(word), *(Cell(_shortened(text)) for text in texts)))
    if not rows:
        return None
    head = ("item", "", "right answer", "source", line.method)
    note = f"At most {SHOWN} items that {line.label} helped, and {SHOWN} that it hurt, against the source; first by id."
    return Table(f"{line.corpus}: answers changed by {line.label}", head, tuple(rows), (note,))


def _shortened(text: str) -> str:
    plain = text.strip().replace("\n", "\\n")
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"


def _accuracy(errors: Interval) -> Cell:
    x = accuracy_of(errors)
    return Cell(percent(x.value), bounds(x.low, x.high))


def _gain(change: Comparison | None) -> Cell:
    if change is None:
        return EMPTY
    x = gain_of(change)
    return Cell(percent(x.value, signed=True), bounds(x.low, x.high, signed=True), best=x.low > 0 or x.high < 0)


def _counted(counts: ErrorCounts | None) -> Cell:
    return EMPTY if counts is None else Cell(percent(1 - counts.rate))


def as_json(results: Sequence[LineResult]) -> dict[str, Any]:
    """Accuracies as fractions, null for NaN."""
    lines = [r.line for r in results]
    task: dict[str, Any] = nan_to_none(
        {
            "task": lines[0].corpus,
            "lines": [{**_line_json(r), "times_source": times_source(r.line, lines)} for r in results],
        }
    )
    return task


def _line_json(r: LineResult) -> Mapping[str, Any]:
    H = entropies(r.line.rows)
    return {
        "label": r.line.label,
        "method": r.line.method,
        "settings": r.line.settings,
        "items": r.summary.utterances,
        "seeds": r.summary.seeds,
        "domains": {column.key: asdict(accuracy_of(cell.wer)) for column, cell in r.cells.items()},
        "average": None if r.average is None else asdict(accuracy_of(r.average.wer)),
        "entropy": None if H is None else {"before": H[0], "after": H[1] if r.line.adapts else None},
        "refused": r.summary.refused,
        "against": {
            method: {
                "line": pair.label,
                "gain": asdict(gain_of(pair.average)),
                **{name: getattr(pair.average, name) for name in ("better", "helped", "hurt", "unchanged")},
            }
            for method, pair in r.paired.items()
        },
    }
