"""The figures of a report: WER against G, steps and computing time, and the entropy over the steps.

A figure is made only where the rows hold what it shows. All its points are over the same utterances: those that every
one of them has, whose number the caption gives.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sharpen.evaluation.report import paper
from sharpen.evaluation.report.lines import OF_THE_MACHINE, Column, Line, columns, names, partner, said
from sharpen.evaluation.report.statistics import Interval, rate

PARTS = ("em-tok", "pg-tok", "ent-tok")  # the paper's figure of the components, then the one of their beams
BEAMS = ("em-tok", "em-tok-b", "pg-tok-b", "ent-tok-b")

Ids = set[tuple[str, str]]  # (domain, id)


@dataclass(frozen=True)
class Point:
    x: float
    y: Interval
    label: str = ""


@dataclass(frozen=True)
class Series:
    name: str
    method: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]
    level: float | None = None  # the source's WER, a dashed line


@dataclass(frozen=True)
class Plot:
    """Panels side by side over the same kind of axes."""

    name: str  # of a file
    title: str
    x: str
    y: str
    panels: tuple[Panel, ...]
    caption: str
    doubling: bool = False  # the x axis has equal room for each factor
    rates: bool = True  # the values are rates, shown in percent
    bars: bool = True  # intervals are drawn


def plots(found: Sequence[Line]) -> list[Plot]:
    """All figures that the lines of one corpus have the data for."""
    made = [
        _against(found, "samples", PARTS, "samples", "WER against the number of samples"),
        _against(found, "samples", BEAMS, "samples-beam", "WER against the number of beams or samples", needs="-b"),
        _against(found, "steps", None, "steps", "WER against the number of updates"),
        _time(found),
        _entropy(found),
    ]
    return [plot for plot in made if plot is not None]


def _against(
    found: Sequence[Line], varied: str, methods: Sequence[str] | None, name: str, title: str, needs: str = ""
) -> Plot | None:
    """WER over one setting, the others held: a panel for each domain."""
    chosen = [line for line in found if line.adapts and (methods is None or line.method in methods)]
    called = names(columns(found))
    panels, sizes = [], []
    for column in columns(found):
        groups = _groups((line for line in chosen if column in line.cells), varied)
        drawn = [group for group in groups if len({getattr(line, varied) for line in group}) > 1]
        if not any(group[0].method.endswith(needs) for group in drawn):
            continue
        shared = _shared([line for group in drawn for line in group], [column])
        if not shared:
            continue
        series = tuple(_series(group, varied, column, shared) for group in drawn)
        panels.append(Panel(called[column], series, _level(_source(drawn, found), [column], shared)))
        sizes.append(f"{called[column]} {len(shared)}")
    if not panels:
        return None
    caption = (
        "Corpus WER with 95 % intervals; points at the same place are drawn side by side. "
        f"Utterances, the same for all points of a panel: {_list(sizes)}."
    )
    x = "G, hypotheses at each step" if varied == "samples" else "updates"
    return Plot(name, title, x, "WER %", tuple(panels), caption, doubling=True)


def _groups(found: Iterable[Line], varied: str, ignored: Sequence[str] = OF_THE_MACHINE) -> list[list[Line]]:
    """Lines that differ in nothing but what is varied or ignored; one for each value, that with most rows."""
    groups: dict[str, dict[int, Line]] = {}
    for line in found:
        rest = {k: v for k, v in line.settings.items() if k not in (varied, *ignored)}
        group = groups.setdefault(line.method + json.dumps(rest, sort_keys=True), {})
        at = getattr(line, varied)
        if at not in group or group[at].utterances < line.utterances:
            group[at] = line
    return [[group[at] for at in sorted(group)] for group in groups.values()]


def _shared(found: Sequence[Line], over: Iterable[Column] | None = None) -> Ids:
    """The utterances that all lines have."""
    return set.intersection(*({(item.domain, item.id) for item in line.items(over)} for line in found))


def _series(group: Sequence[Line], varied: str, column: Column, shared: Ids) -> Series:
    points = tuple(Point(getattr(line, varied), rate(line.items([column], shared))) for line in group)
    return Series(_label(group[0], varied, *OF_THE_MACHINE), group[0].method, points)


def _label(line: Line, *unsaid_names: str) -> str:
    """The line's label without what the axis says or what does not matter to it."""
    values = line.settings
    unsaid = {said(name, values[name]) for name in unsaid_names if name in values}
    return " · ".join(part for part in line.label.split(" · ") if part not in unsaid)


def _source(drawn: Iterable[Sequence[Line]], found: Sequence[Line]) -> Line | None:
    """The one source that belongs to all these series, if there is such a one."""
    sources = {id(line): line for group in drawn if (line := partner(group[0], "source", found))}
    return next(iter(sources.values())) if len(sources) == 1 else None


