"""Compares ways to cut long recordings into windows, on utterances joined with pauses.

    python scripts/long_recordings.py measure MANIFEST --rows results/long/joined.jsonl --way sequential --count 4
    python scripts/long_recordings.py table results/long/joined.jsonl

A recording is 20 utterances of the manifest with pauses of 0.2 to 0.8 s, about 150 s, clean or with Gaussian noise at
10 dB over all of it. A way is `sequential`, or `vad 12`: cut at pauses, windows of at most 12 s, in batches of
`--batch-size`. Computing time is that of the process, in one thread. Rows are flushed one by one; a rerun resumes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16_000  # Hz
PAUSES = (0.2, 0.8)  # seconds
TOGETHER = 20  # utterances in a recording
SNR = 10.0  # dB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("manifest", type=Path)
    one.add_argument("--rows", type=Path, required=True)
    one.add_argument("--way", required=True, help="sequential, or vad and a number of seconds")
    one.add_argument("--effort", default="plain")
    one.add_argument("--batch-size", type=int, default=4, help="windows side by side, where they can be")
    one.add_argument("--count", type=int, default=4, help="recordings in each condition")
    one.add_argument("--model", default="base")
    one.set_defaults(run=measure)
    one = commands.add_parser("table")
    one.add_argument("rows", type=Path)
    one.set_defaults(run=table)
    args = parser.parse_args()
    return args.run(args)


def recordings(manifest: Path, count: int) -> Iterator[tuple[str, float | None, np.ndarray, str]]:
    """Name, noise, samples and reference; the conditions of a recording follow each other."""
    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.speech.noise import gaussian, mix

    utterances = read_corpus(manifest).utterances
    for i in range(count):
        rng = np.random.default_rng([5, i])
        some = utterances[i * TOGETHER : (i + 1) * TOGETHER]
        if len(some) < TOGETHER:
            raise SystemExit(f"{manifest} has utterances for {i} recordings of {TOGETHER}, and {count} were asked for")
        pauses = [np.zeros(round(rng.uniform(*PAUSES) * RATE), np.float32) for _ in some]
        samples = np.concatenate([part for u, pause in zip(some, pauses, strict=True) for part in (u.samples(), pause)])
        reference, name = " ".join(u.reference for u in some), f"{manifest.parent.name}-{i}"
        yield name, None, samples, reference
        yield name, SNR, mix(samples, gaussian(len(samples), name), SNR), reference


def measure(args: argparse.Namespace) -> int:
    import torch

    import sharpen
    from sharpen.evaluation.runs.normalisers import normaliser_for
    from sharpen.evaluation.runs.score import word_errors
    from sharpen.speech import job
    from sharpen.speech.audio import Audio
    from sharpen.speech.efforts import effort_options
    from sharpen.speech.transcribe import run

    torch.set_num_threads(1)
    kind, _, seconds = args.way.partition(" ")
    job.CHUNK = float(seconds or job.CHUNK)
    options = effort_options(args.effort, language="en", chunk=kind, batch_size=args.batch_size)
    model, words = sharpen.load(args.model), normaliser_for("en")
    key = {"way": args.way, "effort": args.effort, "model": args.model, "batch_size": args.batch_size}
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    known = [row for row in read(args.rows) if row.items() >= key.items()] if args.rows.exists() else []
    done = {(row["recording"], row["snr"]) for row in known}
    with args.rows.open("a", encoding="utf-8") as file:
        for name, snr, samples, reference in recordings(args.manifest, args.count):
            if (name, snr) in done:
                continue
            start = time.process_time()
            one = model.job(Audio(samples, name=name), options)
            windows = sum(1 for _ in run(model.speech, [one], options.batch_size)) - 1
            spent = time.process_time() - start
            text = "".join(segment.text for segment in one.segments).strip()
            errors = word_errors(words(reference), words(text))
            row = {**key, "recording": name, "snr": snr, "seconds": round(one.audio.duration, 2), "windows": windows,
                   "cpu_seconds": round(spent, 2), "substitutions": errors.substitutions,
                   "deletions": errors.deletions, "insertions": errors.insertions, "words": errors.reference,
                   "text": text}  # fmt: skip
            file.write(json.dumps(row) + "\n")
            file.flush()
    return 0


def table(args: argparse.Namespace) -> int:
    print("\n".join(lines(read(args.rows))))
    return 0


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| recordings | effort | windows | clean WER % | 10 dB WER % | deletions % | computing seconds per second |"
    yield "|---|---|---|---:|---:|---:|---:|"
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["recording"].rpartition("-")[0], row["effort"], row["way"]), []).append(row)
    for (corpus, effort, way), some in sorted(groups.items()):
        cells = [f"{len({row['recording'] for row in some})} of {corpus}", effort, way]
        for snr in (None, SNR):
            mine = [row for row in some if row["snr"] == snr]
            wrong = sum(row["substitutions"] + row["deletions"] + row["insertions"] for row in mine)
            cells.append(f"{100 * wrong / sum(row['words'] for row in mine):.2f}" if mine else "")
        total = sum(row["words"] for row in some)
        cells.append(f"{100 * sum(row['deletions'] for row in some) / total:.2f}")
        cells.append(f"{sum(row['cpu_seconds'] for row in some) / sum(row['seconds'] for row in some):.3f}")
        yield f"| {' | '.join(cells)} |"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
