"""Transcribes the example clips with whisper-base and prints what it heard beside what was said."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

from tqdm import tqdm

import sharpen
from sharpen.evaluation.normalize import normaliser
from sharpen.evaluation.score import ErrorCounts, word_errors

EXAMPLES = Path(__file__).parent
WIDTH = 44  # of the two columns of text


def main() -> int:
    model = sharpen.load("base")
    normalise = normaliser("whisper-en")
    clips = [json.loads(line) for line in (EXAMPLES / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    rows, total = [], ErrorCounts()
    for clip in tqdm(clips, unit="clip", desc="whisper-base", leave=False):
        text = model.transcribe(EXAMPLES / clip["audio_filepath"], language="en").text
        errors = word_errors(normalise(clip["text"]), normalise(text))
        total += errors
        noise = clip["noise"] if clip["snr"] is None else f"{clip['noise']} {clip['snr']:g} dB"
        rows.append((clip["id"], noise, clip["text"], text, f"{100 * errors.rate:.0f} %"))
    print(f"whisper-base, greedy, no adaptation; normaliser {normalise.label}\n")
    print_table(("clip", "noise", "reference", "transcript", "WER"), rows)
    print(
        f"\nAll {len(rows)} clips: WER {100 * total.rate:.1f} % ({total.substitutions} substitutions, "
        f"{total.deletions} deletions, {total.insertions} insertions in {total.reference} words)"
    )
    clip = EXAMPLES / clips[0]["audio_filepath"]
    command = Path(sys.prefix).name + "/bin/sharpen"
    print(f"\nTry next:\n  {command} transcribe examples/{clip.name} --method beam\n  {command} models")
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
