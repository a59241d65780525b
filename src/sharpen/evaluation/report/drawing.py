"""Figures put on paper with matplotlib: SVG for a page, whose style sheet gives the colours, and PNG files."""

from __future__ import annotations

import importlib
import io
import math
import re
from html import escape
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.report.figures import Panel, Plot, Series

INK, SOFT, LINE, CARD = "#22262a", "#636b73", "#e3e0d8", "#ffffff"
COLOURS = {
    "source": SOFT,
    "beam": "#3b6ea5",
    "greedy-em": "#8a6d1d",
    "em-seq": "#7a4fa3",
    "em-tok": "#d96c22",
    "em-tok-b": "#b2401c",
    "pg-tok": "#2f8f8a",
    "pg-tok-b": "#1d5f5c",
    "ent-tok": "#5aa469",
    "ent-tok-b": "#1e6b45",
    "em-tok-togo": "#c2528b",
    "em-tok-togo-b": "#8c2f60",
}
VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", CARD: "--card"} | {
    colour: f"--m-{method}" for method, colour in COLOURS.items() if method != "source"
}
# In black ink a series is known by its mark: the shape says the objective, filled means beams.
MARKS = {"source": "x", "beam": "P", "greedy-em": "v", "em-seq": "D", "em": "o", "pg": "^", "ent": "s"}
WIDE = 3  # panels in a row


def svg(plot: Plot, prefix: str) -> str:
    """The figure for a page; `prefix` keeps its ids apart from those of others."""
    matplotlib = _matplotlib()
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sharpen"}):
        _draw(plot).savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', lambda found: _opening(plot, found[1]), text, count=1)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.strip()


def png(plot: Plot, path: Path) -> Path:
    """The figure as a file."""
    _matplotlib()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _draw(plot).savefig(path, dpi=150, facecolor="white")
    except OSError as error:
        raise SharpenError(f"cannot write the figure to {path}: {error}; choose another folder") from error
    return path


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        raise SharpenError(
            "figures need matplotlib, which is not here: "
            "pip install 'sharpen[report]', or leave them out with --no-figures"
        ) from error


def _opening(plot: Plot, view: str) -> str:
    """The svg element: as wide as its place, described for those who do not see it."""
    width = 20 * min(WIDE, len(plot.panels)) + 4
    return (
        f'<svg class="plot" role="img" style="min-width:{width * 0.75:g}rem;max-width:{width * 1.3:g}rem" '
        f'viewBox="{view}" xmlns:xlink="http://www.w3.org/1999/xlink"><title>{escape(plot.title)}</title>'
        f"<desc>{escape(_described(plot))}</desc>"
    )


def _described(plot: Plot) -> str:
    parts = []
    for panel in plot.panels:
        for series in panel.series:
            values = ", ".join(f"{_shown(plot, p.y.value):.2f} at {p.x:.3g}" for p in series.points)
            parts.append(f"{panel.title} {series.name}: {values}".strip())
    return f"{plot.y} against {plot.x}. {'; '.join(parts)}"


def _draw(plot: Plot) -> Any:
    across = min(WIDE, len(plot.panels))
    down = -(-len(plot.panels) // across)
    size = (3.7 * across + (1.6 if across == 1 else 0), 3.3 * down + 0.7)
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, plot.panels, strict=False):
        _panel(axes, plot, panel, handles)
    for axes in list(grid.flat)[len(plot.panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(plot.y, color=INK)
    room = 0.6 + 0.085 * max(map(len, handles))  # inches for a mark and the longest name
    columns = max(1, min(len(handles), 2 + across, int(size[0] / room)))
    legend = figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)  # a dollar is a dollar
    more = max(0, -(-len(handles) // columns) - 2)  # rows of the legend that the height does not know of yet
    figure.set_size_inches(size[0], size[1] + 0.21 * more)
    return figure


def _panel(axes: Any, plot: Plot, panel: Panel, handles: dict[str, Any]) -> None:
    if panel.level is not None:
        line = axes.axhline(_shown(plot, panel.level), color=SOFT, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
        handles.setdefault("source, as a level", line)
    for k, series in enumerate(panel.series):
        aside = 1.025 ** (2 * k - len(panel.series) + 1) if plot.bars and plot.doubling else 1.0
        again = sum(other.method == series.method for other in panel.series[:k])
        handles.setdefault(series.name, _curve(axes, plot, series, aside, again))
    if plot.doubling:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(importlib.import_module("matplotlib.ticker").NullLocator())
    axes.set_title(panel.title, fontsize=11, color=INK, parse_math=False)
    axes.set_xlabel(plot.x, color=INK)
    axes.tick_params(colors=SOFT, labelsize=9)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.08, y=0.1)
    if plot.doubling:
        points = {point.x for series in panel.series for point in series.points}
        ticks = _ticks(*axes.get_xlim()) if plot.name == "time" else sorted(points)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two between the two numbers; where there are fewer than two of them, round numbers."""
    powers = [2.0**k for k in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    if len(powers) > 1:
        return powers
    found = importlib.import_module("matplotlib.ticker").MaxNLocator(4).tick_values(low, high).tolist()
    return [tick for tick in found if low <= tick <= high]


def _curve(axes: Any, plot: Plot, series: Series, aside: float, again: int) -> Any:
    """Draws a series; `aside` moves it a little to one side, so that intervals do not cover each other.

    `again` counts the series of the same method before it, from which its size and line tell it.
    """
    colour = COLOURS.get(series.method, INK)
    beams = series.method.endswith("-b") or series.method == "beam"
    x = [aside * point.x for point in series.points]
    y = [_shown(plot, point.y.value) for point in series.points]
    style = {
        "color": colour,
        "marker": MARKS.get(series.method, MARKS.get(series.method.split("-")[0], "o")),
        "markersize": 6 + 3 * again,
        "markerfacecolor": colour if beams else CARD,
        "linewidth": 1.8 if beams else 1.3,
        "linestyle": ":" if "togo" in series.method else ("-", "--", "-.")[again % 3],
    }
    if plot.bars:
        low = [_shown(plot, p.y.value - p.y.low) for p in series.points]
        high = [_shown(plot, p.y.high - p.y.value) for p in series.points]
        bars = [[max(0.0, v) for v in low], [max(0.0, v) for v in high]]
        container = axes.errorbar(x, y, yerr=bars, elinewidth=0.8, capsize=2, **style)
        handle = container.lines[0]
    else:
        (handle,) = axes.plot(x, y, **style)
    for point, value in zip(series.points, y, strict=True):
        if point.label and len(series.points) > 1:
            at = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": 8, "color": colour}
            axes.annotate(point.label, (point.x, value), **at)
    return handle


def _shown(plot: Plot, value: float) -> float:
    return 100 * value if plot.rates else value
