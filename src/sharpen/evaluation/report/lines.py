"""Groups the rows of runs into the lines of a table: one line per method and setting, one cell per domain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.report import paper
from sharpen.evaluation.report.statistics import Item
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.settings import decoding
from sharpen.evaluation.runs.store import read_rows
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import EVERY_METHOD
from sharpen.options import as_text, declared
from sharpen.speech.options import Options
from sharpen.text.options import Generation

MACHINE_OPTIONS = ("batch_size", "threads", "device")  # they change rounding and seconds, not the method
COLUMN_OPTIONS = ("noise", "snr", "noise_draw", "language")  # they belong to a domain, not to a setting
OPTIONS = {**declared(Options), **declared(Adaptation)}  # whose declarations say how a setting is labelled
ANSWER_OPTIONS = {**declared(Generation), **declared(Adaptation)}  # the same for a line of a language model
LABELLED_FIRST = ("samples", "steps", "model")


@dataclass(frozen=True)
class Column:
    """A domain of a corpus; with the signal-to-noise ratio and the draw of the noise where noise was mixed in."""

    domain: str
    snr: float | None
    draw: int = 0

    @property
    def key(self) -> str:
        named = self.domain if self.snr is None else f"{self.domain} {self.snr:g} dB"
        return f"{named}, draw {self.draw}" if self.draw else named


@dataclass(frozen=True, eq=False)
class Line:
    """A method in one setting on one corpus, with the rows of all its seeds that did not fail."""

    corpus: str
    method: str
    model: str
    samples: int
    steps: int
    options: Mapping[str, Any]  # without COLUMN_OPTIONS
    cells: Mapping[Column, tuple[Row, ...]]
    label: str = ""  # the method, and the settings in which it differs from the other lines of that method

    @property
    def adapts(self) -> bool:
        return self.steps > 0

    @property
    def scorer(self) -> str:
        """What judged the answers of a language model; empty for speech."""
        return str(self.options.get("scorer", ""))

    @property
    def chosen(self) -> dict[str, Any]:
        """The options without those that the method itself decides: a language model's vote and beam."""
        own = ("decode", "beam_size") if self.scorer and self.options.get("decode") == self.method else ()
        return {key: value for key, value in self.options.items() if key not in own}

    @property
    def chooses_samples(self) -> bool:
        """Whether the method has a G or a beam width; rows store a number in `samples` either way."""
        method = EVERY_METHOD.get(self.method)
        return method is None or method.search in ("sample", "beam") or method.decode == "beam"

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
        """One item per utterance, its errors averaged over the seeds; `only` keeps these (domain, id)."""
        items = []
        for column in self.cells if columns is None else columns:
            by_id: dict[str, list[Row]] = {}
            for row in self.cells.get(column, ()):
                by_id.setdefault(row.id, []).append(row)
            for name, rows in by_id.items():
                if only is None or (column.key, name) in only:
                    errors = sum(row.errors.errors for row in rows) / len(rows)
                    items.append(Item(column.key, name, rows[0].speaker, errors, rows[0].errors.reference))
        return items


def read(folders: Sequence[str | Path]) -> list[Row]:
    """The rows of all these folders. Of rows with the same key it keeps an answer before a failure, else the first.

    All rows of one utterance must have the same reference and language, whatever their method.
    """
    if not folders:
        raise SharpenError("no results given: name one or more folders that `sharpen evaluate --out` wrote")
    rows: dict[str, Row] = {}
    questions: dict[tuple[str, Column, str], tuple[str, str]] = {}
    for folder in folders:
        for row in read_rows(folder):
            if rows.setdefault(row.key, row).failed and not row.failed:
                rows[row.key] = row
            question = row.reference, row.language
            if not row.failed and questions.setdefault((row.corpus, column_of(row), row.id), question) != question:
                raise SharpenError(
                    f"{folder}: {row.corpus} {row.id} has another reference or language than in an earlier folder; "
                    "make one report for each folder"
                )
    if not rows:
        raise SharpenError(f"no rows in {', '.join(map(str, folders))}: run `sharpen evaluate` first")
    return list(rows.values())


def column_of(row: Row) -> Column:
    snr = row.options.get("snr")
    return Column(row.domain, None if snr is None else float(snr), int(row.options.get("noise_draw", 0)))


