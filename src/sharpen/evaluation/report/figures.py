"""The figures of a report: WER against G, steps and computing time, and the entropy over the steps.

A figure is made only where the rows hold what it shows. All points of a figure are over the same utterances, those that
every point has; the caption gives their number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sharpen.evaluation.report import paper
from sharpen.evaluation.report.lines import MACHINE_OPTIONS, Column, Line, column_names, columns, partner, said
from sharpen.evaluation.report.statistics import Interval, rate

PARTS = ("em-tok", "pg-tok", "ent-tok")  # the methods of the paper's figures over G: samples, then beams
BEAMS = ("em-tok", "em-tok-b", "pg-tok-b", "ent-tok-b")

Ids = set[tuple[str, str]]  # (domain, id)


@dataclass(frozen=True)
class Point:
    x: float
    y: Interval
    label: str = ""
    named: bool = False  # emphasised


@dataclass(frozen=True)
class Series:
    name: str
    method: str
    points: tuple[Point, ...]
    joined: bool = True  # by a line


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]
    level: float | None = None  # the source's WER, a dashed line
    front: tuple[Point, ...] = ()  # those on the Pareto front, from left to right
    x: str = ""  # what is on its axis, if not the figure's


@dataclass(frozen=True)
class FigureData:
    """What a figure shows: panels side by side over the same kind of axes."""

    name: str  # the end of the file's name
    title: str
    x: str
    y: str
    panels: tuple[Panel, ...]
    caption: str
    log2_x: bool = False
    percent: bool = True  # the values are rates, shown in percent
    intervals: bool = True  # whether intervals are drawn


def figures_of(lines: Sequence[Line]) -> list[FigureData]:
    """All figures that the lines of one corpus have the data for."""
    if lines and lines[0].scorer:  # a language model's: of these figures only one is not about the WER
        entropy = _entropy_over_steps(lines, "items")
        return [] if entropy is None else [entropy]
    figures = [
        _wer_over(lines, "samples", PARTS, "samples", "WER against the number of samples"),
        _wer_over(lines, "samples", BEAMS, "samples-beam", "WER against the number of beams or samples", needs="-b"),
        _wer_over(lines, "steps", None, "steps", "WER against the number of updates"),
        _wer_over_time(lines),
        _entropy_over_steps(lines),
    ]
    return [figure for figure in figures if figure is not None]


def _wer_over(
    lines: Sequence[Line], varied: str, methods: Sequence[str] | None, name: str, title: str, needs: str = ""
) -> FigureData | None:
    """WER over one setting while the others are fixed, with a panel for each domain.

    `needs` is a suffix that at least one of the drawn methods must have.
    """
    chosen = [line for line in lines if line.adapts and (methods is None or line.method in methods)]
    called = column_names(columns(lines))
    panels, sizes = [], []
    for column in columns(lines):
        groups = _groups((line for line in chosen if column in line.cells), varied)
        drawn = [group for group in groups if len({getattr(line, varied) for line in group}) > 1]
        if not any(group[0].method.endswith(needs) for group in drawn):
            continue
        shared = shared_ids([line for group in drawn for line in group], [column])
        if not shared:
            continue
        series = tuple(_series(group, varied, column, shared) for group in drawn)
        panels.append(Panel(called[column], series, _level(_source(drawn, lines), [column], shared)))
        sizes.append(f"{called[column]} {len(shared)}")
    if not panels:
        return None
    caption = (
        "Corpus WER with 95 % intervals; points with the same x are drawn side by side. "
        f"Utterances, the same for all points of a panel: {', '.join(sizes)}."
    )
    x = "G, hypotheses at each step" if varied == "samples" else "updates"
    return FigureData(name, title, x, "WER %", tuple(panels), caption, log2_x=True)


def _groups(lines: Iterable[Line], varied: str, ignored: Sequence[str] = MACHINE_OPTIONS) -> list[list[Line]]:
    """Groups of lines that differ only in what is varied or ignored; for each value, the line with most utterances."""
    groups: dict[str, dict[int, Line]] = {}
    for line in lines:
        rest = {k: v for k, v in line.settings.items() if k not in (varied, *ignored)}
        group = groups.setdefault(line.method + json.dumps(rest, sort_keys=True), {})
        at = getattr(line, varied)
        if at not in group or group[at].utterances < line.utterances:
            group[at] = line
    return [[group[at] for at in sorted(group)] for group in groups.values()]


def shared_ids(lines: Sequence[Line], over: Iterable[Column] | None = None) -> Ids:
    """The utterances that all lines have."""
    return set.intersection(*({(item.domain, item.id) for item in line.items(over)} for line in lines))


def _series(group: Sequence[Line], varied: str, column: Column, shared: Ids) -> Series:
    points = tuple(Point(getattr(line, varied), rate(line.items([column], shared))) for line in group)
    return Series(_label(group[0], varied, *MACHINE_OPTIONS), group[0].method, points)


def _label(line: Line, *omitted: str) -> str:
    """The line's label without the settings `omitted`: those on the axis, and those that do not matter here."""
    values = line.settings
    parts = {said(name, values[name]) for name in omitted if name in values}
    return " · ".join(part for part in line.label.split(" · ") if part not in parts)


