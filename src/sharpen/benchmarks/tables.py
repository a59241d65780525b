"""The result of the benchmark as tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpen.benchmarks.bench import BATCH, MAIN, OURS, WIDE, BenchResult, CaseResult
from sharpen.benchmarks.efforts import EffortCost
from sharpen.benchmarks.machine import STAGES
from sharpen.errors import SharpenError
from sharpen.evaluation.report.drawing import new_figure, save_figure
from sharpen.files import check_writable
from sharpen.speech.efforts import DEFAULT
from sharpen.speech.options import WIDTH
from sharpen.terminal import columns

ENGINES = [("reference", 1), *((engine, batch) for engine in OURS for batch in (1, BATCH))]  # shown side by side
GOALS = {  # ratio -> the goal, whether more is better, its meaning
    "exact_vs_reference": (4.0, True, "em-tok, G = 16, exact: times faster than the reference"),
    "batch4_vs_reference": (5.0, True, "the same in batches of 4 utterances"),
    "fastest_vs_reference": (10.0, True, "the same with sparse padding, as in --preset fastest"),
    "em_tok_vs_greedy_em": (1.5, False, "time of em-tok, G = 16, divided by that of greedy-em, exact"),
    "memory_vs_reference": (0.25, False, f"peak memory at G = {WIDE}, divided by the reference's"),
    "vs_limit": (2.5, False, "time of an exact episode, divided by the machine's limit"),
}


def as_text(result: BenchResult) -> str:
    """All tables: the efforts, then a description of the run and what it measured of episodes."""
    m = result.machine
    head = (
        f"{result.utterances}; {m.threads} threads; matrix products {m.flops / 1e9:.0f} GFLOP/s, "
        f"memory {m.bandwidth / 1e9:.0f} GB/s."
    )
    notes = "\n".join(result.notes)
    if not result.cases:
        return "\n\n".join(part for part in (_efforts(result), head, notes) if part)
    head += "\nSeconds of an episode of 10 steps, mean over the utterances; x = times faster than the reference."
    tables = [_cases(result), notes, _limits(result), _memory(result), _growth(result), _ratios(result)]
    parts = [_efforts(result), head, *tables]
    return "\n\n".join(part for part in parts if part)


def _efforts(result: BenchResult) -> str:
    """What the default and the paper's setting cost, in a sentence for each model, and the table of all efforts."""
    if not result.efforts:
        return ""
    models = dict.fromkeys(one.model for one in result.efforts)
    headlines = [_headline(model, [one for one in result.efforts if one.model == model]) for model in models]
    rows: list[tuple[str, ...]] = [("model", "effort", "n", "seconds", "times plain", "paper / it", "left alone")]
    for one in result.efforts:
        rows.append((one.model, one.effort, str(one.utterances), f"{one.seconds:.2f}", times(one.times_plain),
                     times(one.faster_than_paper), str(one.left_alone)))  # fmt: skip
    foot = (
        "Seconds to transcribe an utterance, mean of n. Left alone: not adapted to, because the effort never adapts "
        "(plain) or the\nmodel was confident."
    )
    return "\n".join(headlines) + f"\n\n{_table(rows)}\n\n{foot}"


def _headline(model: str, costs: Sequence[EffortCost]) -> str:
    usual, paper = (next(one for one in costs if one.effort == effort) for effort in (DEFAULT, "paper"))
    return (
        f"{model}: the default effort takes {times(usual.times_plain)} times a beam search of {WIDTH} (it left "
        f"{usual.left_alone} of {usual.utterances} utterances alone); the paper's setting "
        f"{times(paper.times_plain)} times."
    )


def times(ratio: float) -> str:
    """A factor, with a decimal below ten."""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _cases(result: BenchResult) -> str:
    rows: list[tuple[str, ...]] = [
        ("model", "method", "G", "engine", "B", "n", *STAGES, "total", "x", "per s of audio")
    ]
    for one in result.cases:
        case = one.case
        reference = result.find("reference", case.method, case.samples, model=one.model)
        ratio = f"{reference.seconds / one.seconds:.1f}" if reference else ""
        rows.append((one.model, case.method, str(case.samples), case.engine, str(case.batch), str(one.clips),
                     *(f"{one.stages[s]:.2f}" for s in STAGES), f"{one.seconds:.1f}", ratio,
                     f"{one.seconds / one.audio:.2f}"))  # fmt: skip
    return _table(rows)


