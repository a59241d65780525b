"""A report of runs: tables, figures and single utterances, as markdown, LaTeX, JSON or one self-contained HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sharpen.errors import SharpenError
from sharpen.evaluation.report import accuracy, cases, comparisons, frontier, markup, paper, tables
from sharpen.evaluation.report.cases import Case
from sharpen.evaluation.report.comparisons import LineResult
from sharpen.evaluation.report.figures import FigureData, figures_of
from sharpen.evaluation.report.frontier import RunFrontier
from sharpen.evaluation.report.lines import Line, group_lines
from sharpen.evaluation.report.markup import Cell, Table
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.text.run import VOTE
from sharpen.method.objectives import EVERY_METHOD

CASES_OF = "em-tok-b"  # the method whose single utterances are shown, if it was run


@dataclass(frozen=True)
class Section:
    """One corpus, or one task of a language model."""

    corpus: str
    results: tuple[LineResult, ...]
    tables: tuple[Table, ...]
    figures: tuple[FigureData, ...]
    shown: str  # the label of the line whose utterances follow
    helped: tuple[Case, ...]
    hurt: tuple[Case, ...]

    def heading(self, kind: str) -> str:
        return f"{self.corpus}: most {kind} by {self.shown}, against the source"


@dataclass(frozen=True)
class Report:
    sections: tuple[Section, ...]
    failed: tuple[Row, ...]  # in none of the sections
    notes: tuple[str, ...] = ()
    frontiers: tuple[RunFrontier, ...] = ()  # WER against computing time, where that was asked for

    @property
    def of_answers(self) -> bool:
        """Whether it is about a language model's answers to tasks, not about transcripts."""
        return any(result.line.scorer for section in self.sections for result in section.results)


def build(
    rows: Iterable[Row],
    against: Sequence[str] = ("source",),
    without: Sequence[str] = (),
    runs: Mapping[str, Sequence[Row]] | None = None,
) -> Report:
    """The report of these rows without the utterances `without`; every method is compared with those in `against`.

    `runs` are the same rows by run, for the frontier of each.
    """
    rows = list(rows)
    missing = sorted(set(without) - {row.id for row in rows})
    if missing:
        raise SharpenError(f"--without {missing[0]}: no row has that id; see the field `id` in rows.jsonl")
    rows = [row for row in rows if row.id not in without]
    answers = accuracy.of_answers(rows)
    methods = (*EVERY_METHOD, *([VOTE] if answers else []))
    unknown = [name for name in against if name not in methods]
    if unknown:
        raise SharpenError(f"unknown method {unknown[0]!r} to compare with; choose from {', '.join(methods)}")
    if answers and runs:
        raise SharpenError(
            "--frontier draws word error rates of speech; the report of tasks has seconds in its details"
        )
    sections = tuple(_section(corpus, lines, against) for corpus, lines in group_lines(rows).items())
    failed = tuple(row for row in rows if row.failed)
    changed = sum(result.summary.changed for section in sections for result in section.results)
    notes = [f"Left out: {', '.join(without)}."] if without else []
    if changed:
        notes.append(
            f"Rows with error counts that differ from a recount of their texts: {changed}. The tables show the counts "
            f"in the rows; evaluate again if a {'scorer' if answers else 'normaliser'} or a reference has changed."
        )
    if not sections:
        notes.append("No row has an answer: there are no tables.")
    kept = {run: [row for row in held if row.id not in without] for run, held in (runs or {}).items()}
    return Report(sections, failed, tuple(notes), tuple(frontier.frontiers(kept, frontier.effort_names())))


