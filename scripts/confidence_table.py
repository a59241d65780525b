"""How well the confidence of words, and what is called unreliable, agree with what is right: from collected rows.

    python scripts/fit_confidence.py collect DATA/librispeech-test-other --limit 16 --noise-dir DATA/ms-snsd \\
        --conditions clean,AC@10,MU@10,GS@10 --rows results/confidence/test-other.jsonl
    python scripts/confidence_table.py results/confidence/test-other.jsonl --pool AC@10+MU@10 \\
        --figure docs/figures/confidence.png

Rows may be of any corpus that `sharpen evaluate` reads, e.g. accents or other languages. Prints markdown tables: the
expected calibration error, the area under the ROC curve, and for wrong words the area under the precision-recall curve,
of four numbers that could be a word's confidence; the expected and the true word error rates; how many of the texts
with a WER over 50 % are named; and the WER of the best of several alternatives. Intervals of 95 % are gains over
Whisper's word probability, and resample utterances. Few words have a calibration error by chance: in parentheses what
they would have if every word were right with just its confidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from confidence_rows import (
    MODES,
    Judged,
    area_under_roc,
    average_precision,
    calibration_error,
    judged,
    read,
    rivals,
)

from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.score import word_errors
from sharpen.models.tokenizer import WhisperTokenizer
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
    found = list(judged([row for path in args.rows for row in read(path)]))
    groups = {"all": found} | grouped(found)
    pool = [one for one in found if one.row["condition"] in args.pool.split("+")]
    groups |= {args.pool.replace("+", ", "): pool} if pool else {}
    for table in (words_table, texts_table, alternatives_table):
        print("\n".join(table(groups)) + "\n")
    if args.figure:
        draw(found, args.figure)
    return 0


def grouped(found: Sequence[Judged]) -> dict[str, list[Judged]]:
    """By condition, in order of appearance."""
    groups: dict[str, list[Judged]] = {}
    for one in found:
        groups.setdefault(one.row["condition"], []).append(one)
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
        for condition, some in groups.items():
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
                yield f"| {mode} | {condition} | {len(y)} | {(~y).sum()} | {name} | {' | '.join(cells)} |"


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
        for condition, some in groups.items():
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
            yield f"| {mode} | {condition} | {' | '.join(map(str, cells))} |"


def trusted(one: Judged) -> tuple[float, bool]:
    """The expected word error rate of a text, and whether it is called unreliable."""
    tokenizer = WhisperTokenizer.of_kind(51865)
    made = with_trust(tokenizer, one.segments, one.decoded, one.row["audio"], Options(), spaced=True)
    count = [len(segment.words) for segment in made]
    rate = np.average([segment.expected_wer for segment in made], weights=count)
    return float(rate), sum(n for n, s in zip(count, made, strict=True) if s.unreliable) > sum(count) / 2


def alternatives_table(groups: dict[str, list[Judged]]) -> Iterator[str]:
    yield "| answer | condition | texts to choose from | best of 1 | best of 4 | best of 16 |"
    yield "|---|---|---:|---:|---:|---:|"
    for mode in MODES[1:]:
        for condition, some in groups.items():
            here = [one for one in some if one.mode == mode]
            if not here:
                continue
            errors = [alternative_errors(one) for one in here]
            words = sum(one.words for one in here)
            best = [sum(min(e[:n]) for e in errors) / words for n in (1, 4, 16)]
            cells = [f"{np.mean([len(e) for e in errors]):.1f}", *(f"{rate:.1%}" for rate in best)]
            yield f"| {mode} | {condition} | {' | '.join(cells)} |"


def alternative_errors(one: Judged) -> list[int]:
    """The word errors of the best texts, the answer first."""
    tokenizer = WhisperTokenizer.of_kind(51865)
    found = readings(tokenizer, one.decoded, one.segments, 0.0, one.row["audio"], 16).readings
    normalise: Callable[[str], str] = normaliser_for(one.row["language"])
    reference = normalise(one.row["reference"])
    return [word_errors(reference, normalise(reading.text)).errors for reading in found]


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
