"""WER against computing time: what each setting of a run costs and gains beside plain search, and the Pareto front.

A run is the rows of one folder, with one corpus and one model: seconds of different runs cannot be compared. All
numbers of a run are over the same utterances, those that every setting has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.report.comparisons import nan_to_none
from sharpen.evaluation.report.figures import FigureData, Ids, Panel, Point, Series, shared_ids
from sharpen.evaluation.report.lines import (
    MACHINE_OPTIONS,
    OPTIONS,
    Line,
    column_names,
    columns,
    group_lines,
    said,
    setting_value,
)
from sharpen.evaluation.report.statistics import Comparison, Interval, compare, rate
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.settings import Setting, of_effort
from sharpen.method.objectives import EVERY_METHOD
from sharpen.speech.efforts import EFFORTS

GREEDY, BEAM, WIDE = 1, 5, 16  # widths of plain search: the source, Whisper's own beam, the paper's baseline
PAPER = "paper"  # the effort that the others are compared with, where a run has it
SEARCH = ("samples", "decode", "beam_size")  # what the width of a plain search follows from
OF_A_RUN = ("model", "preset", "dtype", "snr_rule", *MACHINE_OPTIONS)  # a setting keeps its name whatever these are


@dataclass(frozen=True, eq=False)
class FrontierPoint:
    """One setting of a run."""

    line: Line
    label: str  # its name if it has one, else the method and the options that differ
    setting: str  # the method and the options that differ
    wer: Interval  # mean over the domains
    seconds: float  # of computing per utterance
    times: float | None  # the seconds as a multiple of the reference's
    front: bool  # no other setting is as fast and as accurate, and better in one of the two
    against: Mapping[int | str, Comparison]  # with those of GREEDY, BEAM, WIDE and PAPER that the run has; not itself

    @property
    def named(self) -> bool:
        return self.label != self.setting


@dataclass(frozen=True, eq=False)
class RunFrontier:
    """The settings of one run, the fastest first."""

    run: str
    points: tuple[FrontierPoint, ...]
    reference: str  # the plain search whose seconds are 1, as labelled; empty where none was run
    compared: Mapping[int | str, str]  # the labels of those that all are compared with, by width or name
    utterances: Mapping[str, int]  # in each domain
    left_out: int  # utterances that some settings have and others do not


def frontiers(runs: Mapping[str, Iterable[Row]], names: Mapping[str, str] | None = None) -> list[RunFrontier]:
    """The frontier of every corpus and model of each run; `names` maps a `setting_key` to the name of that setting."""
    found = []
    for run, rows in runs.items():
        lines = [line for by_corpus in group_lines(rows).values() for line in by_corpus]
        parts: dict[tuple[str, str], list[Line]] = {}
        for line in lines:
            parts.setdefault((line.corpus, line.model), []).append(line)
        several = [len({part[i] for part in parts}) > 1 for i in range(2)]
        for part, of_part in parts.items():
            title = ", ".join([run, *(name for name, needed in zip(part, several, strict=True) if needed)])
            found.append(_frontier(title, of_part, names))
        if not parts:
            raise SharpenError(f"{run}: no row has an answer, so there is no WER to set against the time")
    return found


def run_names(folders: Sequence[str | Path]) -> list[str]:
    """A name for the run of each folder: the folder's own, or its whole path where two are called the same."""
    paths = [Path(folder) for folder in folders]
    paths = [path.parent if path.suffix == ".jsonl" else path for path in paths]
    own = [path.resolve().name for path in paths]
    return [name if Counter(own)[name] == 1 else path.as_posix() for name, path in zip(own, paths, strict=True)]


