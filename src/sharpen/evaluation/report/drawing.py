"""Draws the figures of a report with matplotlib: SVG for the HTML page, which sets the colours in CSS, and PNG files.

`new_figure` and `save_figure` are for every plot of the package: they report a missing matplotlib and a path that
cannot be written.
"""

from __future__ import annotations

import importlib
import io
import math
import re
from html import escape
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.report.figures import FigureData, Panel, Point, Series
from sharpen.evaluation.report.labels import PointLabel, wrapped, write

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
CSS_VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", CARD: "--card"} | {
    colour: f"--m-{method}" for method, colour in COLOURS.items() if method != "source"
}
# Without colour a series is told by its marker: the shape is the objective, a filled marker means beam search.
MARKERS = {"source": "x", "beam": "P", "greedy-em": "v", "em-seq": "D", "em": "o", "pg": "^", "ent": "s"}
PANELS_PER_ROW = 3
FRONTIER_WIDTH = 9.0  # inches: 900 pixels at 100 dots per inch, where its labels must be legible
NAMED = "effort"  # in the legend


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of that size in inches."""
    try:
        importlib.import_module("matplotlib")
        figure = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise SharpenError(
            "figures need matplotlib, which is not installed: pip install 'sharpen[report]', or run without figures"
        ) from error
    return figure.Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: str | Path, **options: Any) -> Path:
    """Writes the figure; the suffix of `path` gives the format, and missing folders are made."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, **options)
    except (OSError, ValueError) as error:
        raise SharpenError(f"cannot write the figure to {path}: {error}; choose another path or suffix") from error
    return path


def as_png(data: FigureData, path: Path) -> Path:
    """Writes the figure as a PNG file."""
    return save_figure(_figure(data), path, dpi=150, facecolor="white")


