"""The tables of a report: the error rates, the paired differences, what stands behind them, and the protocol."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from sharpen.evaluation.report.comparisons import Measure, Measured
from sharpen.evaluation.report.lines import Column, columns, names, said
from sharpen.evaluation.report.markup import Cell, Table, bounds, number, percent
from sharpen.evaluation.report.statistics import RESAMPLES, Comparison, Interval
from sharpen.evaluation.runs.score import ErrorCounts

FIRST = ("lr", "preset", "guard", "norms")  # named first in a protocol
NOTHING = Cell("–")


def rates(measured: Sequence[Measured]) -> Table:
    """Domains as columns, methods as rows, the mean over domains at the end."""
    over = columns([m.line for m in measured])
    called = names(over)
    best: dict[tuple[str, Column | None], str] = {}
    for model in {m.line.model for m in measured}:
        same = [m for m in measured if m.line.model == model]
        best |= {(model, column): _best(m.cells.get(column) for m in same) for column in over}
        best[model, None] = _best(m.average for m in same)
    rows = []
    for m in measured:
        row = [Cell(m.line.label), Cell(_sizes(m))]
        row += [_rate(m.cells[c], best[m.line.model, c]) if c in m.cells else NOTHING for c in over]
        if len(over) > 1:
            row.append(_rate(m.average, best[m.line.model, None]) if m.average else NOTHING)
        rows.append(tuple(row))
    head = ("method", "utterances", *(called[c] for c in over), *(("average",) if len(over) > 1 else ()))
    notes = [
        "WER in %, all errors over all reference words, with its 95 % interval"
        + ("; average: mean over the domains." if len(over) > 1 else ".")
        + " Bold: the lowest of a column and model, among the methods that share the same utterances."
    ]
    given = {n.table for m in measured for n in _numbers(m)}
    if given:
        notes.append(
            f"Paper: its number for its whole test set ({', '.join(sorted(given))}), not for these utterances."
        )
    return Table(f"{measured[0].line.corpus}: word error rate", head, tuple(rows), (*notes, protocol(measured)))


def differences(measured: Sequence[Measured], against: str) -> Table | None:
    """Each method minus another, on the utterances that both have."""
    chosen = [m for m in measured if against in m.paired]
    if not chosen:
        return None
    over = [c for c in columns([m.line for m in chosen]) if any(c in m.paired[against].cells for m in chosen)]
    called = names(over)
    others = {m.paired[against].label for m in chosen}
    named = others != {against}  # which of its rows, where it has several, or none
    rows = []
    for m in chosen:
        pair = m.paired[against]
        row = [Cell(m.line.label), *([Cell(pair.label)] if named else [])]
        row += [_difference(pair.cells.get(c)) for c in over]
        x, whole = pair.average, len(pair.cells) == len(over)
        row += [_difference(x if whole else None)] if len(over) > 1 else []
        row += [
            Cell(f"{x.better:.3f}") if whole and not math.isnan(x.better) else NOTHING,
            Cell(f"{x.helped} / {x.hurt} / {x.unchanged}"),
            Cell(str(x.utterances)),
        ]
        rows.append(tuple(row))
    head = (
        "method",
        *(("against",) if named else ()),
        *(called[c] for c in over),
        *(("average",) if len(over) > 1 else ()),
        "P(better)",
        "helped / hurt / same",
        "utterances",
    )
    note = (
        "Difference of WER in points, below zero where the method is better, with its 95 % interval, on the utterances "
        "that both have; an average only where no domain is missing. P(better): share of the resamples in which it is, "
        "a tie counting half. " + _resampled(m.paired[against].average.difference for m in chosen)
    )
    return Table(f"{measured[0].line.corpus}: against {against}", head, tuple(rows), (note,))


def details(measured: Sequence[Measured]) -> Table:
    """What stands behind the rates; all domains and seeds pooled."""
    rows = []
    for m in measured:
        s, n = m.summary, max(1, m.summary.words.reference)
        w = s.words
        row = [Cell(m.line.label), Cell(str(s.utterances)), Cell(percent(w.rate))]
        row += [Cell(percent(errors / n)) for errors in (w.substitutions, w.deletions, w.insertions)]
        row += [Cell(percent(s.characters.rate)), Cell(percent(s.utterance_wer)), Cell(percent(s.over_one, 1))]
        row.append(Cell(f"{s.real_time_factor:.3g}"))
        row.append(Cell(str(s.refused)) if m.line.adapts else NOTHING)
        row += [_counts(s.guard_on), _counts(s.guard_off)]
        row.append(NOTHING if s.fell is None else Cell(percent(s.fell, 1)))
        row.append(
            Cell(str(len(s.seeds)))
            if s.spread is None
            else Cell(f"{s.spread.seeds}: {percent(s.spread.mean)} ± {percent(s.spread.deviation)}")
        )
        rows.append(tuple(row))
    head = (
        "method",
        "utterances",
        "WER",
        "sub.",
        "del.",
        "ins.",
        "CER",
        "mean WER",
        "over 1",
        "RTF",
        "guard fired",
        "WER guarded",
        "unguarded",
        "H_tok fell",
        "seeds",
    )
    note = (
        "In %, over all domains and seeds together: word errors and their parts; character errors; mean WER of single "
        "utterances; share of utterances with a WER over 1; computing seconds for a second of audio (RTF); "
        "how often the guard refused the adapted text, and the WER with and without it; share of utterances whose mean "
        "H_tok was lower before the last update than before the first; number of seeds, and where there are several "
        "the mean WER over them ± its standard deviation."
    )
    return Table(f"{measured[0].line.corpus}: behind the rates", head, tuple(rows), (note,))


def protocol(measured: Sequence[Measured]) -> str:
    """How the numbers were made; where lines differ, every value that occurs."""
    found = [m.line for m in measured]
    rows = [row for line in found for row in line.rows]
    over = columns(found)
    options = {key for line in found for key in line.options}
    ratios = sorted({c.snr for c in over if c.snr is not None})
    parts = [
        f"model {_values(line.model for line in found)}",
        f"normaliser {_values(row.normaliser for row in rows)}",
        f"SNR {_values(ratios)} dB" if ratios else "",
        f"G {_values(sorted(line.samples for line in found if line.samples))}" if any(x.samples for x in found) else "",
        f"steps {_values(sorted(line.steps for line in found if line.adapts))}" if any(x.adapts for x in found) else "",
    ]
    for key in sorted(options, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key)):
        values = dict.fromkeys(json.dumps(line.options[key]) for line in found if key in line.options)
        parts.append(said(key, "") + _values(said("", json.loads(value)).strip() for value in values))
    sizes = {c: {m.cells[c].utterances for m in measured if c in m.cells} for c in over}
    called = names(over)
    parts.append("utterances " + ", ".join(f"{called[c]} {_range(sizes[c])}" for c in over))
    parts.append(f"seeds {_values(sorted(row.seed for row in rows))}")
    packages = dict.fromkeys((name, version) for row in rows for name, version in row.versions.items())
    parts.append("versions " + ", ".join(f"{name} {version}" for name, version in packages))
    return f"Protocol: {'; '.join(part for part in parts if part)}. {_resampled(m.summary.wer for m in measured)}"


def _resampled(found: Iterable[Interval]) -> str:
    units: dict[str, set[int]] = {}
    for interval in found:
        units.setdefault(interval.unit, set()).add(interval.units)
    parts = [f"{' or '.join(map(str, sorted(counts)))} {unit}" for unit, counts in sorted(units.items())]
    mixed = any(" and " in unit for unit in units)
    why = " (these where a domain does not name its speakers, or has only one)" if mixed else ""
    counted = f"Intervals: bootstrap, {RESAMPLES:,} resamples of {' or of '.join(parts)}{why}"
    return f"{counted}; none where a domain has only one."


def _values(found: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in found))


def _range(sizes: set[int]) -> str:
    return str(min(sizes)) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"


def _sizes(m: Measured) -> str:
    sizes = {cell.utterances for cell in m.cells.values()}
    return _range(sizes) + (" each" if len(sizes) == 1 and len(m.cells) > 1 else "")


def _best(found: Iterable[Measure | None]) -> str:
    """The lowest rate as it is printed, so that equal numbers are equally bold; nothing to a single one."""
    complete = [cell.wer.value for cell in found if cell is not None and cell.complete]
    return percent(min(complete)) if len(complete) > 1 else ""


def _rate(cell: Measure, best: str) -> Cell:
    text = percent(cell.wer.value)
    given = f"{cell.paper.value:.2f}" if cell.paper else ""
    return Cell(text, bounds(cell.wer.low, cell.wer.high), given, cell.complete and text == best)


def _difference(found: Comparison | None) -> Cell:
    if found is None:
        return NOTHING
    x = found.difference
    return Cell(percent(x.value, signed=True), bounds(x.low, x.high, signed=True))


def _counts(found: ErrorCounts | None) -> Cell:
    return NOTHING if found is None else Cell(number(100 * found.rate))


def _numbers(m: Measured) -> list[Any]:
    cells = [*m.cells.values(), *([m.average] if m.average else [])]
    return [cell.paper for cell in cells if cell.paper is not None]
