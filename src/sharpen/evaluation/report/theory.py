"""Tables, JSON and a plot of what `sharpen.method.theory` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sharpen.evaluation.report.drawing import new_figure, save_figure
from sharpen.method.theory import UNBIASED, Estimate, Link

NAMES = f"{'objective':<29} {'search':<7} {'baseline':<9} {'Z':<7}"
NUMBERS = f"{'bias':>8} {'rescaled':>8} {'variance':>8}"


def estimates_json(estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    return [asdict(estimate) for estimate in estimates]


def estimates_table(estimates: Sequence[Estimate]) -> str:
    """One line per estimator, with its values of G side by side; variances are per |g*|^2."""
    counts = sorted({estimate.samples for estimate in estimates})
    lines: dict[str, dict[int, str]] = {}
    for e in estimates:
        name = f"{e.objective:<29} {e.search:<7} {'yes' if e.baseline else 'no':<9} {e.normalise:<7}"
        numbers = f"{_number(e.bias):>8} {_number(e.rescaled_bias):>8} {e.relative_variance:>8.3g}"
        lines.setdefault(name, {})[e.samples] = numbers
    empty = " " * len(NUMBERS)
    out = [
        " " * len(NAMES) + " |".join(f"{f'G = {G}':^{len(NUMBERS)}}" for G in counts),
        NAMES + " |".join(NUMBERS for _ in counts),
    ]
    out += [(name + " |".join(by_count.get(G, empty) for G in counts)).rstrip() for name, by_count in lines.items()]
    return "\n".join(out)


def prior_work_table(links: Sequence[Link]) -> str:
    """The paper's table of prior methods, with the measured biases."""
    out = [f"{'work':<15} {'objective':<32} {'bias':>8} {'on greedy':>10}  correct"]
    for link in links:
        greedy = "" if link.greedy_bias is None else _number(link.greedy_bias)
        verdict = "yes" if link.correct else "no"
        out.append(f"{link.work:<15} {link.objective:<32} {_number(link.bias):>8} {greedy:>10}  {verdict}")
    return "\n".join(out)


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
