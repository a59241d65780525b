"""Tables, JSON and a plot of what `sharpen.method.theory` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sharpen.evaluation.report.drawing import new_figure, save_figure
from sharpen.method.theory import UNBIASED, Estimate, Link
from sharpen.terminal import columns


def estimates_json(estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    return [asdict(estimate) for estimate in estimates]


def estimates_table(estimates: Sequence[Estimate]) -> str:
    """One line per estimator, with its values of G side by side; variances are per |g*|^2."""
    counts = sorted({estimate.samples for estimate in estimates})
    lines: dict[tuple[str, ...], dict[int, list[str]]] = {}
    for e in estimates:
        name = (e.objective, e.search, "yes" if e.baseline else "no", e.normalise)
        numbers = [_number(e.bias), _number(e.rescaled_bias), f"{e.relative_variance:.3g}"]
        lines.setdefault(name, {})[e.samples] = numbers
    rows = [
        ["", "", "", "", *(cell for G in counts for cell in (f"G = {G}", "", ""))],
        ["objective", "search", "baseline", "Z", *("bias", "rescaled", "variance") * len(counts)],
    ]
    for names, by_count in lines.items():
        rows.append([*names, *(cell for G in counts for cell in by_count.get(G, ["", "", ""]))])
    return "\n".join(columns(rows, right=range(4, len(rows[1]))))


def prior_work_table(links: Sequence[Link]) -> str:
    """The paper's table of prior methods, with the measured biases."""
    rows: list[tuple[str, ...]] = [("work", "objective", "bias", "on greedy", "correct")]
    for link in links:
        greedy = "" if link.greedy_bias is None else _number(link.greedy_bias)
        rows.append((link.work, link.objective, _number(link.bias), greedy, "yes" if link.correct else "no"))
    return "\n".join(columns(rows, right=(2, 3)))


def plot_estimates(estimates: Sequence[Estimate], path: str | Path) -> None:
    """Bias and variance of every estimator at the largest G, with Z = G and baseline; the suffix gives the format."""
    G = max(estimate.samples for estimate in estimates)
    shown = [
        estimate
        for estimate in estimates
        if (estimate.search == "none" or (estimate.baseline and estimate.normalise == "group"))
        and (estimate.samples == G or estimate.search in ("greedy", "none"))
    ]
    figure = new_figure(11, 5.5)
    left, right = figure.subplots(1, 2, sharey=True)
    colours = ["C2" if estimate.rescaled_bias < UNBIASED else "C3" for estimate in shown]
    for axes, values, label in (
        (left, [e.rescaled_bias for e in shown], "bias of the direction: min over s of |s E[g] - g*| / |g*|"),
        (right, [e.relative_variance for e in shown], "variance: trace Cov[g] / |g*|²"),
    ):
        bars = axes.barh([estimate.objective for estimate in shown], values, color=colours)
        axes.bar_label(bars, ["0" if value < UNBIASED else f"{value:.2g}" for value in values], padding=3)
        axes.set_xlabel(label)
        axes.margins(x=0.1)
        axes.spines[["top", "right"]].set_visible(False)
    left.invert_yaxis()
    figure.suptitle(f"Estimators g of g* = grad H on a model that can be enumerated (G = {G}, Z = G, with baseline)")
    save_figure(figure, path)


def _number(value: float) -> str:
    return f"{value:.1e}" if value < 1e-3 else f"{value:.3f}"
