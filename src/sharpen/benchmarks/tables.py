"""The benchmark's outcome as tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpen.benchmarks.bench import BATCH, MAIN, WIDE, Line, Outcome
from sharpen.benchmarks.machine import STAGES
from sharpen.errors import SharpenError

ENGINES = [("reference", 1), ("exact", 1), ("exact", BATCH), ("fastest", 1), ("fastest", BATCH)]  # shown side by side
GOALS = {  # name -> the least that will do, whether more is better, what it says
    "exact_vs_reference": (4.0, True, "em-tok, G = 16, exact, against the reference: times faster"),
    "batch4_vs_reference": (5.0, True, "the same, batches of 4 utterances: times faster"),
    "fastest_vs_reference": (10.0, True, "sparse padding, as in --preset fastest, against the reference: times faster"),
    "em_tok_vs_greedy_em": (1.5, False, "em-tok, G = 16, against greedy-em, exact: times its seconds"),
    "memory_vs_reference": (0.25, False, f"peak memory at G = {WIDE} against the reference: share of it"),
    "vs_limit": (2.5, False, "a whole exact episode against the machine's limit: times its seconds"),
}


def as_text(outcome: Outcome) -> str:
    """Every table, with a line about what was run."""
    m = outcome.machine
    head = (
        f"{outcome.what}; {m.threads} threads; matrix products {m.flops / 1e9:.0f} GFLOP/s, "
        f"memory {m.bandwidth / 1e9:.0f} GB/s.\n"
        "Seconds of an episode of 10 steps for a mean utterance; x = times faster than the reference."
    )
    notes = "\n".join(outcome.notes)
    parts = [head, _cases(outcome), notes, _limits(outcome), _memory(outcome), _growth(outcome), _ratios(outcome)]
    return "\n\n".join(part for part in parts if part)


def _cases(outcome: Outcome) -> str:
    rows: list[tuple[str, ...]] = [
        ("model", "method", "G", "engine", "B", "n", *STAGES, "total", "x", "per s of audio")
    ]
    for line in outcome.lines:
        case = line.case
        reference = outcome.find("reference", case.method, case.samples, model=line.model)
        ratio = f"{reference.seconds / line.seconds:.1f}" if reference else ""
        rows.append((line.model, case.method, str(case.samples), case.engine, str(case.batch), str(line.clips),
                     *(f"{line.stages[s]:.2f}" for s in STAGES), f"{line.seconds:.1f}", ratio,
                     f"{line.seconds / line.audio:.2f}"))  # fmt: skip
    return _table(rows)


def _limits(outcome: Outcome) -> str:
    """What every stage would take at the machine's limit, and how many times longer it takes."""
    stages = [stage for stage in STAGES if stage != "optimiser"]
    rows = [("engine", "B", *stages, "episode", "x of ours", "x at the limit")]
    reference = outcome.find("reference", *MAIN)
    for engine, batch in ENGINES[1:]:
        line = outcome.find(engine, *MAIN, batch=batch)
        if line is None or line.limits is None:
            continue
        total, own = sum(line.limits.values()), line.seconds
        cells = [f"{line.limits[s]:.2f} ({line.stages[s] / max(line.limits[s], 1e-9):.1f})" for s in stages]
        gains = [f"{reference.seconds / t:.1f}" if reference else "" for t in (own, total)]
        rows.append((engine, str(batch), *cells, f"{total:.1f} ({own / total:.2f})", *gains))
    if len(rows) == 1:
        return ""
    head = (
        f"Seconds at the machine's limit (and how many times that ours takes), {outcome.model}, em-tok, G = 16;\n"
        "x = times faster than the reference, as ours is and as an episode at the limit would be:\n"
    )
    return head + _table(rows)


def _memory(outcome: Outcome) -> str:
    def told(size: int | str) -> str:
        return size if isinstance(size, str) else f"{size / 2**20:.0f} MB"

    sizes = ", ".join(f"{engine} {told(size)}" for engine, size in outcome.memory.items())
    return f"Peak memory of a process that loads {outcome.model} and runs one step of em-tok at G = {WIDE}: {sizes}."


def _growth(outcome: Outcome) -> str:
    if not outcome.growth:
        return ""
    rows = [
        (axis, *(f"{value:g}: {seconds:.2f} s" for value, seconds in points)) for axis, points in outcome.growth.items()
    ]
    longest = max(map(len, rows))
    padded = [(*row, *[""] * (longest - len(row))) for row in rows]
    return _table([("one step against", *[""] * (longest - 1)), *padded])


def _ratios(outcome: Outcome) -> str:
    rows = [("ratio", "measured", "goal", "", "what")]
    for name, value in outcome.ratios().items():
        goal, more, what = GOALS[name]
        reached = "" if value is None else "reached" if (value >= goal) == more else "NOT reached"
        rows.append((name, "not measured" if value is None else f"{value:.2f}", f"{'>=' if more else '<='} {goal:g}",
                     reached, what))  # fmt: skip
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def plot(outcome: Outcome, path: Path) -> None:
    """Where an episode's time goes before and after, and how a step grows along each axis."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise SharpenError("drawing needs matplotlib: pip install 'sharpen[report]'") from error
    axes_count = 1 + len(outcome.growth)
    columns = min(3, axes_count)
    lines = -(-axes_count // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(4.6 * columns, 3.4 * lines), squeeze=False)
    flat: list[Any] = list(grid.flat)
    found = [outcome.find(engine, *MAIN, batch=batch) for engine, batch in ENGINES]
    _draw_stages(flat[0], [line for line in found if line is not None])
    for axes, (name, points) in zip(flat[1:], outcome.growth.items(), strict=False):
        axes.plot(*zip(*points, strict=True), marker="o", color="#2a6f97")
        axes.set(xlabel=name, ylabel="seconds of a step", ylim=(0, 1.1 * max(seconds for _, seconds in points)))
        axes.grid(alpha=0.3)
    for axes in flat[axes_count:]:
        axes.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_stages(axes: Any, lines: Sequence[Line]) -> None:
    colours = ["#adb5bd", "#2a6f97", "#e07a5f", "#81b29a", "#3d405b", "#f2cc8f", "#b5838d"]
    names = [f"{line.case.engine}{', 4 at once' if line.case.batch > 1 else ''}" for line in lines]
    left = [0.0] * len(lines)
    for stage, colour in zip(STAGES, colours, strict=True):
        widths = [line.stages[stage] for line in lines]
        axes.barh(names, widths, left=left, color=colour, label=stage)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="seconds of an em-tok episode, G = 16", title="where the time goes")
    axes.legend(fontsize=7, loc="lower right")
