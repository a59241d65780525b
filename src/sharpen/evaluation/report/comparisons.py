"""Everything that a report says of a corpus in numbers: computed once, then shown as tables or written as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sharpen.evaluation.report import paper
from sharpen.evaluation.report.lines import Column, Line, Summary, columns, partner, summary
from sharpen.evaluation.report.statistics import Comparison, Interval, compare, rate
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts, recount


@dataclass(frozen=True)
class Measure:
    """A WER with the number that the paper has for it."""

    wer: Interval
    utterances: int
    words: ErrorCounts  # over all seeds
    paper: paper.Number | None
    complete: bool  # over the same utterances as the lines that it may be called the best of


@dataclass(frozen=True)
class Paired:
    """A line against another on the utterances that both have."""

    label: str  # of the other
    cells: Mapping[Column, Comparison]
    average: Comparison  # over all columns that they share


@dataclass(frozen=True, eq=False)
class Measured:
    line: Line
    cells: Mapping[Column, Measure]
    average: Measure | None  # None unless the line has every column, of which there are several
    summary: Summary
    paired: Mapping[str, Paired]  # by the other's method


def measure(found: Sequence[Line], against: Sequence[str] = ("source",)) -> list[Measured]:
    """The numbers of all lines of one corpus, and each paired with the methods named, its own in other settings too."""
    over = columns(found)
    measured = []
    for line in found:
        same = [other for other in found if other.model == line.model]
        cells = {column: _cell(line, column, _usual(same, column)) for column in over if column in line.cells}
        paired = {method: _paired(line, method, found) for method in against}
        measured.append(
            Measured(
                line=line,
                cells=cells,
                average=_average(line, cells) if len(cells) == len(over) > 1 else None,
                summary=summary(line),
                paired={method: pair for method, pair in paired.items() if pair is not None},
            )
        )
    return measured


def _usual(found: Sequence[Line], column: Column) -> frozenset[str]:
    """The largest set of utterances that several lines have in that column, or the only one."""
    sets = Counter(frozenset(row.id for row in line.cells[column]) for line in found if column in line.cells)
    return max(sets, key=lambda ids: (sets[ids] > 1, len(ids)))


def _cell(line: Line, column: Column, usual: frozenset[str]) -> Measure:
    items, rows = line.items([column]), line.cells[column]
    return Measure(
        wer=rate(items),
        utterances=len(items),
        words=sum((row.errors for row in rows), ErrorCounts()),
        paper=paper.wer(line.corpus, column.domain, column.snr, _setting(line)),
        complete={row.id for row in rows} == usual,
    )


def _average(line: Line, cells: Mapping[Column, Measure]) -> Measure:
    domains = {(column.domain, column.snr) for column in cells}
    return Measure(
        wer=rate(line.items()),
        utterances=sum(cell.utterances for cell in cells.values()),
        words=sum((cell.words for cell in cells.values()), ErrorCounts()),
        paper=paper.average(line.corpus, domains, _setting(line)),
        complete=all(cell.complete for cell in cells.values()),
    )


def _setting(line: Line) -> paper.Setting:
    said = (line.options.get(key) for key in ("lr", "norms", "normalise", "weight_decay", "snr_rule"))
    return paper.Setting(line.method, line.model, line.samples, line.steps, *said)


def _paired(line: Line, method: str, found: Sequence[Line]) -> Paired | None:
    """With the line of that method that is most like it."""
    other = source_of(line, found) if method == "source" else partner(line, method, found)
    overall = compare(line.items(), other.items()) if other is not None else None
    if other is None or overall is None:
        return None
    cells = {column: compare(line.items([column]), other.items([column])) for column in line.cells}
    return Paired(other.label, {c: pair for c, pair in cells.items() if pair is not None}, overall)


def source_of(line: Line, found: Sequence[Line]) -> Line | None:
    """The source that the line began with: one that heard and computed the same, else what its own rows say of it."""
    other = partner(line, "source", found)
    alike = other and all(line.settings.get(key) == other.settings.get(key) for key in ("preset", "dtype", "snr_rule"))
    return other if alike or not line.adapts else own_source(line)


def own_source(line: Line) -> Line:
    """The source's answers as the rows of an adapting line hold them."""

    def before(row: Row) -> Row:
        words, _ = recount(row.reference, row.source_text, row.normaliser)
        return replace(row, method="source", text=row.source_text, errors=words)

    cells = {column: tuple(map(before, rows)) for column, rows in line.cells.items()}
    return replace(line, method="source", steps=0, samples=0, cells=cells, label="source, of the same rows")


def as_json(measured: Sequence[Measured]) -> dict[str, Any]:
    """Rates as fractions, paper's numbers in percent as the paper has them, null for what is not known."""
    found: dict[str, Any] = _null(
        {
            "corpus": measured[0].line.corpus,
            "lines": [
                {
                    "label": m.line.label,
                    "method": m.line.method,
                    "settings": m.line.settings,
                    "domains": {column.key: _measure_json(cell) for column, cell in m.cells.items()},
                    "average": None if m.average is None else _measure_json(m.average),
                    "summary": asdict(m.summary),
                    "against": {
                        method: {
                            "line": pair.label,
                            "average": asdict(pair.average),
                            "domains": {column.key: asdict(cell) for column, cell in pair.cells.items()},
                        }
                        for method, pair in m.paired.items()
                    },
                }
                for m in measured
            ],
        }
    )
    return found


def _null(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    if isinstance(value, dict):
        return {key: _null(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_null(held) for held in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _measure_json(cell: Measure) -> dict[str, Any]:
    return {
        "wer": asdict(cell.wer),
        "utterances": cell.utterances,
        "words": asdict(cell.words),
        "paper": None if cell.paper is None else asdict(cell.paper),
    }