def _level(source: Line | None, over: Sequence[Column] | None, shared: Ids) -> float | None:
    """The source's WER on the same utterances, where it was run on all of them."""
    items = source.items(over, shared) if source else []
    return rate(items, resamples=1).value if items and len(items) == len(shared) else None


def _time(found: Sequence[Line]) -> Plot | None:
    timed = [line for line in _full_length(found) if all(row.seconds > 0 for row in line.rows)]
    shared = _shared(timed) if len(timed) > 1 else set()
    if not shared:
        return None
    series = []
    groups = _groups(timed, "samples", ignored=())  # the machine and its threads are what seconds depend on
    for group in groups:
        points = tuple(
            Point(_seconds(line, shared), rate(line.items(only=shared)), f"G {line.samples}" if line.adapts else "")
            for line in group
        )
        series.append(Series(_label(group[0], "samples"), group[0].method, points))
    caption = (
        f"{len(shared)} utterances, the same for all points; the table has the intervals. "
        "Seconds are those of the machine and of the load it had. "
        f"{_saved(timed, shared)}"
    )
    adapting = [group for group in groups if group[0].adapts]
    panel = Panel("", tuple(series), _level(_source(adapting, found), None, shared))
    title, x = "WER against computing time", "computing seconds for a second of audio"
    return Plot("time", title, x, "WER %", (panel,), caption.strip(), doubling=True, bars=False)


def _full_length(found: Sequence[Line]) -> list[Line]:
    """Of lines that differ in their steps alone: that of the paper's ten, or else the longest."""
    kept = []
    for group in _groups(found, "steps", ignored=()):
        ten = [line for line in group if line.steps == paper.data()["settings"]["steps"]]
        kept.append(ten[0] if ten else group[-1])
    return kept


def _seconds(line: Line, shared: Ids) -> float:
    rows = [row for column, rows in line.cells.items() for row in rows if (column.key, row.id) in shared]
    return sum(row.seconds for row in rows) / sum(row.duration for row in rows)


def _saved(timed: Sequence[Line], shared: Ids) -> str:
    """What beams save against samples at the same G."""
    parts = []
    for line in timed:
        if line.method == "em-tok-b":
            for other in timed:
                if other.method == "em-tok" and other.settings == line.settings:
                    share = 1 - _seconds(line, shared) / _seconds(other, shared)
                    models = {other.model for other in timed}
                    whose = f" ({line.model})" if len(models) > 1 else ""
                    parts.append(f"{100 * share:.0f} % at G = {line.samples}{whose}")
    (given,) = next(f["values"] for f in paper.data()["figures"] if f["name"] == "fig-time")
    known = f" (the paper: {given['words']} at G = {given['samples']})"
    return f"Time saved by em-tok-b against em-tok: {_list(parts)}{known}." if parts else ""


def _entropy(found: Sequence[Line]) -> Plot | None:
    """Mean H_tok before each update, one line for each method at the G nearest to the paper's."""
    usual = paper.data()["settings"]["samples"]
    traced = []
    for group in _groups(_longest(line for line in found if _traces(line)), "samples"):
        traced.append(min(group, key=lambda line: abs(line.samples - usual)))
    shared = set.intersection(*(set(_traces(line)) for line in traced)) if traced else set()
    if not shared:
        return None
    series = []
    for line in traced:
        traces = _traces(line)
        mean = np.mean([traces[key] for key in sorted(shared)], axis=0)
        points = tuple(Point(i, Interval(float(v), float(v), float(v), "", 0)) for i, v in enumerate(mean))
        series.append(Series(_label(line, "samples", "steps", *OF_THE_MACHINE), line.method, points))
    caption = (
        f"Mean over {len(shared)} utterances and their hypotheses, before each update. Each method measures its own "
        "hypotheses, and beams are surer than samples: compare the fall of a line, not the height of two."
    )
    panel = Panel("", tuple(series))
    title, x, y = "Entropy over the updates", "updates made", "mean H_tok, nats"
    return Plot("entropy", title, x, y, (panel,), caption, rates=False, bars=False)


def _longest(found: Iterable[Line]) -> list[Line]:
    return [group[-1] for group in _groups(found, "steps")]


def _traces(line: Line) -> dict[tuple[str, str], list[float]]:
    """The H_tok of each utterance under the first seed; those that ended early, or alone, have other lengths."""
    traces = {
        (column.key, row.id): list(row.trace["H_tok"])
        for column, rows in line.cells.items()
        for row in rows
        if row.seed == line.seeds[0] and len(row.trace.get("H_tok") or ()) > 1
    }
    usual = Counter(map(len, traces.values())).most_common(1)
    return {key: trace for key, trace in traces.items() if len(trace) == usual[0][0]}


def _list(parts: Sequence[str]) -> str:
    return ", ".join(parts)