def group_lines(rows: Iterable[Row]) -> dict[str, list[Line]]:
    """The lines of each corpus, methods in the order of EVERY_METHOD; failed rows are left out."""
    cells: dict[tuple[str, str, str], dict[Column, list[Row]]] = {}
    for row in rows:
        if not row.failed:
            settings = {"model": row.model, "samples": row.samples, "steps": row.steps, **_setting_options(row)}
            key = (row.corpus, row.method, json.dumps(settings, sort_keys=True))
            cells.setdefault(key, {}).setdefault(column_of(row), []).append(row)
    by_corpus: dict[str, list[Line]] = {}
    for (corpus, method, _), by_column in cells.items():
        first = next(iter(by_column.values()))[0]
        ordered = {c: tuple(by_column[c]) for c in sorted(by_column, key=_column_order)}
        by_corpus.setdefault(corpus, []).append(
            Line(corpus, method, first.model, first.samples, first.steps, _setting_options(first), ordered)
        )
    return {corpus: list(_labelled(by_corpus[corpus])) for corpus in sorted(by_corpus)}


def columns(lines: Sequence[Line]) -> list[Column]:
    """All columns of these lines, clean speech first."""
    return sorted({c for line in lines for c in line.cells}, key=_column_order)


def column_names(over: Sequence[Column]) -> dict[Column, str]:
    """The heading of each column: its domain, with ratio and draw only where several occur."""
    ratios = {c.snr for c in over if c.snr is not None}
    domains = Counter(c.domain for c in over)
    return {c: c.key if len(ratios) > 1 or domains[c.domain] > 1 else c.domain for c in over}


def partner(line: Line, method: str, among: Sequence[Line]) -> Line | None:
    """The line of `method` to compare this one with: same model, shared utterances, then most settings in common.

    Ties go to the line nearest to the paper's settings; options of the machine count last. For the line's own method
    only lines nearer to the paper's settings than the line itself are considered.
    """

    def likeness(other: Line) -> tuple[int, int, int, int]:
        same = {key for key in keys if setting_value(line.settings, key) == setting_value(other.settings, key)}
        if not (line.chooses_samples and other.chooses_samples):
            same.discard("samples")
        alike = len(same.difference(MACHINE_OPTIONS))
        return alike, _settings_as_in_paper(other), len(line.ids & other.ids), len(same)

    candidates = [o for o in among if (o.method, o.model) == (method, line.model) and line.ids & o.ids]
    if line.method == method:
        candidates = [o for o in candidates if _settings_as_in_paper(o) > _settings_as_in_paper(line)]
    # A default is not recorded: what one line lacks may be a key of another.
    keys = {key for one in (line, *candidates) for key in one.settings}
    return max(candidates, key=likeness, default=None)


def _settings_as_in_paper(line: Line) -> int:
    """How many of the line's settings are the paper's; its preset is `exact`."""
    papers = {**paper.data()["settings"], "preset": "exact"}
    return sum(papers[key] == line.settings.get(key) for key in ("samples", "steps", "lr", "norms", "preset"))


def _setting_options(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.options.items() if key not in COLUMN_OPTIONS}


def _column_order(c: Column) -> tuple[bool, str, float, int]:
    return c.domain != "clean", c.domain, -(c.snr or 0.0), c.draw


def _labelled(lines: Sequence[Line]) -> Iterator[Line]:
    """Lines in order, each with those settings in its label that its method has in several values."""
    known = list(EVERY_METHOD)
    order = sorted(
        lines,
        key=lambda x: (known.index(x.method) if x.method in known else len(known), x.model, x.samples, x.steps),
    )
    for line in order:
        same = [other.settings for other in order if other.method == line.method]
        parts = [line.method]
        for key in sorted({key for settings in same for key in settings}, key=_label_order):
            if len({json.dumps(setting_value(settings, key)) for settings in same}) > 1:
                value = setting_value(line.settings, key)
                parts.append(said(key, "none" if value == "" else value))
        yield replace(line, label=" · ".join(parts))


def _label_order(key: str) -> tuple[int, str]:
    return (LABELLED_FIRST.index(key) if key in LABELLED_FIRST else len(LABELLED_FIRST)), key


def setting_value(settings: Mapping[str, Any], key: str) -> Any:
    """A setting; a row leaves most options out where they have their defaults."""
    if "scorer" in settings:
        option, base = ANSWER_OPTIONS.get(key), None
    else:
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
