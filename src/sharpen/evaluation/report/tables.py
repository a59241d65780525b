"""The tables of a report: error rates with their protocol, paired differences, and details."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sharpen.evaluation.report.comparisons import ErrorRate, LineResult
from sharpen.evaluation.report.frontier import BEAM, GREEDY, PAPER, WIDE, RunFrontier
from sharpen.evaluation.report.lines import Column, column_names, columns, said
from sharpen.evaluation.report.markup import Cell, Table, bounds, number, percent
from sharpen.evaluation.report.statistics import RESAMPLES, Comparison, Interval
from sharpen.evaluation.runs.score import ErrorCounts

FIRST = ("lr", "preset", "guard", "norms")  # options named first in a protocol
EMPTY = Cell("–")


def rates(results: Sequence[LineResult]) -> Table:
    """Methods as rows, domains as columns, then the mean over the domains."""
    over = columns([r.line for r in results])
    called = column_names(over)
    best: dict[tuple[str, Column | None], str] = {}
    for model in {r.line.model for r in results}:
        same = [r for r in results if r.line.model == model]
        best |= {(model, column): _best(r.cells.get(column) for r in same) for column in over}
        best[model, None] = _best(r.average for r in same)
    rows = []
    for r in results:
        row = [Cell(r.line.label), Cell(size_of(r))]
        row += [_rate(r.cells[c], best[r.line.model, c]) if c in r.cells else EMPTY for c in over]
        if len(over) > 1:
            row.append(_rate(r.average, best[r.line.model, None]) if r.average else EMPTY)
        rows.append(tuple(row))
    head = ("method", "utterances", *(called[c] for c in over), *(("average",) if len(over) > 1 else ()))
    notes = [
        "WER in %, all errors over all reference words, with its 95 % interval"
        + ("; average: mean over the domains." if len(over) > 1 else ".")
        + " Bold: the lowest of a column and model, among methods on the same utterances."
    ]
    given = {n.table for r in results for n in _numbers(r)}
    if given:
        notes.append(f"Paper: its number on its whole test set ({', '.join(sorted(given))}), not on these utterances.")
    return Table(f"{results[0].line.corpus}: word error rate", head, tuple(rows), (*notes, protocol(results)))


def differences(results: Sequence[LineResult], against: str) -> Table | None:
    """Each method minus the method `against`, on the utterances that both have."""
    note = (
        "Difference of WER in points with its 95 % interval, on the utterances that both have; negative where the "
        "method makes fewer errors, not significant where the interval includes zero; an average only where no domain "
        "is missing. P(better): share of the resamples in which the method makes fewer errors, a tie counting half. "
        "Helped / hurt / same: utterances with fewer, more and as many errors."
    )
    return paired_table(results, against, _difference, note)


def paired_table(
    results: Sequence[LineResult],
    against: str,
    cell: Callable[[Comparison | None], Cell],
    note: str,
    unit: str = "utterances",
) -> Table | None:
    """Each method beside the method `against`, domain by domain; `unit` is what a method is judged on one by one."""
    chosen = [r for r in results if against in r.paired]
    if not chosen:
        return None
    over = [c for c in columns([r.line for r in chosen]) if any(c in r.paired[against].cells for r in chosen)]
    called = column_names(over)
    others = {r.paired[against].label for r in chosen}
    named = others != {against}  # a column says which line of that method, where it has several
    rows = []
    for r in chosen:
        pair = r.paired[against]
        row = [Cell(r.line.label), *([Cell(pair.label)] if named else [])]
        row += [cell(pair.cells.get(c)) for c in over]
        overall, complete = pair.average, len(pair.cells) == len(over)
        row += [cell(overall if complete else None)] if len(over) > 1 else []
        row += [
            Cell(f"{overall.better:.3f}") if complete and not math.isnan(overall.better) else EMPTY,
            Cell(f"{overall.helped} / {overall.hurt} / {overall.unchanged}"),
            Cell(str(overall.utterances)),
        ]
        rows.append(tuple(row))
    head = (
        "method",
        *(("against",) if named else ()),
        *(called[c] for c in over),
        *(("average",) if len(over) > 1 else ()),
        "P(better)",
        "helped / hurt / same",
        unit,
    )
    drawn = resampled((r.paired[against].average.difference for r in chosen), unit)
    return Table(f"{results[0].line.corpus}: against {against}", head, tuple(rows), (f"{note} {drawn}",))


def details(results: Sequence[LineResult]) -> Table:
    """Kinds of errors, time, the guard and entropy, with all domains and seeds pooled."""
    rows = []
    for r in results:
        s, n = r.summary, max(1, r.summary.words.reference)
        w = s.words
        row = [Cell(r.line.label), Cell(str(s.utterances)), Cell(percent(w.rate))]
        row += [Cell(percent(errors / n)) for errors in (w.substitutions, w.deletions, w.insertions)]
        row += [Cell(percent(s.characters.rate)), Cell(percent(s.utterance_wer)), Cell(percent(s.over_one, 1))]
        row.append(Cell(f"{s.real_time_factor:.3g}"))
        row.append(Cell(str(s.refused)) if r.line.adapts else EMPTY)
        row += [_counts(s.guard_on), _counts(s.guard_off)]
        row.append(EMPTY if s.fell is None else Cell(percent(s.fell, 1)))
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
        "In %, over all domains and seeds together: WER and its substitutions, deletions and insertions; CER, the "
        "character error rate; mean WER of single utterances; share of utterances with a WER over 1. RTF: computing "
        "seconds per second of audio. Guard fired: how often the guard refused the adapted text; then the WER with and "
        "without the guard. H_tok fell: share of utterances whose mean H_tok was lower before the last update than "
        "before the first. Seeds: their number, and if there are several the mean WER over them ± its standard "
        "deviation."
    )
    return Table(f"{results[0].line.corpus}: details", head, tuple(rows), (note,))


def frontier(found: RunFrontier) -> Table:
    """One line for each setting, the fastest first."""
    differences = [key for key in (BEAM, WIDE, PAPER) if key in found.compared]
    counts = [W for W in (BEAM, GREEDY) if W in found.compared]
    rows = []
    for p in found.points:
        row = [Cell(f"{p.label}: {p.setting}" if p.named else p.label), Cell("yes") if p.front else EMPTY]
        row += [Cell(str(sum(found.utterances.values()))), Cell(percent(p.wer.value), bounds(p.wer.low, p.wer.high))]
        row.append(Cell(number(p.seconds)))
        row += [Cell(number(p.times))] if p.times is not None else []
        row += [_difference(p.against.get(key), bold=True) for key in differences]
        row += [_helped(p.against.get(W)) for W in counts]
        rows.append(tuple(row))
    head = (
        "setting",
        "front",
        "utterances",
        "WER",
        "seconds",
        *((f"× {found.reference}",) if found.reference else ()),
        *(f"against {found.compared[key]}" for key in differences),
        *(f"helped / hurt, {found.compared[W]}" for W in counts),
    )
    return Table(f"{found.run}: WER against computing time", head, tuple(rows), (_frontier_note(found),))


def _frontier_note(found: RunFrontier) -> str:
    sizes = ", ".join(f"{domain} {size}" for domain, size in found.utterances.items())
    mean = ", mean over the domains" if len(found.utterances) > 1 else ""
    times = f" × {found.reference}: the same as a multiple of {found.reference}." if found.reference else ""
    left_out = f"; {found.left_out} that some settings lack are left out" if found.left_out else ""
    return (
        "Settings, the fastest first: options that are not named have their defaults, or the same value everywhere. "
        f"Utterances, the same for all: {sizes}{left_out}. WER in %{mean}, with its 95 % interval. Seconds: "
        f"computing time per utterance, which depends on the machine and its load.{times} Against: difference of "
        "WER in points with its 95 % interval, negative where the setting makes fewer errors, bold where the interval "
        "excludes zero. Helped / hurt: utterances with fewer and with more errors. Front: no other setting is as "
        f"fast and as accurate, and better in one of the two. {resampled(point.wer for point in found.points)}"
    )


def protocol(results: Sequence[LineResult]) -> str:
    """How the numbers were made; where lines differ, every value that occurs."""
    lines = [r.line for r in results]
    rows = [row for line in lines for row in line.rows]
    over = columns(lines)
    options = {key for line in lines for key in line.options}
    ratios = sorted({c.snr for c in over if c.snr is not None})
    parts = [
        f"model {_values(line.model for line in lines)}",
        "" if lines[0].scorer else f"normaliser {_values(row.normaliser for row in rows)}",
        f"SNR {_values(ratios)} dB" if ratios else "",
        f"G {_values(sorted(line.samples for line in lines if line.samples))}" if any(x.samples for x in lines) else "",
        f"steps {_values(sorted(line.steps for line in lines if line.adapts))}" if any(x.adapts for x in lines) else "",
    ]
    for key in sorted(options, key=lambda key: (FIRST.index(key) if key in FIRST else len(FIRST), key)):
        values = dict.fromkeys(json.dumps(line.options[key]) for line in lines if key in line.chosen)
        if not values:
            continue
        parts.append(said(key, "") + _values(said("", json.loads(value)).strip() for value in values))
    sizes = {c: {r.cells[c].utterances for r in results if c in r.cells} for c in over}
    called = column_names(over)
    noun = "items" if lines[0].scorer else "utterances"
    parts.append(f"{noun} " + ", ".join(f"{called[c]} {_range(sizes[c])}" for c in over))
    parts.append(f"seeds {_values(sorted(row.seed for row in rows))}")
    packages = dict.fromkeys((name, version) for row in rows for name, version in row.versions.items())
    parts.append("versions " + ", ".join(f"{name} {version}" for name, version in packages))
    return f"Protocol: {'; '.join(part for part in parts if part)}. {resampled((r.summary.wer for r in results), noun)}"


def resampled(intervals: Iterable[Interval], noun: str = "utterances") -> str:
    """How the intervals were made; `noun` is what single answers are called."""
    units: dict[str, set[int]] = {}
    for interval in intervals:
        units.setdefault(interval.unit.replace("utterances", noun), set()).add(interval.units)
    parts = [f"{' or '.join(map(str, sorted(counts)))} {unit}" for unit, counts in sorted(units.items())]
    mixed = any(" and " in unit for unit in units)
    why = " (utterances where a domain does not name its speakers, or has only one)" if mixed else ""
    return (
        f"Intervals: bootstrap, {RESAMPLES:,} resamples of {' or of '.join(parts)}{why}; no interval where a domain "
        "has only one."
    )


def _values(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in values))


def _range(sizes: set[int]) -> str:
    return str(min(sizes)) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"


def size_of(r: LineResult) -> str:
    sizes = {cell.utterances for cell in r.cells.values()}
    return _range(sizes) + (" each" if len(sizes) == 1 and len(r.cells) > 1 else "")


def _best(cells: Iterable[ErrorRate | None]) -> str:
    """The lowest rate as printed, so that all equal numbers are bold; empty where there is only one."""
    complete = [cell.wer.value for cell in cells if cell is not None and cell.complete]
    return percent(min(complete)) if len(complete) > 1 else ""


def _rate(cell: ErrorRate, best: str) -> Cell:
    text = percent(cell.wer.value)
    given = f"{cell.paper.value:.2f}" if cell.paper else ""
    return Cell(text, bounds(cell.wer.low, cell.wer.high), given, cell.complete and text == best)


def _difference(comparison: Comparison | None, bold: bool = False) -> Cell:
    """`bold`: where the interval excludes zero."""
    if comparison is None:
        return EMPTY
    x = comparison.difference
    sure = bold and (x.high < 0 or x.low > 0)
    return Cell(percent(x.value, signed=True), bounds(x.low, x.high, signed=True), best=sure)


def _helped(comparison: Comparison | None) -> Cell:
    return EMPTY if comparison is None else Cell(f"{comparison.helped} / {comparison.hurt}")


def _counts(counts: ErrorCounts | None) -> Cell:
    return EMPTY if counts is None else Cell(number(100 * counts.rate))


def _numbers(r: LineResult) -> list[Any]:
    cells = [*r.cells.values(), *([r.average] if r.average else [])]
    return [cell.paper for cell in cells if cell.paper is not None]
