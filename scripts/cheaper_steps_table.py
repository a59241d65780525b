"""Prints the tables of cheaper steps of sixteen beams in docs/results/README.md.

    python scripts/cheaper_steps_table.py

The rows are in results/cheaper-steps; those that it is compared with, on the same utterances, in
results/frontier-gaussian and results/frontier-noises. Seconds beside those of other settings are in
results/cheaper-steps-time. A test compares the page with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sharpen.evaluation.report.figures import shared_ids
from sharpen.evaluation.report.frontier import FrontierPoint, RunFrontier, effort_names, frontiers
from sharpen.evaluation.report.lines import read
from sharpen.evaluation.report.markup import difference, percent
from sharpen.evaluation.report.statistics import compare
from sharpen.evaluation.runs.rows import Row
from sharpen.method import guard

RESULTS = Path(__file__).parent.parent / "results"
CONDITIONS = {"Gaussian noise": "frontier-gaussian", "eight other noises": "frontier-noises"}
OTHERS = ("greedy", "beam 5", "beam 16", "high", "max", "paper")
HEAD = ("condition", "utterances", "setting", "WER", "against", "its WER", "difference", "helped / hurt")
TIME_HEAD = ("setting", "dtype", "utterances", "seconds", "part of the paper's")


def rows_of(folder: str) -> list[Row]:
    return list(read([RESULTS / folder]))


def cheaper(point: FrontierPoint) -> bool:
    """Whether it is of cheaper-steps: no effort, or one in bfloat16."""
    return " steps of " in name(point) or point.line.settings["dtype"] == "bfloat16"


def name(point: FrontierPoint) -> str:
    """Of an effort or a plain search, without the options of the run; else what its steps are."""
    if point.named or not point.line.settings["steps"]:
        label = point.label.partition(" · ")[0]
        return "beam 5" if label == "plain" else label
    settings = point.line.settings
    return f"{settings['steps']} steps of {settings['lr']:g}, {settings.get('decode', 'greedy')}"


def errors() -> list[tuple[str, ...]]:
    """A line for each condition, cheaper setting, and setting that it is compared with."""
    made: list[tuple[str, ...]] = []
    for condition, folder in CONDITIONS.items():
        others = rows_of(folder)
        domains = {row.domain for row in others}
        rows = others + [row for row in rows_of("cheaper-steps") if row.domain in domains]
        made += compared(condition, rows)
        loops = {(row.domain, row.id) for row in rows if guard.repeats(row.text or "")}
        if loops:
            kept = [row for row in rows if (row.domain, row.id) not in loops]
            made += compared(f"{condition}, loops left out", kept)
    return made


def compared(condition: str, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The lines of one condition."""
    (found,) = frontiers({condition: rows}, effort_names())
    shared = shared_ids([point.line for point in found.points])
    ours = {f"{name(point)}, {point.line.settings['dtype']}": point for point in found.points if cheaper(point)}
    others = {name(point): point for point in found.points if not cheaper(point)}
    made: list[tuple[str, ...]] = []
    for setting, point in sorted(ours.items()):
        for key in (key for key in OTHERS if key in others):
            pair = compare(point.line.items(only=shared), others[key].line.items(only=shared))
            assert pair is not None
            gain = pair.difference
            made.append(
                (
                    *(condition, utterances(found), setting, percent(point.wer.value), key),
                    *(percent(others[key].wer.value), difference(gain.value, gain.low, gain.high)),
                    f"{pair.helped} / {pair.hurt}",
                )
            )
    return made


def utterances(found: RunFrontier) -> str:
    return str(sum(found.utterances.values()))


def seconds() -> list[tuple[str, ...]]:
    """A line for each setting that was timed."""
    (found,) = frontiers({"time": rows_of("cheaper-steps-time")}, effort_names())
    (paper,) = (point.seconds for point in found.points if name(point) == "paper")
    return [
        (
            *(name(point), str(point.line.settings["dtype"]), utterances(found)),
            *(f"{point.seconds:.1f}", f"1 / {paper / point.seconds:.1f}"),
        )
        for point in found.points
    ]


def table() -> list[str]:
    """The lines of both tables in markdown."""
    return [*markdown(HEAD, errors()), "", *markdown(TIME_HEAD, seconds())]


def markdown(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    made = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return made + ["| " + " | ".join(line) + " |" for line in lines]


if __name__ == "__main__":
    print("\n".join(table()))
