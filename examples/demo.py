"""Transcribes the example clips with whisper-base, as it is and adapted, beside what was said."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

import sharpen
from sharpen.evaluation.runs.normalisers import normaliser
from sharpen.evaluation.runs.score import ErrorCounts, word_errors

EXAMPLES = Path(__file__).parent
WIDTH = 32  # of the columns of text
STEPS = 3  # of the paper's 10, so that a newcomer waits three minutes and not ten
PLAIN = sharpen.Options(language="en", timestamps=False)
METHODS = {
    "source": PLAIN,
    "beam": replace(PLAIN, decode="beam", beam_size=16),
    "greedy-em": replace(PLAIN, adapt=sharpen.Adaptation(method="greedy-em", steps=STEPS)),
    "em-tok-b": replace(PLAIN, adapt=sharpen.Adaptation(method="em-tok-b", steps=STEPS)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, help="only so many of them")
    args = parser.parse_args()
    model = sharpen.load("base")
    normalise = normaliser("whisper-en")
    clips = [json.loads(line) for line in (EXAMPLES / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    clips = clips[: args.clips]
    texts: dict[tuple[str, str], str] = {}
    errors: dict[tuple[str, str], ErrorCounts] = {}
    seconds = dict.fromkeys(METHODS, 0.0)
    with tqdm(total=len(METHODS) * len(clips), unit="clip", leave=False) as bar:
        for method, options in METHODS.items():
            bar.set_description_str(method)
            for clip in clips:
                start = time.perf_counter()
                text = model.transcribe(EXAMPLES / clip["audio_filepath"], options).text
                seconds[method] += time.perf_counter() - start
                texts[clip["id"], method] = text
                errors[clip["id"], method] = word_errors(normalise(clip["text"]), normalise(text))
                total = sum((e for (_, m), e in errors.items() if m == method), ErrorCounts())
                bar.set_postfix_str(f"WER {100 * total.rate:.1f} %")
                bar.update()
    print(f"whisper-base on {len(clips)} synthetic clips; adapted with {STEPS} steps; normaliser {normalise.label}\n")
    rows = []
    for clip in clips:
        noise = clip["noise"] if clip["snr"] is None else f"{clip['noise']} {clip['snr']:g} dB"
        rates = [f"{100 * errors[clip['id'], method].rate:.0f} %" for method in METHODS]
        rows.append(
            (clip["id"], noise, clip["text"], texts[clip["id"], "source"], texts[clip["id"], "em-tok-b"], *rates)
        )
    print_table(("clip", "noise", "reference", "source transcript", "em-tok-b transcript", *METHODS), rows)
    print("\nAll clips:")
    summary = []
    audio = sum(clip["duration"] for clip in clips)
    for method in METHODS:
        total = sum((errors[clip["id"], method] for clip in clips), ErrorCounts())
        counts = f"{total.substitutions} / {total.deletions} / {total.insertions} of {total.reference}"
        summary.append(
            (method, f"{100 * total.rate:.1f} %", counts, f"{seconds[method]:.0f}", f"{seconds[method] / audio:.1f}")
        )
    print_table(("method", "WER", "subst / del / ins of words", "seconds", "per second of audio"), summary)
    command = Path(sys.prefix).name + "/bin/sharpen"
    clip_path = f"examples/{clips[0]['audio_filepath']}"
    print(f"\nTry next:\n  {command} transcribe {clip_path} --method em-tok-b --explain\n  {command} models")
    return 0


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Columns side by side, the texts wrapped."""
    cells = [[textwrap.wrap(cell, WIDTH) or [""] for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[i]) for i in range(len(header))]
    for number, row in enumerate(cells):
        for line in range(max(len(cell) for cell in row)):
            parts = [cell[line] if line < len(cell) else "" for cell in row]
            print("  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


if __name__ == "__main__":
    sys.exit(main())