def label(line: Line, names: Mapping[str, str] | None = None) -> str:
    """The name of the line's setting, if it has one; else the method and the options in which the lines differ.

    Of these options, those at their defaults are left out, except G and the steps. A search without adapting is called
    greedy, beam N or mbr N. Where a run has a named setting several times, such as with two presets, the options of the
    run follow.
    """
    values = line.settings
    plain = search_name(line.method, values)
    name = (names or {}).get(setting_key(line.method, values), "")
    if name:
        kept = set(OF_A_RUN)
    else:
        usual = {key for key in OPTIONS if setting_value(values, key) == setting_value(_defaults(values), key)}
        kept = {*values, *OPTIONS}.difference(usual - {"samples", "steps"}, SEARCH if plain else ())
    spoken = {said(key, setting_value(values, key)) for key in kept - {"model"}}
    head = name or plain or line.method
    return " · ".join([head, *(part for part in line.label.split(" · ")[1:] if part in spoken)])


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the defaults of other options follow from."""
    return {"preset": settings.get("preset", "exact")}


def width(method: str, settings: Mapping[str, Any]) -> int | None:
    """The width of a plain search, 1 if it is greedy; None for a method that adapts, and for least risk."""
    kind, _, W = search_name(method, settings).partition(" ")
    return GREEDY if kind == "greedy" else int(W) if kind == "beam" else None


def search_name(method: str, settings: Mapping[str, Any]) -> str:
    """greedy, beam N or mbr N; empty for a method that adapts."""
    row, decode = EVERY_METHOD.get(method), setting_value(settings, "decode")
    if row is None or row.search is not None:
        return ""
    if row.decode == "beam":
        return f"beam {settings['samples']}"
    return "greedy" if decode == "greedy" else f"{decode} {setting_value(settings, 'beam_size')}"


def setting_key(method: str, settings: Mapping[str, Any]) -> str:
    """A setting as one line of text: all that is not at its default, without what belongs to a run.

    The same plain search has the same key, whether it was run as `beam` or as `source` with another `decode`.
    """
    W = width(method, settings)
    chosen = {
        key: value
        for key, value in settings.items()
        if key not in (*OF_A_RUN, *(SEARCH if W else ())) and value != setting_value(_defaults(settings), key)
    }
    return f"{method if W is None else f'plain {W}'} {json.dumps(chosen, sort_keys=True)}"


def key_of(setting: Setting) -> str:
    """The `setting_key` of the rows that this setting gives."""
    values = {"samples": setting.samples, "steps": setting.at[-1], **setting.recorded("exact")}
    return setting_key(setting.method, values)


def effort_names() -> dict[str, str]:
    """The name of each effort by the `setting_key` of its rows."""
    return {key_of(of_effort(name)): name for name in EFFORTS}


def _frontier(run: str, lines: Sequence[Line], names: Mapping[str, str] | None) -> RunFrontier:
    untimed = next((line for line in lines if not all(row.seconds > 0 for row in line.rows)), None)
    if untimed:
        raise SharpenError(f"{run}: rows of {untimed.label} have no seconds; --frontier needs them in every row")
    shared = shared_ids(lines)
    if len(lines) < 2 or not shared:
        raise SharpenError(
            f"{run}: {len(lines)} settings with {len(shared)} utterances in common; --frontier needs two or more "
            "settings that answered the same utterances"
        )
    seconds = {line: _seconds(line, shared) for line in lines}
    wers = {line: rate(line.items(only=shared)) for line in lines}
    front = on_front([(seconds[line], wers[line].value) for line in lines])
    others: dict[int | str, Line] = {W: found for W in (GREEDY, BEAM, WIDE) if (found := _plain(wers, W))}
    reference = others.get(BEAM) or _nearest_beam(wers)
    for line in lines:
        if label(line, names) == PAPER:
            others[PAPER] = line
    points = [
        FrontierPoint(
            line=line,
            label=label(line, names),
            setting=label(line),
            wer=wers[line],
            seconds=seconds[line],
            times=seconds[line] / seconds[reference] if reference else None,
            front=marked,
            against={key: _paired(line, other, shared) for key, other in others.items() if other is not line},
        )
        for line, marked in zip(lines, front, strict=True)
    ]
    over = columns(lines)
    called = column_names(over)
    in_domain = Counter(domain for domain, _ in shared)
    return RunFrontier(
        run=run,
        points=tuple(sorted(points, key=lambda point: point.seconds)),
        reference=label(reference) if reference else "",
        compared={key: PAPER if key == PAPER else label(line) for key, line in others.items()},
        utterances={called[c]: in_domain[c.key] for c in over if in_domain[c.key]},
        left_out=len({one for line in lines for one in line.ids}) - len(shared),
    )


def on_front(costs: Sequence[tuple[float, float]]) -> list[bool]:
    """Which of these (seconds, WER) no other one dominates: is at most as high in both, and lower in one."""
    return [not any(b[0] <= a[0] and b[1] <= a[1] and b != a for b in costs) for a in costs]


def _seconds(line: Line, shared: Ids) -> float:
    """The mean over the utterances; an utterance with several seeds counts once."""
    spent: dict[tuple[str, str], list[float]] = {}
    for column, rows in line.cells.items():
        for row in rows:
            if (column.key, row.id) in shared:
                spent.setdefault((column.key, row.id), []).append(row.seconds)
    return sum(sum(many) / len(many) for many in spent.values()) / len(spent)


def _paired(line: Line, other: Line, shared: Ids) -> Comparison:
    found = compare(line.items(only=shared), other.items(only=shared))
    assert found is not None  # both have all shared utterances
    return found


def _plain(wers: Mapping[Line, Interval], W: int) -> Line | None:
    """The plain search of that width; of several, the one most like all lines, then the most accurate."""
    keys = {key for line in wers for key in line.settings}

    def rank(line: Line) -> tuple[int, float]:
        alike = sum(
            setting_value(line.settings, key) == setting_value(other.settings, key) for other in wers for key in keys
        )
        return alike, -wers[line].value

    return max((line for line in wers if width(line.method, line.settings) == W), key=rank, default=None)


def _nearest_beam(wers: Mapping[Line, Interval]) -> Line | None:
    """The beam nearest in width to BEAM; greedy search where there is no beam."""
    widths = {W for line in wers if (W := width(line.method, line.settings))}
    nearest = min(widths, key=lambda W: (W == GREEDY, abs(W - BEAM)), default=None)
    return None if nearest is None else _plain(wers, nearest)


def figure(found: Sequence[RunFrontier]) -> FigureData:
    """A panel for each run."""
    sizes = ", ".join(f"{one.run} {sum(one.utterances.values())}" for one in found)
    caption = (
        "WER with 95 % intervals against computing time. Line: the front, settings that no other one beats in both. "
        f"Utterances, the same for all points of a panel: {sizes}. Seconds depend on the machine and its load."
    )
    panels = tuple(map(_panel, found))
    return FigureData("frontier", "WER against computing time", panels[0].x, "WER %", panels, caption)


def _panel(found: RunFrontier) -> Panel:
    drawn = {p: Point(p.times or p.seconds, p.wer, p.label, p.named) for p in found.points}
    families: dict[str, list[tuple[int, Point]]] = {}  # plain searches that differ only in their width
    adapting, least_risk = list[Point](), list[Point]()
    for p, point in drawn.items():
        W = width(p.line.method, p.line.settings)
        if W is not None:
            rest = {key: value for key, value in p.line.settings.items() if key not in SEARCH}
            families.setdefault(json.dumps(rest, sort_keys=True), []).append((W, point))
        else:
            (least_risk if search_name(p.line.method, p.line.settings) else adapting).append(point)
    series = [
        Series("greedy and beam search", "beam", tuple(point for _, point in sorted(family, key=lambda one: one[0])))
        for family in families.values()
    ]
    if least_risk:
        series.append(Series("least risk, not adapting", "em-seq", tuple(least_risk), joined=False))
    if adapting:
        series.append(Series("adapting", "em-tok-b", tuple(adapting), joined=False))
    front = tuple(drawn[p] for p in found.points if p.front)
    x = f"time per utterance, × {found.reference}" if found.reference else "seconds per utterance"
    return Panel(found.run, tuple(series), front=front, x=x)


def as_json(found: Sequence[RunFrontier]) -> list[dict[str, Any]]:
    """Rates as fractions, null for NaN."""
    return [
        {
            "run": one.run,
            "reference": one.reference or None,
            "utterances": dict(one.utterances),
            "settings": [
                {
                    "label": p.label,
                    "method": p.line.method,
                    "settings": p.line.settings,
                    "wer": nan_to_none(asdict(p.wer)),
                    "seconds": p.seconds,
                    "times": p.times,
                    "front": p.front,
                    "against": {one.compared[key]: nan_to_none(asdict(pair)) for key, pair in p.against.items()},
                }
                for p in one.points
            ],
        }
        for one in found
    ]