def _source(drawn: Iterable[Sequence[Line]], lines: Sequence[Line]) -> Line | None:
    """The source line that all these series share; None where they have several."""
    sources = {id(line): line for group in drawn if (line := partner(group[0], "source", lines))}
    return next(iter(sources.values())) if len(sources) == 1 else None


def _level(source: Line | None, over: Sequence[Column] | None, shared: Ids) -> float | None:
    """The source's WER on the same utterances; None unless it was run on all of them."""
    items = source.items(over, shared) if source else []
    return rate(items, resamples=1).value if items and len(items) == len(shared) else None


def _wer_over_time(lines: Sequence[Line]) -> FigureData | None:
    timed = [line for line in _full_length(lines) if all(row.seconds > 0 for row in line.rows)]
    shared = shared_ids(timed) if len(timed) > 1 else set()
    if not shared:
        return None
    series = []
    groups = _groups(timed, "samples", ignored=())  # seconds depend on the machine and its threads
    for group in groups:
        points = tuple(
            Point(_seconds(line, shared), rate(line.items(only=shared)), f"G {line.samples}" if line.adapts else "")
            for line in group
        )
        series.append(Series(_label(group[0], "samples"), group[0].method, points))
    caption = (
        f"{len(shared)} utterances, the same for all points; the table has the intervals. "
        "Seconds depend on the machine and its load. "
        f"{_time_saved(timed, shared)}"
    )
    adapting = [group for group in groups if group[0].adapts]
    panel = Panel("", tuple(series), _level(_source(adapting, lines), None, shared))
    title, x = "WER against computing time", "computing seconds per second of audio"
    return FigureData("time", title, x, "WER %", (panel,), caption.strip(), log2_x=True, intervals=False)


def _full_length(lines: Sequence[Line]) -> list[Line]:
    """Of lines that differ only in their steps: the one with the paper's number of steps, else the longest."""
    kept = []
    for group in _groups(lines, "steps", ignored=()):
        as_in_paper = [line for line in group if line.steps == paper.data()["settings"]["steps"]]
        kept.append(as_in_paper[0] if as_in_paper else group[-1])
    return kept


def _seconds(line: Line, shared: Ids) -> float:
    rows = [row for column, rows in line.cells.items() for row in rows if (column.key, row.id) in shared]
    return sum(row.seconds for row in rows) / sum(row.duration for row in rows)


def _time_saved(timed: Sequence[Line], shared: Ids) -> str:
    """The time of em-tok-b relative to em-tok in the same setting."""
    parts = []
    for line in timed:
        for other in timed:
            if (line.method, other.method) == ("em-tok-b", "em-tok") and other.settings == line.settings:
                saved = 100 * (1 - _seconds(line, shared) / _seconds(other, shared))
                name = _label(line, "samples").removeprefix("em-tok-b").removeprefix(" · ")
                parts.append(
                    f"{abs(saved):.0f} % {'less' if saved > 0 else 'more'} at G = {line.samples}"
                    + (f" ({name})" if name else "")
                )
    (given,) = next(f["values"] for f in paper.data()["figures"] if f["name"] == "fig-time")
    known = f" (the paper: {given['words']} less at G = {given['samples']})"
    return f"Time of em-tok-b against em-tok: {', '.join(parts)}{known}." if parts else ""


def _entropy_over_steps(lines: Sequence[Line], noun: str = "utterances") -> FigureData | None:
    """Mean H_tok before each update, one series for each method at the G nearest to the paper's."""
    papers_g = paper.data()["settings"]["samples"]
    traced = []
    for group in _groups(_longest(line for line in lines if _traces(line)), "samples"):
        traced.append(min(group, key=lambda line: abs(line.samples - papers_g)))
    shared = set.intersection(*(set(_traces(line)) for line in traced)) if traced else set()
    if not shared:
        return None
    series = []
    for line in traced:
        traces = _traces(line)
        mean = np.mean([traces[key] for key in sorted(shared)], axis=0)
        points = tuple(Point(i, Interval(float(v), float(v), float(v), "", 0)) for i, v in enumerate(mean))
        series.append(Series(_label(line, "samples", "steps", *MACHINE_OPTIONS), line.method, points))
    caption = (
        f"Mean over {len(shared)} {noun} and their hypotheses, before each update. Each method measures its own "
        "hypotheses, and beams have lower entropy than samples: compare how much a line falls, not its height."
    )
    panel = Panel("", tuple(series))
    title, x, y = "Entropy over the updates", "updates made", "mean H_tok, nats"
    return FigureData("entropy", title, x, y, (panel,), caption, percent=False, intervals=False)


def _longest(lines: Iterable[Line]) -> list[Line]:
    return [group[-1] for group in _groups(lines, "steps")]


def _traces(line: Line) -> dict[tuple[str, str], list[float]]:
    """The H_tok trace of each utterance under the first seed, without those that stopped early."""
    traces = {
        (column.key, row.id): list(row.trace["H_tok"])
        for column, rows in line.cells.items()
        for row in rows
        if row.seed == line.seeds[0] and len(row.trace.get("H_tok") or ()) > 1
    }
    most_common = Counter(map(len, traces.values())).most_common(1)
    return {key: trace for key, trace in traces.items() if len(trace) == most_common[0][0]}
