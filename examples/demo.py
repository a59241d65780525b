"""Transcribes the example clips with whisper-base, plainly and as `sharpen transcribe` does, beside the reference."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import sharpen
from sharpen.evaluation.runs.normalisers import normaliser
from sharpen.evaluation.runs.score import ErrorCounts, word_errors
from sharpen.speech.efforts import effort_options
from sharpen.terminal import columns, progress, wrap

EXAMPLES = Path(__file__).parent
WIDTH = 32  # terminal columns of a text
WAYS = {
    "greedy": effort_options("plain", decode="greedy", language="en"),
    "plain": effort_options("plain", language="en"),
    "sharpen": effort_options(language="en"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="base", help="size name, file or directory (default: base)")
    parser.add_argument("--clips", type=int, help="how many of the clips (default: all)")
    args = parser.parse_args(arguments)
    model = sharpen.load(args.model)
    normalise = normaliser("whisper-en")
    clips = [json.loads(line) for line in (EXAMPLES / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    clips = clips[: args.clips]
    texts: dict[tuple[str, str], str] = {}
    errors: dict[tuple[str, str], ErrorCounts] = {}
    seconds = dict.fromkeys(WAYS, 0.0)
    with progress(len(WAYS) * len(clips), "clips") as bar:
        for clip in clips:
            for method, options in WAYS.items():
                start = time.perf_counter()
                text = model.transcribe(EXAMPLES / clip["audio_filepath"], options).text
                seconds[method] += time.perf_counter() - start
                texts[clip["id"], method] = text
                errors[clip["id"], method] = word_errors(normalise(clip["text"]), normalise(text))
                total = sum((e for (_, m), e in errors.items() if m == method), ErrorCounts())
                bar.set_text(f"{method}: WER {100 * total.rate:.1f} %")
                bar.update()
    print(
        f"Model {args.model} on {len(clips)} synthetic clips; greedy search, a beam search of 5, and sharpen, which "
        f"spends more where the model is in doubt; normaliser {normalise.label}\n"
    )
    rows = []
    for clip in clips:
        noise = clip["noise"] if clip["snr"] is None else f"{clip['noise']} {clip['snr']:g} dB"
        rates = [f"{100 * errors[clip['id'], method].rate:.0f} %" for method in WAYS]
        rows.append((clip["id"], noise, clip["text"], texts[clip["id"], "plain"], texts[clip["id"], "sharpen"], *rates))
    print_table(("clip", "noise", "reference", "plain transcript", "sharpen's transcript", *WAYS), rows)
    print("\nAll clips:")
    summary = []
    audio = sum(clip["duration"] for clip in clips)
    for method in WAYS:
        total = sum((errors[clip["id"], method] for clip in clips), ErrorCounts())
        counts = f"{total.substitutions} / {total.deletions} / {total.insertions} of {total.reference}"
        summary.append(
            (method, f"{100 * total.rate:.1f} %", counts, f"{seconds[method]:.0f}", f"{seconds[method] / audio:.1f}")
        )
    print_table(("method", "WER", "subst / del / ins of words", "seconds", "per second of audio"), summary)
    command = Path(sys.prefix).name + "/bin/sharpen"
    clip_path = f"examples/{clips[0]['audio_filepath']}"
    print(f"\nTry next:\n  {command} transcribe {clip_path} --effort high --explain\n  {command} models")
    return 0


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Columns side by side; long texts are wrapped."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        lines += zip_longest(*(wrap(cell, WIDTH) for cell in row), fillvalue="")
    print(*columns([header, *lines], rule=True), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
