"""How well the confidence of words, and what is called unreliable, agree with what is right: from collected rows.

    python scripts/confidence_table.py results/confidence/{test-other,accents,languages}.jsonl --pool AC@10+MU@10 \\
        --figure docs/figures/confidence.png > docs/confidence-tables.md

Rows are those of `scripts/fit_confidence.py collect`, of any corpus that `sharpen evaluate` reads. Prints markdown
tables: the expected calibration error, the area under the ROC curve, and for wrong words the area under the
precision-recall curve, of four numbers that could be a word's confidence; the expected and the true word error rates;
how many of the texts with a WER over 50 % are named; the WER of the best of several alternatives; and that of the
answers that the same beams could give. Intervals of 95 % resample utterances. Few words have a calibration error by
chance: in parentheses what they would have if every word were right with just its confidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from answers_table import answers_table
from confidence_rows import (
    MODES,
    Judged,
    area_under_roc,
    average_precision,
    calibration_error,
    condition,
    judged,
    read,
    rivals,
    tokenizer_of,
)

from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.score import word_errors
from sharpen.speech.confidence import features, readings, word_confidence
from sharpen.speech.confidence import judged as with_trust
from sharpen.speech.options import Options

OURS, RIVAL = "ours", "Whisper's word probability"
HALF, ALARMS = 0.5, 0.02
DRAWS = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--pool", default="", help="conditions joined by +, which are one more line")
    parser.add_argument("--figure", type=Path, help="write a reliability diagram")
    args = parser.parse_args()
    rows = [row for path in args.rows for row in read(path)]
    found = list(judged(rows))
    print("\n".join(page(found, args.pool)))
    if args.figure:
        draw(found, args.figure)
    return 0


def page(found: Sequence[Judged], pool: str) -> Iterator[str]:
    groups = {**grouped(found), "all": list(found)}
    some = [one for one in found if condition(one.row) in pool.split("+")]
    groups |= {pool.replace("+", ", "): some} if some else {}
    models = ", ".join(sorted({one.row["model"] for one in found}))
    yield f"# The tables behind [Which words to doubt](confidence.md)\n\nModel: {models}."
    for title, table in TABLES.items():
        yield f"\n## {title}\n"
        yield from table(groups)


def grouped(found: Sequence[Judged]) -> dict[str, list[Judged]]:
    """By condition, the noises of LibriSpeech first, in order of appearance."""
    groups: dict[str, list[Judged]] = {}
    for one in found:
        groups.setdefault(condition(one.row), []).append(one)
    return groups


def scores(one: Judged) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What could be the confidence of each word, by name, and whether the word is right."""
    rows = [
        (*rivals(e).values(), word_confidence(numbers), right)
        for numbers, e, right in zip(features(one.known), one.evidence, one.right, strict=True)
        if right is not None
    ]
    *columns, right = np.array(rows, float).reshape(len(rows), -1).T if rows else np.zeros((5, 0))
    names = [*rivals(one.evidence[0]), OURS]
    return dict(zip(names, columns, strict=True)), right.astype(bool)


def pooled(some: Sequence[Judged]) -> tuple[dict[str, list[np.ndarray]], list[np.ndarray]]:
    each = [scores(one) for one in some]
    return {name: [columns[name] for columns, _ in each] for name in each[0][0]}, [right for _, right in each]


def words_table(groups: dict[str, list[Judged]]) -> Iterator[str]:
    yield "| answer | condition | words | wrong | number | calibration error | area under ROC | AUPR, wrong words |"
    yield "|---|---|---:|---:|---|---:|---:|---:|"
    for mode in MODES:
        for name_of, some in groups.items():
            here = [one for one in some if one.mode == mode]
            if not here:
                continue
            columns, right = pooled(here)
            y = np.concatenate(right)
            for name, column in columns.items():
                x = np.concatenate(column)
                area = f"{area_under_roc(x, y):.3f}" + (gain(columns, right) if name == OURS else "")
                error = f"{calibration_error(x, y):.3f}" + (f" ({by_chance(x):.3f})" if name == OURS else "")
                cells = [error, area, f"{average_precision(-x, ~y):.3f}"]
                yield f"| {mode} | {name_of} | {len(y)} | {(~y).sum()} | {name} | {' | '.join(cells)} |"


