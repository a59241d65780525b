"""Word errors of the small CTC model on inputs that differ from its training, before and after adapting.

    PYTHONPATH=src python scripts/ctc_shift.py results/ctc/choosing.jsonl --seeds 100-104 --lr 1e-3 3e-3 1e-2
    PYTHONPATH=src python scripts/ctc_shift.py results/ctc/shift.jsonl --lr 1e-3 3e-3
    PYTHONPATH=src python scripts/ctc_shift.py results/ctc/shift.jsonl --table

A seed makes four new sequences of three words for each shift: none (voices of the training), noise (the same voices in
white noise), voice (voices that it never heard). A row is one seed, shift and method. Needs flite and espeak-ng.
"""

import argparse
import json
import math
import sys
from itertools import product
from pathlib import Path

import numpy as np

SEQUENCES, WORDS = 4, 3
QUIET, LOUD = 35.0, 22.0  # dB of signal over noise: as in training, and the shift
SHIFTS = ("none", "noise", "voice")
STUDENT = {5: 2.776, 20: 2.093}  # for intervals of 95 %, by the number of seeds
METHODS = ("source", "ctc-frame", "ctc-collapse")
HEAD = (
    "shift",
    "method",
    "words",
    "errors %",
    "against source",
    "seeds better / worse / same",
    "frame entropy before",
    "after",
)


def utterances(seed: int, shift: str) -> list[tuple[str, str, np.ndarray]]:
    """Name, text and samples of each."""
    from spoken_words import OTHER, SEEN, draws, noisy, sequence

    made = []
    for number in range(SEQUENCES):
        rng = draws("test", seed, shift, number)
        text, samples = sequence(rng, OTHER if shift == "voice" else SEEN, WORDS)
        made.append((f"{seed} {shift} {number}", text, noisy(rng, samples, LOUD if shift == "noise" else QUIET)))
    return made


def row(model, seed: int, shift: str, method: str, lr: float, steps: int) -> dict:
    import sharpen
    from sharpen.evaluation.runs.score import ErrorCounts, word_errors
    from sharpen.speech.audio import Audio

    errors, before, after, changed, refused = ErrorCounts(), [], [], 0, 0
    adapt = sharpen.Adaptation(method=method, lr=lr or 1e-3, steps=steps, seed=seed)
    for name, text, samples in utterances(seed, shift):
        transcript = model.transcribe(Audio(samples, name=name), adapt=adapt)
        errors += word_errors(text, transcript.text)
        for _, how in transcript.adapted:
            curve = [step.H_tok for step in how.trace.steps]
            before.append(curve[0])
            after.append(curve[-1])
            changed += how.source.text != how.result.text
            refused += bool(how.refused)
    mean = lambda values: round(sum(values) / len(values), 4) if values else None  # noqa: E731
    return {
        "seed": seed, "shift": shift, "method": method, "lr": lr if before else None, "steps": steps if before else 0,
        "words": errors.reference, "errors": errors.errors, "changed": changed, "refused": refused,
        "entropy_before": mean(before), "entropy_after": mean(after),
    }  # fmt: skip


def table(rows: list[dict]) -> list[str]:
    """As docs/ctc.md has it: error rates over all seeds, and the mean difference of a seed with its 95 % interval."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    settings = sorted({(r["method"], r["lr"] or 0.0) for r in rows}, key=lambda s: (METHODS.index(s[0]), s[1]))
    several = len({lr for _, lr in settings if lr}) > 1
    for shift in SHIFTS:
        source = {r["seed"]: r for r in rows if (r["shift"], r["method"]) == (shift, "source")}
        for method, lr in settings:
            own = [r for r in rows if (r["shift"], r["method"], r["lr"] or 0.0) == (shift, method, lr)]
            words, errors = (sum(r[name] for r in own) for name in ("words", "errors"))
            label = f"{method}, lr {lr:g}" if lr and several else method
            cells = [shift, label, str(words), f"{100 * errors / words:.1f}"]
            lines.append("| " + " | ".join([*cells, *(_compared(own, source) if lr else ["–"] * 4)]) + " |")
    return lines


def _compared(own: list[dict], source: dict[int, dict]) -> list[str]:
    apart = [100 * (r["errors"] - source[r["seed"]]["errors"]) / r["words"] for r in own]
    n, mean = len(apart), sum(apart) / len(apart)
    wide = STUDENT[n] * math.sqrt(sum((x - mean) ** 2 for x in apart) / (n - 1) / n)
    better, worse = sum(x < 0 for x in apart), sum(x > 0 for x in apart)
    entropies = [f"{sum(r[name] for r in own) / n:.3f}" for name in ("entropy_before", "entropy_after")]
    return [
        f"{_signed(mean)} [{_signed(mean - wide)}, {_signed(mean + wide)}]",
        f"{better} / {worse} / {n - better - worse}",
        *entropies,
    ]


def _signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"  # never -0.0


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", default="tests/models/small_ctc")
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--table", action="store_true", help="print the table of the rows that are there")
    args = parser.parse_args()
    if not args.table:
        import torch

        import sharpen

        torch.set_num_threads(1)
        model, (first, last) = sharpen.load(args.model), map(int, args.seeds.split("-"))
        args.rows.parent.mkdir(parents=True, exist_ok=True)
        settings = [("source", 0.0), *((method, lr) for method in METHODS[1:] for lr in args.lr)]
        with args.rows.open("w", encoding="utf-8") as file:
            for seed, shift in product(range(first, last + 1), SHIFTS):
                for method, lr in settings:
                    made = row(model, seed, shift, method, lr, args.steps)
                    file.write(json.dumps(made) + "\n")
                    file.flush()
                    print(f"seed {seed} {shift} {method}: {made['errors']} of {made['words']}", file=sys.stderr)
    print("\n".join(table(read(args.rows))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
