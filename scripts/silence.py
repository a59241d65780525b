"""Counts words invented where nobody speaks, and words lost where somebody does.

    python scripts/silence.py make MS_SNSD_MANIFEST --out CLIPS
    python scripts/silence.py clips CLIPS --way plain --rows results/silence/invented.jsonl
    python scripts/silence.py speech MANIFEST --way plain --rows results/silence/speech.jsonl
    python scripts/silence.py table results/silence/invented.jsonl results/silence/speech.jsonl

`make` writes 60 clips without speech: five recorded noises in pieces of 8 s, and synthetic ones of 8 to 30 s: digital
silence, hiss from -75 to -30 dBFS, mains hum, tones, clicks and chords with an envelope and a beat. Rows are flushed
one by one; a rerun resumes.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16_000  # Hz
PIECE = 8  # seconds
COUNT = 60
VOICES = ("Babble", "AirportAnnouncements", "Neighbor")  # recordings in which people speak
LENGTHS = (8, 15, 30)  # seconds of the synthetic clips, in turn
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"effort": "plain"},
    "plain, vad": {"effort": "plain", "vad_filter": True},
    "normal": {"effort": "normal"},
    "normal, vad": {"effort": "normal", "vad_filter": True},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("manifest", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(run=make)
    for name, command in (("clips", clips), ("speech", speech)):
        one = commands.add_parser(name)
        one.add_argument("source", type=Path)
        one.add_argument("--rows", type=Path, required=True)
        one.add_argument("--way", choices=WAYS, required=True)
        one.add_argument("--model", default="base")
        one.add_argument("--limit", type=int, default=COUNT)
        one.set_defaults(run=command)
    one = commands.add_parser("table")
    one.add_argument("invented", type=Path)
    one.add_argument("speech", type=Path)
    one.set_defaults(run=table)
    args = parser.parse_args()
    return args.run(args)


def make(args: argparse.Namespace) -> int:
    args.out.mkdir(parents=True, exist_ok=True)
    found = list(recorded(args.manifest))
    found += [made for made, _ in zip(synthetic(), range(COUNT - len(found)), strict=False)]
    for i, (kind, samples) in enumerate(found):
        write(args.out / f"{i:02d}-{kind}.wav", samples)
    print(f"{len(found)} clips, {sum(len(samples) for _, samples in found) / RATE / 60:.1f} minutes")
    return 0


def recorded(manifest: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Noises without voices, in pieces."""
    from sharpen.speech.audio import read_audio

    for row in read(manifest):
        name = row["id"].split("_")[0]
        if name not in VOICES:
            samples = read_audio(manifest.parent / row["audio_filepath"]).samples
            for start in range(0, len(samples) - PIECE * RATE + 1, PIECE * RATE):
                yield name, samples[start : start + PIECE * RATE]


def synthetic() -> Iterator[tuple[str, np.ndarray]]:
    """One of each kind in turn, each another time."""
    i = 0
    while True:
        for kind, sound in (
            ("hiss", hiss), ("music", music), ("tone", tone), ("hum", hum), ("clicks", clicks_of), ("silence", silence),
        ):  # fmt: skip
            rng = np.random.default_rng([4, i])
            yield kind, sound(np.arange(LENGTHS[i % len(LENGTHS)] * RATE) / RATE, rng)
            i += 1


