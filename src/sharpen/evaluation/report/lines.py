"""The rows of runs as the lines of a table: a line for each method and setting, a cell for each domain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sharpen.errors import SharpenError
from sharpen.evaluation.report import paper
from sharpen.evaluation.report.statistics import Interval, Item, Spread, rate, spread
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts, recount
from sharpen.evaluation.runs.settings import decoding
from sharpen.evaluation.runs.store import read_rows
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS
from sharpen.options import as_text, declared
from sharpen.speech.options import Options

OF_THE_MACHINE = ("batch_size", "threads", "device")  # options that change rounding and seconds, not the method
OF_THE_COLUMN = ("noise", "snr", "language")  # options that belong to a domain, not to a setting
OPTIONS = {**declared(Options), **declared(Adaptation)}  # whose declarations say how a setting is labelled
LABELLED_FIRST = ("samples", "steps", "model")


@dataclass(frozen=True)
class Column:
    """A domain of a corpus, at one signal-to-noise ratio where noise was mixed in."""

    domain: str
    snr: float | None

    @property
    def key(self) -> str:
        return self.domain if self.snr is None else f"{self.domain} {self.snr:g} dB"


@dataclass(frozen=True, eq=False)
class Line:
    """A method in one setting on one corpus; rows of all its seeds, none of which failed."""

    corpus: str
    method: str
    model: str
    samples: int
    steps: int
    options: Mapping[str, Any]  # without those of the column
    cells: Mapping[Column, tuple[Row, ...]]
    label: str = ""  # the method, and those settings in which it differs from its other lines

    @property
    def adapts(self) -> bool:
        return self.steps > 0

    @property
    def chooses_samples(self) -> bool:
        """Whether the method has a G, or a width; a row of METHODS without one stores some number all the same."""
        row = METHODS.get(self.method)
        return row is None or row.search in ("sample", "beam") or row.decode == "beam"

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.cells.values() for row in rows]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({row.seed for row in self.rows}))

    @property
    def utterances(self) -> int:
        return len(self.ids)

    @cached_property
    def ids(self) -> frozenset[tuple[Column, str]]:
        return frozenset((column, row.id) for column, rows in self.cells.items() for row in rows)

    @property
    def settings(self) -> dict[str, Any]:
        return {"model": self.model, "samples": self.samples, "steps": self.steps, **self.options}

    def items(self, columns: Iterable[Column] | None = None, only: set[tuple[str, str]] | None = None) -> list[Item]:
        """One for each utterance, its errors the mean over the seeds; `only` keeps these (domain, id)."""
        found = []
        for column in self.cells if columns is None else columns:
            by_id: dict[str, list[Row]] = {}
            for row in self.cells.get(column, ()):
                by_id.setdefault(row.id, []).append(row)
            for name, rows in by_id.items():
                if only is None or (column.key, name) in only:
                    errors = sum(row.errors.errors for row in rows) / len(rows)
                    found.append(Item(column.key, name, rows[0].speaker, errors, rows[0].errors.reference))
        return found


@dataclass(frozen=True)
class Summary:
    """What a line amounts to over all its domains, its rows pooled."""

    utterances: int
    seeds: tuple[int, ...]
    words: ErrorCounts
    characters: ErrorCounts
    wer: Interval  # mean over the domains; an utterance's errors are the mean over its seeds
    spread: Spread | None  # of that over the seeds, on the utterances that all of them have; None for one seed
    utterance_wer: float  # mean over the rows
    over_one: float  # share of the rows with a WER over 1
    real_time_factor: float  # seconds of computing for a second of audio
    refused: int  # rows in which the guard fired
    guard_on: ErrorCounts | None  # words, the source's text wherever the guard fired; None where nothing adapts
    guard_off: ErrorCounts | None  # words, the adapted text everywhere
    fell: float | None  # share of the rows whose mean H_tok is lower at the last step than at the first
    changed: int  # rows whose stored counts are not those of their texts


def read(where: Sequence[str | Path]) -> list[Row]:
    """The rows of all these folders; where two hold the same key, an answer stands before a failure, else the first.

    Answers about one utterance must be to the same question, whatever method gave them.
    """
    if not where:
        raise SharpenError("no results named: give one or more folders that `sharpen evaluate --out` wrote")
    found: dict[str, Row] = {}
    asked: dict[tuple[str, Column, str], tuple[str, str]] = {}
    for folder in where:
        for row in read_rows(folder):
            if found.setdefault(row.key, row).failed and not row.failed:
                found[row.key] = row
            question = row.reference, row.language
            if not row.failed and asked.setdefault((row.corpus, column(row), row.id), question) != question:
                raise SharpenError(
                    f"{folder}: {row.corpus} {row.id} has another reference or language than in a folder before it; "
                    "report them one by one"
                )
    if not found:
        raise SharpenError(f"no rows in {', '.join(map(str, where))}: run `sharpen evaluate` first")
    return list(found.values())


def column(row: Row) -> Column:
    snr = row.options.get("snr")
    return Column(row.domain, None if snr is None else float(snr))


def lines(rows: Iterable[Row]) -> dict[str, list[Line]]:
    """The lines of each corpus, methods in the order of METHODS; rows that failed are left out."""
    cells: dict[tuple[str, str, str], dict[Column, list[Row]]] = {}
    for row in rows:
        if not row.failed:
            settings = {"model": row.model, "samples": row.samples, "steps": row.steps, **_own(row.options)}
            key = (row.corpus, row.method, json.dumps(settings, sort_keys=True))
            cells.setdefault(key, {}).setdefault(column(row), []).append(row)
    found: dict[str, list[Line]] = {}
    for (corpus, method, _), by_column in cells.items():
        first = next(iter(by_column.values()))[0]
        ordered = {c: tuple(by_column[c]) for c in sorted(by_column, key=_order)}
        found.setdefault(corpus, []).append(
            Line(corpus, method, first.model, first.samples, first.steps, _own(first.options), ordered)
        )
    return {corpus: list(_labelled(found[corpus])) for corpus in sorted(found)}


def columns(found: Sequence[Line]) -> list[Column]:
    """All columns of these lines, undisturbed speech first."""
    return sorted({c for line in found for c in line.cells}, key=_order)


def names(found: Sequence[Column]) -> dict[Column, str]:
    """What to call each column: its domain, with the ratio only where that tells two apart."""
    ratios = {c.snr for c in found if c.snr is not None}
    domains = Counter(c.domain for c in found)
    return {c: c.key if len(ratios) > 1 or domains[c.domain] > 1 else c.domain for c in found}


def partner(line: Line, method: str, among: Sequence[Line]) -> Line | None:
    """The line of that method which is most like this one: the same model, then as many equal settings as can be.

    It shares utterances with this one. Of several as much alike, the one nearest to the paper's settings is taken; the
    machine counts last. Of this line's own method only those are taken that are nearer to the paper and to exactness.
    """

    def likeness(other: Line) -> tuple[int, int, int, int]:
        same = {key for key, value in line.settings.items() if key in other.settings and other.settings[key] == value}
        if not (line.chooses_samples and other.chooses_samples):
            same.discard("samples")
        alike = len(same.difference(OF_THE_MACHINE))
        return alike, _usual(other), len(line.ids & other.ids), len(same)

    candidates = [o for o in among if (o.method, o.model) == (method, line.model) and line.ids & o.ids]
    if line.method == method:
        candidates = [o for o in candidates if _usual(o) > _usual(line)]
    return max(candidates, key=likeness, default=None)


def _usual(line: Line) -> int:
    """How many of the line's settings are the paper's, or exact."""
    usual = {**paper.data()["settings"], "preset": "exact"}
    return sum(usual[key] == line.settings.get(key) for key in ("samples", "steps", "lr", "norms", "preset"))


def summary(line: Line) -> Summary:
    rows = line.rows
    counts = [recount(row.reference, row.text, row.normaliser) for row in rows]
    on = off = None
    if line.adapts:
        off = sum((_words(row, row.adapted_text) for row in rows), ErrorCounts())
        on = sum((_words(row, row.source_text if row.refused else row.adapted_text) for row in rows), ErrorCounts())
    traces = [row.trace["H_tok"] for row in rows if len(row.trace.get("H_tok") or ()) > 1]
    return Summary(
        utterances=line.utterances,
        seeds=line.seeds,
        words=sum((row.errors for row in rows), ErrorCounts()),
        characters=sum((characters for _, characters in counts), ErrorCounts()),
        wer=rate(line.items()),
        spread=_spread(line),
        utterance_wer=float(np.mean([row.errors.rate for row in rows])),
        over_one=float(np.mean([row.errors.rate > 1 for row in rows])),
        real_time_factor=sum(row.seconds for row in rows) / max(1e-9, sum(row.duration for row in rows)),
        refused=sum(bool(row.refused) for row in rows),
        guard_on=on,
        guard_off=off,
        fell=float(np.mean([trace[-1] < trace[0] for trace in traces])) if traces else None,
        changed=sum(row.errors != words for row, (words, _) in zip(rows, counts, strict=True)),
    )


def _words(row: Row, text: str) -> ErrorCounts:
    return recount(row.reference, text, row.normaliser)[0]


def _spread(line: Line) -> Spread | None:
    if len(line.seeds) < 2:
        return None
    by_seed: dict[int, dict[tuple[Column, str], Row]] = {}
    for c, rows in line.cells.items():
        for row in rows:
            by_seed.setdefault(row.seed, {})[c, row.id] = row
    shared = set.intersection(*(set(rows) for rows in by_seed.values()))
    if not shared:
        return None
    rates = []
    for one in by_seed.values():
        domains: dict[Column, ErrorCounts] = {}
        for c, name in shared:
            domains[c] = domains.get(c, ErrorCounts()) + one[c, name].errors
        rates.append(float(np.mean([counts.rate for counts in domains.values()])))
    return spread(rates)


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in OF_THE_COLUMN}


def _order(c: Column) -> tuple[bool, str, float]:
    return c.domain != "clean", c.domain, -(c.snr or 0.0)


def _labelled(found: Sequence[Line]) -> Iterator[Line]:
    """Lines in order, each with those settings in its label that its method has in several values."""
    known = list(METHODS)
    order = sorted(
        found,
        key=lambda x: (known.index(x.method) if x.method in known else len(known), x.model, x.samples, x.steps),
    )
    for line in order:
        same = [other.settings for other in order if other.method == line.method]
        parts = [line.method]
        for key in sorted({key for settings in same for key in settings}, key=_label_order):
            if len({json.dumps(setting_value(settings, key)) for settings in same}) > 1:
                parts.append(said(key, setting_value(line.settings, key)))
        yield replace(line, label=" · ".join(parts))


def _label_order(key: str) -> tuple[int, str]:
    return (LABELLED_FIRST.index(key) if key in LABELLED_FIRST else len(LABELLED_FIRST)), key


def setting_value(settings: Mapping[str, Any], key: str) -> Any:
    """A setting; a row leaves most options out where they have their defaults."""
    option, base = OPTIONS.get(key), decoding(settings.get("preset", "exact"))
    default = "not set" if option is None else option.plain(getattr(base, key, option.default))
    return settings.get(key, default)


def said(key: str, value: Any) -> str:
    """A setting in words."""
    if (key, value) == ("steps", 1):
        return "1 step"
    if key == "model":
        return str(value)
    return OPTIONS[key].said(value) if key in OPTIONS else f"{key.replace('_', ' ')} {as_text(value)}"
