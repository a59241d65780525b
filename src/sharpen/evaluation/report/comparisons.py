"""The numbers of a report: error rates and paired comparisons, computed once for tables and JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sharpen.evaluation.report import paper
from sharpen.evaluation.report.lines import OPTIONS, Column, Line, columns, partner, setting_value
from sharpen.evaluation.report.rescore import errors_in
from sharpen.evaluation.report.statistics import Comparison, Interval, compare, rate
from sharpen.evaluation.report.summary import Summary, summarise
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.options import declared
from sharpen.speech.options import Options
from sharpen.text.options import Generation


@dataclass(frozen=True)
class ErrorRate:
    """A WER, beside the paper's number for it."""

    wer: Interval
    utterances: int
    words: ErrorCounts  # over all seeds
    paper: paper.PaperNumber | None
    complete: bool  # over the common set of utterances, so that it may be marked as the best


@dataclass(frozen=True)
class PairedLines:
    """A line compared with another on the utterances that both have."""

    label: str  # of the other line
    cells: Mapping[Column, Comparison]
    average: Comparison  # over all columns that both have


@dataclass(frozen=True, eq=False)
class LineResult:
    line: Line
    cells: Mapping[Column, ErrorRate]
    average: ErrorRate | None  # None unless there are several columns and the line has all of them
    summary: Summary
    paired: Mapping[str, PairedLines]  # by the other line's method


def line_results(lines: Sequence[Line], against: Sequence[str] = ("source",)) -> list[LineResult]:
    """The numbers of all lines of one corpus, each compared with the methods in `against`."""
    over = columns(lines)
    results = []
    for line in lines:
        same_model = [other for other in lines if other.model == line.model]
        cells = {
            column: _cell(line, column, _common_ids(same_model, column)) for column in over if column in line.cells
        }
        paired = {method: _paired(line, method, lines) for method in against}
        results.append(
            LineResult(
                line=line,
                cells=cells,
                average=_average(line, cells) if len(cells) == len(over) > 1 else None,
                summary=summarise(line),
                paired={method: pair for method, pair in paired.items() if pair is not None},
            )
        )
    return results


def _common_ids(lines: Sequence[Line], column: Column) -> frozenset[str]:
    """The largest set of utterances that several lines have in that column, or the only set."""
    sets = Counter(frozenset(row.id for row in line.cells[column]) for line in lines if column in line.cells)
    return max(sets, key=lambda ids: (sets[ids] > 1, len(ids)))


def _cell(line: Line, column: Column, common: frozenset[str]) -> ErrorRate:
    items, rows = line.items([column]), line.cells[column]
    return ErrorRate(
        wer=rate(items),
        utterances=len(items),
        words=sum((row.errors for row in rows), ErrorCounts()),
        paper=paper.wer(line.corpus, column.domain, column.snr, setting) if (setting := _setting(line)) else None,
        complete={row.id for row in rows} == common,
    )


def _average(line: Line, cells: Mapping[Column, ErrorRate]) -> ErrorRate:
    domains = {(column.domain, column.snr) for column in cells}
    return ErrorRate(
        wer=rate(line.items()),
        utterances=sum(cell.utterances for cell in cells.values()),
        words=sum((cell.words for cell in cells.values()), ErrorCounts()),
        paper=paper.average(line.corpus, domains, setting) if (setting := _setting(line)) else None,
        complete=all(cell.complete for cell in cells.values()),
    )


def _setting(line: Line) -> paper.PaperSetting | None:
    """The line's setting, to look up the paper's number; None where an option is set that the paper does not have."""
    if line.scorer:
        return None
    beyond = [one for name, one in OPTIONS.items() if name in line.options and one.role == "setting" and not one.always]
    if beyond:  # a row records such an option only where it is not the default
        return None
    options = (line.options.get(key) for key in ("lr", "norms", "normalise", "weight_decay", "snr_rule"))
    return paper.PaperSetting(line.method, line.model, line.samples, line.steps, *options)


def _paired(line: Line, method: str, lines: Sequence[Line]) -> PairedLines | None:
    """The line against the most similar line of that method."""
    other = source_of(line, lines) if method == "source" else partner(line, method, lines)
    overall = compare(line.items(), other.items()) if other is not None else None
    if other is None or overall is None:
        return None
    cells = {column: compare(line.items([column]), other.items([column])) for column in line.cells}
    return PairedLines(other.label, {c: pair for c, pair in cells.items() if pair is not None}, overall)


def source_of(line: Line, lines: Sequence[Line]) -> Line | None:
    """The source line with the same preset, noise and decoding; else the source's texts in the line's own rows."""
    other = partner(line, "source", lines)
    own = declared(Generation if line.scorer else Options)
    keys = ["preset", "dtype", "snr_rule", "scorer", *(name for name, one in own.items() if one.role == "setting")]
    alike = other and all(setting_value(line.settings, key) == setting_value(other.settings, key) for key in keys)
    return other if alike or not line.adapts else own_source(line)


def own_source(line: Line) -> Line | None:
    """A source line made from the source's texts that the rows of an adapting line hold; None if they have no score."""
    cells: dict[Column, tuple[Row, ...]] = {}
    for column, rows in line.cells.items():
        errors = [errors_in(row, row.source_text) for row in rows]
        cells[column] = tuple(
            replace(row, method="source", text=row.source_text, errors=words)
            for row, words in zip(rows, errors, strict=True)
            if words is not None
        )
        if len(cells[column]) < len(rows):
            return None
    return replace(line, method="source", steps=0, samples=0, cells=cells, label="source, of the same rows")


def as_json(results: Sequence[LineResult]) -> dict[str, Any]:
    """Rates as fractions, the paper's numbers in percent as printed there, null for NaN."""
    corpus: dict[str, Any] = nan_to_none(
        {
            "corpus": results[0].line.corpus,
            "lines": [
                {
                    "label": r.line.label,
                    "method": r.line.method,
                    "settings": r.line.settings,
                    "domains": {column.key: _rate_json(cell) for column, cell in r.cells.items()},
                    "average": None if r.average is None else _rate_json(r.average),
                    "summary": asdict(r.summary),
                    "against": {
                        method: {
                            "line": pair.label,
                            "average": asdict(pair.average),
                            "domains": {column.key: asdict(cell) for column, cell in pair.cells.items()},
                        }
                        for method, pair in r.paired.items()
                    },
                }
                for r in results
            ],
        }
    )
    return corpus


def nan_to_none(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: nan_to_none(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_none(held) for held in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _rate_json(cell: ErrorRate) -> dict[str, Any]:
    return {
        "wer": asdict(cell.wer),
        "utterances": cell.utterances,
        "words": asdict(cell.words),
        "paper": None if cell.paper is None else asdict(cell.paper),
    }