def by_chance(confidence: np.ndarray) -> float:
    """The calibration error that so many words have if each is right with just its confidence."""
    rng = np.random.default_rng(0)
    draws = [calibration_error(confidence, rng.random(len(confidence)) < confidence) for _ in range(DRAWS // 10)]
    return float(np.mean(draws))


def gain(columns: dict[str, list[np.ndarray]], right: list[np.ndarray]) -> str:
    """The gain over Whisper's word probability, as an interval."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        at = rng.integers(len(right), size=len(right))
        y = np.concatenate([right[i] for i in at])
        if 0 < y.sum() < len(y):
            ours, rival = (np.concatenate([columns[name][i] for i in at]) for name in (OURS, RIVAL))
            found.append(area_under_roc(ours, y) - area_under_roc(rival, y))
    low, high = np.quantile(found, [0.025, 0.975])
    return f" [{low:+.3f}, {high:+.3f}]"


def texts_table(groups: dict[str, list[Judged]]) -> Iterator[str]:
    yield (
        "| answer | condition | texts | WER | expected WER | WER over 50 % | named at 2 % false alarms | "
        "called unreliable | falsely |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for mode in MODES:
        for name_of, some in groups.items():
            here = [one for one in some if one.mode == mode]
            if not here:
                continue
            expected, called = zip(*map(trusted, here), strict=True)
            said = np.array([len(one.right) for one in here])
            bad = np.array([one.errors > HALF * one.words for one in here])
            wer = sum(one.errors for one in here) / sum(one.words for one in here)
            rates = np.array(expected)
            named = (rates > np.quantile(rates[~bad], 1 - ALARMS)) & bad if not bad.all() else bad
            unreliable = np.array(called)
            cells = [len(here), f"{wer:.1%}", f"{np.average(rates, weights=said):.1%}", bad.sum(), named.sum()]
            cells += [(unreliable & bad).sum(), f"{(unreliable & ~bad).sum()} of {(~bad).sum()}"]
            yield f"| {mode} | {name_of} | {' | '.join(map(str, cells))} |"


def trusted(one: Judged) -> tuple[float, bool]:
    """The expected word error rate of a text, and whether it is called unreliable."""
    made = with_trust(tokenizer_of(one.row), one.segments, one.decoded, one.row["audio"], Options(), spaced=True)
    count = [len(segment.words) for segment in made]
    rate = np.average([segment.expected_wer for segment in made], weights=count)
    return float(rate), sum(n for n, s in zip(count, made, strict=True) if s.unreliable) > sum(count) / 2


def alternatives_table(groups: dict[str, list[Judged]]) -> Iterator[str]:
    yield "| answer | condition | texts to choose from | best of 1 | best of 4 | best of 16 |"
    yield "|---|---|---:|---:|---:|---:|"
    for mode in MODES[1:]:
        for name_of, some in groups.items():
            here = [one for one in some if one.mode == mode]
            if not here:
                continue
            errors = [alternative_errors(one) for one in here]
            words = sum(one.words for one in here)
            best = [sum(min(e[:n]) for e in errors) / words for n in (1, 4, 16)]
            cells = [f"{np.mean([len(e) for e in errors]):.1f}", *(f"{rate:.1%}" for rate in best)]
            yield f"| {mode} | {name_of} | {' | '.join(cells)} |"


def alternative_errors(one: Judged) -> list[int]:
    """The word errors of the best texts, the answer first."""
    found = readings(tokenizer_of(one.row), one.decoded, one.segments, 0.0, one.row["audio"], 16).readings
    normalise: Callable[[str], str] = normaliser_for(one.row["language"])
    reference = normalise(one.row["reference"])
    return [word_errors(reference, normalise(reading.text)).errors for reading in found]


TABLES: dict[str, Callable[[dict[str, list[Judged]]], Iterator[str]]] = {
    "Words": words_table,
    "Texts": texts_table,
    "The best of several": alternatives_table,
    "Which text to answer with": answers_table,
}


def draw(found: Sequence[Judged], path: Path) -> None:
    """Confidence against the share of right words, in ten bins, before and after adapting."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
    for axis, mode in zip(axes, MODES[1:], strict=True):
        columns, right = pooled([one for one in found if one.mode == mode])
        y = np.concatenate(right)
        axis.plot([0, 1], [0, 1], color="#999999", lw=1, ls="--")
        for name, colour in ((RIVAL, "#3b6ea5"), (OURS, "#b2401c")):
            x = np.concatenate(columns[name])
            at = np.minimum((10 * x).astype(int), 9)
            bins = [k for k in range(10) if (at == k).sum() >= 10]
            points = [(x[at == k].mean(), y[at == k].mean()) for k in bins]
            axis.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour, label=name)
        axis.set(title={"beam": "before adapting", "adapted": "after one step"}[mode], xlabel="confidence")
    axes[0].set(ylabel="share of right words")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    raise SystemExit(main())
