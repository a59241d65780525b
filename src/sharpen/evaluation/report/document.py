"""A report of runs: tables, figures and single utterances, as markdown, LaTeX, JSON or one page that needs no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from sharpen.errors import SharpenError
from sharpen.evaluation.report import cases, paper
from sharpen.evaluation.report import comparisons as measure
from sharpen.evaluation.report import markup as tables
from sharpen.evaluation.report import tables as sheets
from sharpen.evaluation.report.cases import Case
from sharpen.evaluation.report.comparisons import Measured
from sharpen.evaluation.report.figures import Plot, plots
from sharpen.evaluation.report.lines import Line, lines
from sharpen.evaluation.report.markup import Cell, Table
from sharpen.evaluation.runs.rows import Row
from sharpen.method.objectives import METHODS

SHOWN = "em-tok-b"  # whose single utterances are shown, where it was run


@dataclass(frozen=True)
class Section:
    """One corpus."""

    corpus: str
    measured: tuple[Measured, ...]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...]
    shown: str  # the line whose utterances these are
    helped: tuple[Case, ...]
    hurt: tuple[Case, ...]

    def heading(self, kind: str) -> str:
        return f"{self.corpus}: most {kind} by {self.shown}, against the source"


@dataclass(frozen=True)
class Report:
    sections: tuple[Section, ...]
    failed: tuple[Row, ...]  # counted nowhere else
    notes: tuple[str, ...] = ()


def build(rows: Iterable[Row], against: Sequence[str] = ("source",), without: Sequence[str] = ()) -> Report:
    """The report of these rows, but for the utterances `without`; every method is paired with those in `against`."""
    rows = list(rows)
    missing = sorted(set(without) - {row.id for row in rows})
    if missing:
        raise SharpenError(f"no utterance {missing[0]!r} to leave out; the rows name them by `id`")
    rows = [row for row in rows if row.id not in without]
    unknown = [name for name in against if name not in METHODS]
    if unknown:
        raise SharpenError(f"unknown method {unknown[0]!r} to compare with; choose from {', '.join(METHODS)}")
    sections = tuple(_section(corpus, found, against) for corpus, found in lines(rows).items())
    failed = tuple(row for row in rows if row.failed)
    changed = sum(m.summary.changed for section in sections for m in section.measured)
    notes = [f"Left out: {', '.join(without)}."] if without else []
    if changed:
        notes.append(
            f"{changed} rows hold other error counts than their texts give now. The tables show what the rows hold; "
            "evaluate again if a normaliser or a reference was changed."
        )
    if not sections:
        notes.append("Not one row has an answer: there is nothing to tabulate.")
    return Report(sections, failed, tuple(notes))


def _section(corpus: str, found: list[Line], against: Sequence[str]) -> Section:
    measured = measure.measure(found, against)
    made = [sheets.rates(measured), *(sheets.differences(measured, name) for name in against), sheets.details(measured)]
    adapting = [line for line in found if line.adapts]
    usual = paper.data()["settings"]
    shown = max(
        adapting,
        key=lambda line: (
            line.method == SHOWN,
            line.utterances,
            (line.steps, line.samples) == (usual["steps"], usual["samples"]),
            line.steps,
        ),
        default=None,
    )
    helped, hurt = cases.cases(shown, measure.source_of(shown, found)) if shown else ([], [])
    return Section(
        corpus=corpus,
        measured=tuple(measured),
        tables=tuple(table for table in made if table is not None),
        plots=tuple(plots(found)),
        shown=shown.label if shown else "",
        helped=tuple(helped),
        hurt=tuple(hurt),
    )


def failures(report: Report) -> Table | None:
    if not report.failed:
        return None
    rows = tuple(
        tuple(map(Cell, (f"{row.corpus} {row.domain} {row.id}", row.method, row.failed))) for row in report.failed
    )
    note = f"{len(rows)} of the rows have no answer and are in none of the tables above."
    return Table("Failed", ("utterance", "method", "why"), rows, (note,))


def as_markdown(report: Report, images: Sequence[Sequence[str]] = ()) -> str:
    """The report as markdown; `images` holds for each section the addresses of its figures."""
    parts = [f"> {tables.markdown(note)}\n" for note in report.notes]
    for i, section in enumerate(report.sections):
        parts += [tables.as_markdown(table) for table in section.tables]
        for plot, where in zip(section.plots, images[i] if images else (), strict=False):
            title, caption = map(tables.markdown, (f"{plot.title}, {section.corpus}", plot.caption))
            parts.append(f"![{title}]({quote(where)})\n\n{caption}\n")
        for kind, found in (("helped", section.helped), ("hurt", section.hurt)):
            if found:
                texts = "\n\n".join(map(cases.as_text, found)).replace("```", "'''")
                heading = tables.markdown(section.heading(kind))
                parts.append(f"### {heading}\n\nSigns: {cases.LEGEND}.\n\n```text\n{texts}\n```\n")
    table = failures(report)
    if table:
        parts.append(tables.as_markdown(table))
    return "\n".join(parts)


def as_latex(report: Report) -> str:
    """Floats for a paper that loads booktabs, graphicx and xcolor, and fontenc with T1 for letters such as ę.

    Chinese or Cyrillic texts need XeLaTeX or LuaLaTeX and a font that has them.
    """
    parts = [f"% {' '.join(note.split())}\n" for note in report.notes]
    failed = failures(report)
    labels = iter(_slugs([t.title for section in report.sections for t in section.tables] + ["failed"]))
    for section in report.sections:
        parts += [tables.as_latex(table, next(labels)) for table in section.tables]
        for kind, found in (("helped", section.helped), ("hurt", section.hurt)):
            if found:
                parts.append(cases.as_latex(found, f"{section.heading(kind)}."))
    if failed:
        parts.append(tables.as_latex(failed, next(labels)))
    return "\n".join(parts)


def as_json(report: Report) -> str:
    found = {
        "corpora": [measure.as_json(section.measured) for section in report.sections],
        "failed": [
            {"corpus": row.corpus, "domain": row.domain, "id": row.id, "method": row.method, "why": row.failed}
            for row in report.failed
        ],
        "notes": report.notes,
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def as_html(report: Report, *, figures: bool = True) -> str:
    """One page with its style and figures inside and nothing to fetch."""
    style = files("sharpen.evaluation.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    corpora = "".join(f'<li><a href="#c{i}">{escape(s.corpus)}</a></li>' for i, s in enumerate(report.sections, 1))
    nav = f'<nav aria-label="Corpora"><ul>{corpora}</ul></nav>' if len(report.sections) > 1 else ""
    notes = "".join(f"<p class='note'>{escape(note)}</p>" for note in report.notes)
    articles = "".join(_article(i, section, figures) for i, section in enumerate(report.sections, 1))
    table = failures(report)
    failed = f"<article class='failed'>{tables.as_html(table)}</article>" if table else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Adaptation, measured</title><style>{style}</style></head>\n<body><main>"
        "<h1>Adaptation, measured</h1>"
        "<p class='lead'>Each utterance was adapted to alone, without its transcript; then the answer was compared "
        "with the transcript. Below each table stands how it was made.</p>"
        f"{nav}{notes}\n{articles}{failed}</main></body></html>\n"
    )


def _article(number: int, section: Section, figures: bool) -> str:
    parts = [f"<h2>{escape(section.corpus)}</h2>", *map(tables.as_html, section.tables)]
    if figures and section.plots:
        from sharpen.evaluation.report.drawing import svg

        parts.append("<div class='plots'>")
        for plot in section.plots:
            title, drawn = escape(plot.title), svg(plot, f"c{number}-{plot.name}")
            parts.append(
                f"<section{_wide(plot)}><h3>{title}</h3><figure>"
                f"<div class='scroll' tabindex='0' role='region' aria-label='{title}'>{drawn}</div>"
                f"<figcaption>{escape(plot.caption)}</figcaption></figure></section>"
            )
        parts.append("</div>")
    for kind, found in (("helped", section.helped), ("hurt", section.hurt)):
        if found:
            parts.append(
                f"<section><h3>{escape(section.heading(kind))}</h3><p class='facts'>Signs: {escape(cases.LEGEND)}.</p>"
                f"{''.join(map(cases.as_html, found))}</section>"
            )
    return f'<article id="c{number}">{"".join(parts)}</article>\n'


def _wide(plot: Plot) -> str:
    return " class='wide'" if len(plot.panels) > 1 else ""


def draw(report: Report, folder: str | Path) -> list[list[Path]]:
    """Writes the figures of each section as PNG files and says where they are."""
    from sharpen.evaluation.report.drawing import png

    folder = Path(folder)
    slugs = _slugs([section.corpus for section in report.sections])
    return [
        [png(plot, folder / f"{slug}-{plot.name}.png") for plot in section.plots]
        for slug, section in zip(slugs, report.sections, strict=True)
    ]


def _slugs(names: Sequence[str]) -> list[str]:
    """A name for a file or a label for each of these, no two the same."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"-+", "-", "".join(c if c.isalnum() else "-" for c in name.lower())).strip("-") or "corpus"
        slug, number = plain, 2
        while slug in found:
            slug, number = f"{plain}-{number}", number + 1
        found.append(slug)
    return found