def hiss(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 10 ** (rng.uniform(-75, -30) / 20) * rng.standard_normal(len(t))


def silence(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Digital silence with a few samples of dither, above the level below which nothing is decoded."""
    return np.where(rng.random(len(t)) < 1e-3, rng.choice([-2e-4, 2e-4], len(t)), 0.0)


def tone(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A beep, on and off, as of a telephone."""
    on = (t % rng.uniform(1, 4)) < rng.uniform(0.3, 1)
    return 0.1 * on * np.sin(2 * np.pi * rng.uniform(300, 1200) * t) + hiss(t, rng) / 10


def hum(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    base = rng.choice([50.0, 60.0])
    return sum(0.03 / k * np.sin(2 * np.pi * base * k * t + rng.uniform(0, 6)) for k in range(1, 8)) + hiss(t, rng) / 10


def clicks_of(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Short bursts at random times, as of a keyboard."""
    samples = 1e-3 * rng.standard_normal(len(t))
    for start in rng.integers(0, len(t) - 800, 3 * len(t) // RATE):
        samples[start : start + 800] += 0.2 * rng.standard_normal(800) * np.exp(-np.arange(800) / 120)
    return samples


def music(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Chords of three notes with overtones, struck at a steady beat, and a melody above them."""
    samples, beat = np.zeros(len(t)), rng.uniform(0.35, 0.7)
    for k in range(int(t[-1] / beat)):
        since = t - k * beat
        envelope = np.where(since >= 0, np.exp(-since / (2 * beat)) * np.minimum(1, since / 0.01), 0.0)
        notes = [*(rng.choice([0, 5, 7, 9]) + np.array([0, 4, 7])), 12 + rng.choice([0, 2, 4, 5, 7, 9, 11])]
        for note in notes:
            f = 196 * 2 ** (note / 12)
            samples += 0.02 * envelope * sum(np.sin(2 * np.pi * f * h * t) / h for h in range(1, 5))
    return samples


def clips(args: argparse.Namespace) -> int:
    """A row for each clip: how many words were written for it."""
    model, options = load(args)
    paths = sorted(args.source.glob("*.wav"))[: args.limit]
    for path, file in todo(args, {path.stem: path for path in paths}):
        start = time.process_time()
        result = model.transcribe(path, options)
        text = result.text
        row = {
            "clip": path.stem,
            "kind": path.stem.split("-")[1],
            "way": args.way,
            "seconds": round(result.info.duration, 2),
            "words": count(text),
            "text": text,
            "cpu_seconds": round(time.process_time() - start, 2),
        }
        keep(file, row)
    return 0


def speech(args: argparse.Namespace) -> int:
    """A row for each utterance: its errors."""
    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.evaluation.runs.score import word_errors

    model, options = load(args)
    utterances = {u.id: u for u in read_corpus(args.source).utterances[: args.limit]}
    for u, file in todo(args, utterances):
        text = model.transcribe(u.samples(), options).text
        errors = word_errors(words(u.reference), words(text))
        row = {"clip": u.id, "way": args.way, "text": text, "reference": u.reference, "errors": errors.errors,
               "deletions": errors.deletions, "words": errors.reference}  # fmt: skip
        keep(file, row)
    return 0


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    import torch

    import sharpen
    from sharpen.speech.efforts import effort_options

    torch.set_num_threads(1)
    return sharpen.load(args.model), effort_options(language="en", **WAYS[args.way])


def words(text: str) -> str:
    from sharpen.evaluation.runs.normalisers import normaliser_for

    return normaliser_for("en")(text)


def count(text: str) -> int:
    """Words that have a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in words(text).split())


def todo(args: argparse.Namespace, clips: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """What has no row of this way yet, and the file to add one to."""
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {row["clip"] for row in read(args.rows) if row["way"] == args.way} if args.rows.exists() else set()
    with args.rows.open("a", encoding="utf-8") as file:
        for name, clip in clips.items():
            if name not in done:
                yield clip, file


def keep(file: Any, row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    file.flush()


def table(args: argparse.Namespace) -> int:
    print("\n".join([*invented_lines(read(args.invented)), "", *speech_lines(read(args.speech))]))
    return 0


def invented_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    yield "| clips | minutes | " + " | ".join(WAYS) + " |"
    yield "|---|---:|" + "---:|" * len(WAYS)
    for kind in [*kinds, None]:
        some = [row for row in rows if kind in (None, row["kind"])]
        ways = {way: [row for row in some if row["way"] == way] for way in WAYS}
        first = next(iter(ways.values()))
        minutes = sum(row["seconds"] for row in first) / 60
        cells = [f"{len(first)} {kind or 'in all'}", f"{minutes:.1f}"]
        for mine in ways.values():
            found = [count(row["text"]) for row in mine]
            cells.append(f"{sum(found) / minutes:.1f} ({sum(n > 0 for n in found)})" if mine else "")
        yield f"| {' | '.join(cells)} |"


def speech_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Against the same way without voice activity: in which utterances more words are missing."""
    yield "| way | utterances | WER % | deleted words | utterances with another text | with more deletions |"
    yield "|---|---:|---:|---:|---:|---:|"
    for way in WAYS:
        mine = {row["clip"]: row for row in rows if row["way"] == way}
        base = {row["clip"]: row for row in rows if row["way"] == way.removesuffix(", vad")}
        if not mine:
            continue
        errors, total = sum(row["errors"] for row in mine.values()), sum(row["words"] for row in mine.values())
        other = [name for name, row in mine.items() if words(row["text"]) != words(base[name]["text"])]
        lost = [name for name, row in mine.items() if row["deletions"] > base[name]["deletions"]]
        deleted = sum(row["deletions"] for row in mine.values())
        yield f"| {way} | {len(mine)} | {100 * errors / total:.2f} | {deleted} | {len(other)} | {len(lost)} |"


def write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