def _limits(result: BenchResult) -> str:
    """The seconds of every stage at the machine's limit, and how many times longer ours take."""
    stages = [stage for stage in STAGES if stage != "optimiser"]
    rows = [("engine", "B", *stages, "episode", "x of ours", "x at the limit")]
    reference = result.find("reference", *MAIN)
    for engine, batch in ENGINES[1:]:
        one = result.find(engine, *MAIN, batch=batch)
        if one is None or one.limits is None:
            continue
        total, own = sum(one.limits.values()), one.seconds
        cells = [f"{one.limits[s]:.2f} ({one.stages[s] / max(one.limits[s], 1e-9):.1f})" for s in stages]
        gains = [f"{reference.seconds / t:.1f}" if reference else "" for t in (own, total)]
        rows.append((engine, str(batch), *cells, f"{total:.1f} ({own / total:.2f})", *gains))
    if len(rows) == 1:
        return ""
    head = (
        f"Seconds at the machine's limit (and how many times longer ours take), {result.model}, em-tok, G = 16;\n"
        "x = times faster than the reference: ours, and an episode at the limit:\n"
    )
    return head + _table(rows)


def _memory(result: BenchResult) -> str:
    def shown(size: int | str) -> str:
        return size if isinstance(size, str) else f"{size / 2**20:.0f} MB"

    sizes = ", ".join(f"{engine} {shown(size)}" for engine, size in result.memory.items())
    return f"Peak memory of a process that loads {result.model} and runs one step of em-tok at G = {WIDE}: {sizes}."


def _growth(result: BenchResult) -> str:
    if not result.growth:
        return ""
    rows = [
        (axis, *(f"{value:g}: {seconds:.2f} s" for value, seconds in points)) for axis, points in result.growth.items()
    ]
    return _table([("one step against",), *rows])


def _ratios(result: BenchResult) -> str:
    rows = [("ratio", "measured", "goal", "", "what")]
    for name, value in result.ratios().items():
        goal, more, what = GOALS[name]
        said = "" if value is None else "reached" if reached(name, value) else "NOT reached"
        rows.append((name, "not measured" if value is None else f"{value:.2f}", f"{'>=' if more else '<='} {goal:g}",
                     said, what))  # fmt: skip
    return _table(rows)


def reached(name: str, value: float) -> bool:
    """Whether a ratio has its goal."""
    goal, more, _ = GOALS[name]
    return (value >= goal) == more


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(columns(rows))


def check_plot(path: Path) -> None:
    """Raises now if `plot` could not write to the path later."""
    suffixes = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.lower().lstrip(".") not in suffixes:
        raise SharpenError(f"{path} has no suffix that a figure can have; give one of .{', .'.join(sorted(suffixes))}")
    check_writable(path)


def plot(result: BenchResult, path: Path) -> None:
    """Writes a figure: the stages of an episode for each engine, and the time of a step along each axis."""
    count = 1 + len(result.growth)
    across = min(3, count)
    down = -(-count // across)
    figure = new_figure(4.6 * across, 3.4 * down)
    grid = figure.subplots(down, across, squeeze=False)
    flat: list[Any] = list(grid.flat)
    shown = [result.find(engine, *MAIN, batch=batch) for engine, batch in ENGINES]
    _draw_stages(flat[0], [one for one in shown if one is not None])
    for axes, (name, points) in zip(flat[1:], result.growth.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", color="#2a6f97")
        axes.set(xlabel=name, ylabel="seconds of a step", ylim=(0, 1.1 * max(seconds for _, seconds in points)))
        axes.grid(alpha=0.3)
    for axes in flat[count:]:
        axes.set_visible(False)
    save_figure(figure, path, dpi=150)


def _draw_stages(axes: Any, cases: Sequence[CaseResult]) -> None:
    colours = ["#adb5bd", "#2a6f97", "#e07a5f", "#81b29a", "#3d405b", "#f2cc8f", "#b5838d"]
    names = [f"{one.case.engine}{', batches of 4' if one.case.batch > 1 else ''}" for one in cases]
    left = [0.0] * len(cases)
    for stage, colour in zip(STAGES, colours, strict=True):
        widths = [one.stages[stage] for one in cases]
        axes.barh(names, widths, left=left, color=colour, label=stage)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="seconds of an em-tok episode, G = 16", title="stages of an episode")
    axes.legend(fontsize=7, loc="lower right")