def as_svg(data: FigureData, prefix: str) -> str:
    """The figure as an svg element for the page; `prefix` keeps its ids distinct from those of other figures."""
    figure = _figure(data)
    out = io.StringIO()
    with importlib.import_module("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "sharpen"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', lambda match: _opening_tag(data, match[1]), text, count=1)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for colour, variable in CSS_VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.strip()


def _opening_tag(data: FigureData, view_box: str) -> str:
    """The opening svg tag, with a text description for screen readers."""
    width = 20 * min(PANELS_PER_ROW, len(data.panels)) + 4 if data.name != "frontier" else 5 * FRONTIER_WIDTH
    return (
        f'<svg class="plot" role="img" style="min-width:{width * 0.75:g}rem;max-width:{width * 1.3:g}rem" '
        f'viewBox="{view_box}" xmlns:xlink="http://www.w3.org/1999/xlink"><title>{escape(data.title)}</title>'
        f"<desc>{escape(_description(data))}</desc>"
    )


def _description(data: FigureData) -> str:
    parts = []
    for panel in data.panels:
        for series in panel.series:
            values = ", ".join(f"{_scaled(data, p.y.value):.2f} at {p.x:.3g}" for p in series.points)
            parts.append(f"{panel.title} {series.name}: {values}".strip())
    return f"{data.y} against {data.x}. {'; '.join(parts)}"


def _figure(data: FigureData) -> Any:
    return _draw_frontier(data) if data.name == "frontier" else _draw(data)


def _draw(data: FigureData) -> Any:
    across = min(PANELS_PER_ROW, len(data.panels))
    down = -(-len(data.panels) // across)
    width, height = 3.7 * across + (1.6 if across == 1 else 0), 3.3 * down + 0.7
    figure = new_figure(width, height)
    grid = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, data.panels, strict=False):
        _draw_panel(axes, data, panel, handles)
    for axes in list(grid.flat)[len(data.panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(data.y, color=INK)
    entry_width = 0.6 + 0.085 * max(map(len, handles))  # inches for a marker and the longest name
    columns = max(1, min(len(handles), 2 + across, int(width / entry_width)))
    _legend(figure, handles, columns)
    extra_rows = max(0, -(-len(handles) // columns) - 2)  # the height above has room for two rows of the legend
    figure.set_size_inches(width, height + 0.21 * extra_rows)
    return figure


def _legend(figure: Any, handles: dict[str, Any], columns: int) -> None:
    legend = figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set_color(INK)
        text.set_parse_math(False)  # a name may hold a dollar sign


def _draw_panel(axes: Any, data: FigureData, panel: Panel, handles: dict[str, Any]) -> None:
    if panel.level is not None:
        line = axes.axhline(_scaled(data, panel.level), color=SOFT, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
        handles.setdefault("WER of the source", line)
    for k, series in enumerate(panel.series):
        shift = 1.025 ** (2 * k - len(panel.series) + 1) if data.intervals and data.log2_x else 1.0
        earlier = sum(other.method == series.method for other in panel.series[:k])
        handles.setdefault(series.name, _draw_series(axes, data, series, shift, earlier))
    if data.log2_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(importlib.import_module("matplotlib.ticker").NullLocator())
    _dress(axes, panel.title, data.x)
    axes.margins(x=0.08, y=0.1)
    if data.log2_x:
        points = {point.x for series in panel.series for point in series.points}
        ticks = _ticks(*axes.get_xlim()) if data.name == "time" else sorted(points)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _dress(axes: Any, title: str, x: str) -> None:
    """Title, name of the x axis, grid and spines of a panel."""
    axes.set_title(title, fontsize=11, color=INK, parse_math=False)
    axes.set_xlabel(x, color=INK)
    axes.tick_params(colors=SOFT, labelsize=9)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)


def _ticks(low: float, high: float) -> list[float]:
    """The powers of two between the two numbers; round numbers where there are fewer than two powers."""
    powers = [2.0**k for k in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    if len(powers) > 1:
        return powers
    ticks = importlib.import_module("matplotlib.ticker").MaxNLocator(4).tick_values(low, high).tolist()
    return [tick for tick in ticks if low <= tick <= high]


def _draw_series(axes: Any, data: FigureData, series: Series, shift: float, earlier: int) -> Any:
    """Draws one series and returns its legend handle.

    `shift` multiplies x, so that the intervals of several series do not cover each other. `earlier` counts the series
    of the same method before this one; marker size and line style tell them apart.
    """
    colour = COLOURS.get(series.method, INK)
    beams = series.method.endswith("-b") or series.method == "beam"
    x = [shift * point.x for point in series.points]
    y = [_scaled(data, point.y.value) for point in series.points]
    style = {
        "color": colour,
        "marker": MARKERS.get(series.method, MARKERS.get(series.method.split("-")[0], "o")),
        "markersize": 6 + 3 * earlier,
        "markerfacecolor": colour if beams else CARD,
        "linewidth": 1.8 if beams else 1.3,
        "linestyle": ":" if "togo" in series.method else ("-", "--", "-.")[earlier % 3],
    }
    if data.intervals:
        below = [max(0.0, _scaled(data, p.y.value - p.y.low)) for p in series.points]
        above = [max(0.0, _scaled(data, p.y.high - p.y.value)) for p in series.points]
        handle = axes.errorbar(x, y, yerr=[below, above], elinewidth=0.8, capsize=2, **style).lines[0]
    else:
        (handle,) = axes.plot(x, y, **style)
    for point, value in zip(series.points, y, strict=True):
        if point.label and len(series.points) > 1:
            at = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": 8, "color": colour}
            axes.annotate(point.label, (point.x, value), **at)
    return handle


def _scaled(data: FigureData, value: float) -> float:
    return 100 * value if data.percent else value


def _draw_frontier(data: FigureData) -> Any:
    """Panels in one to three columns, all of one width; the labels are placed when everything else is."""
    across = _frontier_columns(data)
    down = -(-len(data.panels) // across)
    figure = new_figure(FRONTIER_WIDTH, (4.9 if across == 1 else 3.9) * down + 0.4)
    grid = figure.subplots(down, across, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, data.panels, strict=False):
        _draw_frontier_panel(axes, data, panel, handles)
    if NAMED in handles:
        handles[NAMED] = handles.pop(NAMED)  # the last in the legend
    for axes in list(grid.flat)[len(data.panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel(data.y, color=INK)
    _legend(figure, handles, len(handles))
    figure.draw_without_rendering()  # decides where the panels are
    figure.set_layout_engine("none")
    for axes, panel in zip(grid.flat, data.panels, strict=False):
        _write_labels(axes, data, panel)
    return figure


def _frontier_columns(data: FigureData) -> int:
    """As many as leave room for all labels: three at most, two for up to four panels."""
    most = max(sum(len(series.points) for series in panel.series) for panel in data.panels)
    labels = [p.label for panel in data.panels for series in panel.series for p in series.points]
    longest = max(len(line) for label in labels for line in wrapped(label).splitlines())
    wanted = min(len(data.panels), 2 if len(data.panels) <= 4 else 3)
    fitting = 3 if most <= 8 and longest <= 18 else 2 if most <= 14 and longest <= 30 else 1
    return min(wanted, fitting)


def _draw_frontier_panel(axes: Any, data: FigureData, panel: Panel, handles: dict[str, Any]) -> None:
    for series in panel.series:
        colour = COLOURS[series.method]
        x = [point.x for point in series.points]
        y = [_scaled(data, point.y.value) for point in series.points]
        low, high = ([_scaled(data, end) for end in ends] for ends in zip(*map(_ends, series.points), strict=True))
        axes.vlines(x, low, high, color=colour, linewidth=0.8, alpha=0.45, zorder=2)
        style = {"color": colour, "marker": "o", "markersize": 5, "linewidth": 1.3, "zorder": 3}
        (handle,) = axes.plot(x, y, **style, linestyle="-" if series.joined else "none")
        handles.setdefault(series.name, handle)
        named = [_place_of(data, point) for point in series.points if point.named]
        if named:
            style = {"color": colour, "marker": "*", "markersize": 13, "markeredgecolor": INK, "zorder": 4}
            (handle,) = axes.plot(*zip(*named, strict=True), **style, linestyle="none")
            handles.setdefault(NAMED, handle)
    axes.set_xscale("log")
    _dress(axes, panel.title, panel.x or data.x)
    axes.margins(x=0.12, y=0.08)
    ticker = importlib.import_module("matplotlib.ticker")
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    left, right = axes.get_xlim()
    ticks = _round_ticks(left, right)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlim(left, right)
    x, y = _steps(data, panel, right)
    (handle,) = axes.plot(x, y, color=SOFT, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    handles.setdefault("Pareto front", handle)
    axes.set_xlim(left, right)


def _ends(point: Point) -> tuple[float, float]:
    """The interval of a point; the point itself where it has none."""
    known = not math.isnan(point.y.low)
    return (point.y.low, point.y.high) if known else (point.y.value, point.y.value)


def _steps(data: FigureData, panel: Panel, right: float) -> tuple[list[float], list[float]]:
    """The corners of the front: it goes on at the WER of a point until the next one, and at last to the right."""
    x, y = [], []
    for k, point in enumerate(panel.front):
        until = panel.front[k + 1].x if k + 1 < len(panel.front) else right
        x += [point.x, until]
        y += [_scaled(data, point.y.value)] * 2
    return x, y


def _round_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between the two numbers; others where there are fewer than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return ticks if len(ticks) > 1 else _ticks(low, high)


def _write_labels(axes: Any, data: FigureData, panel: Panel) -> None:
    """Labels in the colour of their series: named settings first, then the front, then the others."""
    labelled = [(point, COLOURS[series.method]) for series in panel.series for point in series.points]
    labelled.sort(key=lambda one: (not one[0].named, one[0] not in panel.front))
    lines = [list(zip(*_steps(data, panel, axes.get_xlim()[1]), strict=True))]
    lines += [[_place_of(data, p) for p in series.points] for series in panel.series if series.joined]
    bars = [[(point.x, _scaled(data, end)) for end in _ends(point)] for point, _ in labelled]
    labels = [PointLabel(*_place_of(data, point), point.label, colour, point.named) for point, colour in labelled]
    write(axes, labels, lines, bars, leader=SOFT, ground=CARD)


def _place_of(data: FigureData, point: Point) -> tuple[float, float]:
    return point.x, _scaled(data, point.y.value)