def _section(corpus: str, lines: list[Line], against: Sequence[str]) -> Section:
    results = comparisons.line_results(lines, against)
    adapting = [line for line in lines if line.adapts]
    papers = paper.data()["settings"]
    shown = max(
        adapting,
        key=lambda line: (
            line.method == CASES_OF,
            line.utterances,
            (line.steps, line.samples) == (papers["steps"], papers["samples"]),
            line.steps,
        ),
        default=None,
    )
    helped: list[Case] = []
    hurt: list[Case] = []
    if lines[0].scorer:
        made = accuracy.tables_of(results, against, shown)
    else:
        differences = [tables.differences(results, name) for name in against]
        held = [tables.rates(results), *differences, tables.details(results)]
        made = [table for table in held if table is not None]
        if shown:
            helped, hurt = cases.most_changed(shown, comparisons.source_of(shown, lines))
    return Section(
        corpus=corpus,
        results=tuple(results),
        tables=tuple(made),
        figures=tuple(figures_of(lines)),
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
    note = f"Failed rows: {len(rows)}. They are in none of the tables above."
    return Table("Failed", ("item" if report.failed[0].scorer else "utterance", "method", "why"), rows, (note,))


def as_markdown(
    report: Report, images: Sequence[Sequence[str]] = (), command: str = "", frontier_image: str = ""
) -> str:
    """The report as markdown; `images` holds the links to the figures of each section, `command` made the report."""
    parts = [f"Made by `{command}`.\n"] if command else []
    parts += [f"> {markup.markdown(note)}\n" for note in report.notes]
    parts += [markup.as_markdown(tables.frontier(one)) for one in report.frontiers]
    if report.frontiers and frontier_image:
        figure = frontier.figure(report.frontiers)
        parts.append(_image(figure.title, frontier_image, figure.caption))
    for i, section in enumerate(report.sections):
        parts += [markup.as_markdown(table) for table in section.tables]
        for figure, link in zip(section.figures, images[i] if images else (), strict=False):
            parts.append(_image(f"{figure.title}, {section.corpus}", link, figure.caption))
        for kind, chosen in (("helped", section.helped), ("hurt", section.hurt)):
            if chosen:
                texts = "\n\n".join(map(cases.as_text, chosen)).replace("```", "'''")
                heading = markup.markdown(section.heading(kind))
                parts.append(f"### {heading}\n\nSigns: {cases.LEGEND}.\n\n```text\n{texts}\n```\n")
    table = failures(report)
    if table:
        parts.append(markup.as_markdown(table))
    return "\n".join(parts)


def _image(title: str, link: str, caption: str) -> str:
    return f"![{markup.markdown(title)}]({quote(link)})\n\n{markup.markdown(caption)}\n"


def as_latex(report: Report) -> str:
    """Floats for a paper that loads booktabs, graphicx, xcolor, and fontenc with T1 for letters such as ę.

    Chinese or Cyrillic text needs XeLaTeX or LuaLaTeX and a font that has it.
    """
    parts = [f"% {' '.join(note.split())}\n" for note in report.notes]
    failed = failures(report)
    fronts = [tables.frontier(one) for one in report.frontiers]
    titles = [table.title for table in (*fronts, *(t for section in report.sections for t in section.tables))]
    labels = iter(_slugs([*titles, "failed"]))
    parts += [markup.as_latex(table, next(labels)) for table in fronts]
    for section in report.sections:
        parts += [markup.as_latex(table, next(labels)) for table in section.tables]
        for kind, chosen in (("helped", section.helped), ("hurt", section.hurt)):
            if chosen:
                parts.append(cases.as_latex(chosen, f"{section.heading(kind)}."))
    if failed:
        parts.append(markup.as_latex(failed, next(labels)))
    return "\n".join(parts)


def as_json(report: Report) -> str:
    name, numbers = ("tasks", accuracy.as_json) if report.of_answers else ("corpora", comparisons.as_json)
    content: dict[str, Any] = {
        name: [numbers(section.results) for section in report.sections],
        "failed": [
            {"corpus": row.corpus, "domain": row.domain, "id": row.id, "method": row.method, "why": row.failed}
            for row in report.failed
        ],
        "notes": report.notes,
    }
    if report.frontiers:
        content["frontier"] = frontier.as_json(report.frontiers)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def as_html(report: Report, *, figures: bool = True) -> str:
    """One HTML page with its style and figures inline."""
    style = files("sharpen.evaluation.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    corpora = "".join(f'<li><a href="#c{i}">{escape(s.corpus)}</a></li>' for i, s in enumerate(report.sections, 1))
    nav = f'<nav aria-label="Corpora"><ul>{corpora}</ul></nav>' if len(report.sections) > 1 else ""
    notes = "".join(f"<p class='note'>{escape(note)}</p>" for note in report.notes)
    articles = "".join(_article(i, section, figures) for i, section in enumerate(report.sections, 1))
    table = failures(report)
    asked, known = ("prompt", "answer") if report.of_answers else ("utterance", "transcript")
    failed = f"<article class='failed'>{markup.as_html(table)}</article>" if table else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Adaptation results</title><style>{style}</style></head>\n<body><main>"
        "<h1>Adaptation results</h1>"
        f"<p class='lead'>The model adapted to each {asked} separately, without its {known}; the result was then "
        f"scored against the {known}. The note below each table says how it was made.</p>"
        f"{nav}{notes}\n{_frontier_article(report, figures)}{articles}{failed}</main></body></html>\n"
    )


def _frontier_article(report: Report, figures: bool) -> str:
    if not report.frontiers:
        return ""
    figure = frontier.figure(report.frontiers)
    drawn = f"<div class='plots'>{_plot(figure, 'frontier', wide=True)}</div>" if figures else ""
    written = "".join(markup.as_html(tables.frontier(one)) for one in report.frontiers)
    return f'<article id="frontier"><h2>{escape(figure.title)}</h2>{drawn}{written}</article>\n'


def _article(number: int, section: Section, figures: bool) -> str:
    parts = [f"<h2>{escape(section.corpus)}</h2>", *map(markup.as_html, section.tables)]
    if figures and section.figures:
        plots = [_plot(figure, f"c{number}-{figure.name}", len(figure.panels) > 1) for figure in section.figures]
        parts.append(f"<div class='plots'>{''.join(plots)}</div>")
    for kind, chosen in (("helped", section.helped), ("hurt", section.hurt)):
        if chosen:
            parts.append(
                f"<section><h3>{escape(section.heading(kind))}</h3><p class='facts'>Signs: {escape(cases.LEGEND)}.</p>"
                f"{''.join(map(cases.as_html, chosen))}</section>"
            )
    return f'<article id="c{number}">{"".join(parts)}</article>\n'


def _plot(figure: FigureData, prefix: str, wide: bool) -> str:
    """A figure of the page; `prefix` begins its ids."""
    from sharpen.evaluation.report.drawing import as_svg

    title, drawn = escape(figure.title), as_svg(figure, prefix)
    wide_class = " class='wide'" if wide else ""
    return (
        f"<section{wide_class}><h3>{title}</h3><figure>"
        f"<div class='scroll' tabindex='0' role='region' aria-label='{title}'>{drawn}</div>"
        f"<figcaption>{escape(figure.caption)}</figcaption></figure></section>"
    )


def draw(report: Report, folder: str | Path) -> list[list[Path]]:
    """Writes the figures of each section as PNG files and returns their paths."""
    from sharpen.evaluation.report.drawing import as_png

    folder = Path(folder)
    slugs = _slugs([section.corpus for section in report.sections])
    return [
        [as_png(figure, folder / f"{slug}-{figure.name}.png") for figure in section.figures]
        for slug, section in zip(slugs, report.sections, strict=True)
    ]


def draw_frontier(report: Report, path: str | Path) -> Path:
    """Writes the figure of WER against computing time; the suffix of `path` gives the format."""
    from sharpen.evaluation.report.drawing import as_png

    return as_png(frontier.figure(report.frontiers), Path(path))


def _slugs(names: Sequence[str]) -> list[str]:
    """A unique file name or label for each of these."""
    slugs: list[str] = []
    for name in names:
        plain = re.sub(r"-+", "-", "".join(c if c.isalnum() else "-" for c in name.lower())).strip("-") or "corpus"
        slug, number = plain, 2
        while slug in slugs:
            slug, number = f"{plain}-{number}", number + 1
        slugs.append(slug)
    return slugs
