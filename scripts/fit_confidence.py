"""Collects what is known about every word of some transcripts, and fits the maps from that to a confidence.

    python scripts/fit_confidence.py collect MANIFEST --conditions clean,GS@10 --noise-dir DIR --rows ROWS
    python scripts/fit_confidence.py fit ROWS [--write src/sharpen/speech/assets/confidence.json]

`collect` writes a row for each utterance and condition: the answer of a greedy search, of a beam search, and of
the model after the one step of the effort normal (in every window, not only in doubtful ones), with the beams that were
found. Features are computed from rows, so they can change without a new collection. Rows are flushed one by one, and a
rerun resumes. With `--rotate N` an utterance gets N of the conditions in turn, not all.

`fit` prints the expected calibration error and the area under the ROC curve, cross-validated by speaker, and writes the
numbers that sharpen.speech.confidence reads. The fitting set was made by

    R="--rotate 2 --noise-dir DATA/ms-snsd --rows results/confidence/fitting.jsonl"
    python scripts/fit_confidence.py collect DATA/librispeech-dev-clean --limit 55 $R
    python scripts/fit_confidence.py collect DATA/commonvoice-en --limit 18 $R
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from confidence_rows import Judged, area_under_roc, calibration_error, judged, read, rivals

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.speech.answers import Decoded
from sharpen.speech.confidence import CONSTANT, features, which_map
from sharpen.speech.options import Options

CONDITIONS = "clean,GS@5,VC@10,BA@2.5,GS@15,BA@10,VC@5,GS@2.5,clean,BA@5,GS@10,VC@2.5"  # of the fitting set
FOLDS = 10
RIDGE = 1.0
HALF, ALARMS = 0.5, 0.02
MAPS = {
    "greedy": ("doubt", "neighbours", "window"),
    "beam": ("doubt", "neighbours", "window", "support"),
    "adapted": ("doubt", "neighbours", "window", "support", "adapted"),
}
EVERYWHERE = Adaptation(samples=5, steps=1, lr=1e-2, gate=0.0)  # the effort normal's step, in every window


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("collect")
    one.add_argument("corpora", nargs="+", help="manifests, or folders that sharpen evaluate reads")
    one.add_argument("--conditions", default=CONDITIONS, help="clean or NOISE@SNR, joined by commas")
    one.add_argument("--rotate", type=int, help="how many of the conditions an utterance gets; all unless given")
    one.add_argument("--noise-dir", help="the folder of MS-SNSD's clips")
    one.add_argument("--limit", type=int, help="utterances of each corpus, of an order that is always the same")
    one.add_argument("--model", default="base")
    one.add_argument("--beam-size", type=int, default=5)
    one.add_argument("--most", type=int, help="end after so many new rows")
    one.add_argument("--rows", type=Path, required=True)
    one.set_defaults(run=collect)
    one = commands.add_parser("fit")
    one.add_argument("rows", type=Path)
    one.add_argument("--write", type=Path, metavar="JSON", help="write the numbers to this file")
    one.set_defaults(run=fit)
    args = parser.parse_args()
    try:
        return args.run(args)
    except SharpenError as error:
        parser.error(str(error))


def collect(args: argparse.Namespace) -> int:
    import torch

    import sharpen
    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.speech.decoding import Window, decode
    from sharpen.speech.noise import corruption

    torch.set_num_threads(1)
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {key(row) for row in read(args.rows)} if args.rows.exists() else set()
    conditions = args.conditions.split(",")
    noises = {c: None if c == "clean" else corruption(*parsed(c), args.noise_dir) for c in conditions}
    speech = sharpen.load(args.model).speech
    turns = args.rotate or len(conditions)
    plan = [
        (u, conditions[(i * turns + k) % len(conditions)])
        for where in args.corpora
        for i, u in enumerate(read_corpus(where).first(args.limit or 10**9).utterances)
        for k in range(turns)
    ]
    new = 0
    with args.rows.open("a", encoding="utf-8") as file:
        for u, condition in plan:
            row: dict[str, Any] = {"set": u.corpus, "id": u.id, "condition": condition}
            if key(row) in done:
                continue
            if new == args.most:
                break
            samples = (u if noises[condition] is None else u.within(noises[condition])).samples()
            window = [Window(u.id, samples)]
            plain = Options(language=u.language, adapt=None, decode="greedy", padding="condensed")
            wide = replace(plain, adapt=EVERYWHERE, decode="mbr", beam_size=args.beam_size)
            start = time.perf_counter()
            greedy = decode(speech, window, plain, [u.language])[0]
            (found,) = decode(speech, window, wide, [u.language])
            row |= {"speaker": u.speaker, "language": u.language, "reference": u.reference, "model": args.model}
            row |= {"seconds": round(time.perf_counter() - start, 2), "audio": round(len(samples) / 16000, 2)}
            row["greedy"] = packed(greedy)
            how = found.adaptation
            row["beam"] = packed(how.source if how else found)
            row["adapted"] = packed(how.result) if how and how.trace.steps else None
            row["refused"] = how.refused if how else ""
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            new += 1
    print(f"{new} new rows, {len(plan) - len(done) - new} to go")
    return 0


def parsed(condition: str) -> tuple[str, float]:
    noise, _, snr = condition.partition("@")
    try:
        return noise, float(snr)
    except ValueError:
        raise SharpenError(f"the condition is {condition!r}; expected clean, or a noise such as GS@10") from None


def packed(decoded: Decoded) -> dict[str, Any]:
    """An answer as a row keeps it; its text follows from its tokens."""
    return {
        "tokens": decoded.tokens,
        "logprobs": [round(x, 3) for x in decoded.logprobs],
        "entropies": [round(x, 3) for x in decoded.entropies],
        "temperature": decoded.temperature,
        "avg_logprob": round(decoded.avg_logprob, 3),
        "no_speech": round(decoded.no_speech_prob, 3),
        "speech": decoded.is_speech,
        "finished": decoded.finished,
        "beams": [[round(y.logprob, 3), y.content] for y in decoded.beams],
    }


def key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["set"], row["id"], row["condition"]


def fit(args: argparse.Namespace) -> int:
    """Fits the maps, what is missing, and when to call a text unreliable; prints how well they do on other speakers."""
    found = list(judged(read(args.rows)))
    table = gather(found)
    maps, outside = {}, np.full(len(table.right), np.nan)
    print("| map | answers | words | wrong | numbers | calibration error | area under ROC |")
    print("|---|---:|---:|---:|---|---:|---:|")
    for name, columns in MAPS.items():
        here = table.maps == name
        X = np.array([[numbers[c] for c in columns] for numbers, used in zip(table.numbers, here, strict=True) if used])
        y, folds = table.right[here], table.folds[here]
        for k in range(FOLDS):
            weights = logistic(X[folds != k], y[folds != k])
            outside[np.flatnonzero(here)[folds == k]] = predicted(X[folds == k], weights)
        maps[name] = dict(zip([*columns, CONSTANT], np.round(logistic(X, y), 4).tolist(), strict=True))
        answers = len(set(table.answers[here].tolist()))
        for title, score in [*((t, v[here]) for t, v in table.others.items()), ("ours", outside[here])]:
            measures = f"{calibration_error(score, y):.3f} | {area_under_roc(score, y):.3f}"
            print(f"| {name} | {answers} | {len(y)} | {(~y).sum()} | {title} | {measures} |")
    wrong = np.bincount(table.answers, 1 - outside, len(found))
    maps |= of_texts(found, wrong)
    sets = {name: sum(one.row["set"] == name for one in found) for name in {one.row["set"]: 0 for one in found}}
    about = {"made by": "scripts/fit_confidence.py", "answers": sets, "words": len(outside)}
    text = json.dumps({"about": about, "maps": maps}, indent=1) + "\n"
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    print(text)
    return 0


@dataclass(frozen=True)
class Words:
    """All words of all answers, one below the other."""

    numbers: list[dict[str, float]]  # features
    maps: np.ndarray  # which map they are for
    right: np.ndarray
    answers: np.ndarray  # the number of the answer that each is in
    folds: np.ndarray  # a speaker is in one of them
    others: dict[str, np.ndarray]  # what else could be taken for a confidence


def gather(found: Sequence[Judged]) -> Words:
    speakers = {name: i % FOLDS for i, name in enumerate(sorted({one.row["speaker"] for one in found}))}
    rows = [
        (numbers, which_map(numbers), right, i, speakers[one.row["speaker"]], rivals(e))
        for i, one in enumerate(found)
        for numbers, e, right in zip(features(one.known), one.evidence, one.right, strict=True)
        if right is not None
    ]
    numbers, maps, right, answers, folds, others = zip(*rows, strict=True)
    titles = others[0]
    arrays = (np.array(values) for values in (maps, right, answers, folds))
    return Words(list(numbers), *arrays, {t: np.array([one[t] for one in others]) for t in titles})


def of_texts(found: Sequence[Judged], wrong: np.ndarray) -> dict[str, dict[str, float]]:
    """How many words are missing beside those that are wrong, and the expected error rate that is too much.

    Of the texts with at most half of their words wrong, 2 % may be called unreliable.
    """
    gaps = [math.fsum(a.probability for gap in one.known.network.gaps for a in gap) for one in found]
    deleted = np.array([one.deleted for one in found], float)
    X = np.stack([wrong, np.array(gaps)], 1)
    missing = np.linalg.lstsq(X, deleted, rcond=None)[0].clip(0)
    words = np.array([len(one.right) for one in found])
    expected = (wrong + X @ missing) / words
    rates = np.array([one.errors / max(1, one.words) for one in found])
    threshold = float(np.quantile(expected[rates <= HALF], 1 - ALARMS))
    named = (expected > threshold)[rates > HALF]
    print(f"\nexpected {(wrong + X @ missing).sum():.0f} errors, {sum(one.errors for one in found)} were made;")
    print(f"{named.sum()} of {len(named)} texts with a WER over {HALF:.0%} are over {threshold:.2f}\n")
    return {
        "missing": {"wrong": round(float(missing[0]), 4), "between": round(float(missing[1]), 4)},
        "unreliable": {"wer": round(threshold, 3)},
    }


def logistic(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The weights and the constant of the most probable logistic map, weakly regularised, by Newton's method."""
    X = np.column_stack([X, np.ones(len(X))])
    penalty = np.diag([RIDGE] * (X.shape[1] - 1) + [0.0])
    weights = np.zeros(X.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-X @ weights))
        step = np.linalg.solve((X.T * (p * (1 - p))) @ X + penalty, X.T @ (p - y) + penalty @ weights)
        weights = weights - step
        if np.abs(step).max() < 1e-8:
            return weights
    raise SharpenError("the fit does not converge: are there right and wrong words among the rows?")


def predicted(X: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(X @ weights[:-1] + weights[-1])))


if __name__ == "__main__":
    raise SystemExit(main())
