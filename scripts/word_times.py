"""Measures the times of words on clips whose word boundaries are known from how they were made.

    python scripts/word_times.py make MANIFEST --out CLIPS
    python scripts/word_times.py ours CLIPS --rows results/words/boundaries.jsonl
    python scripts/word_times.py peer CLIPS --rows results/words/boundaries.jsonl --weights DIRECTORY
    python scripts/word_times.py table results/words/boundaries.jsonl

Two kinds of clips, each clean and with Gaussian noise at 10 dB:

- `joined`: two utterances of the manifest, cut where their energy begins and ends, with pauses of 0.3 to 1.5 s before,
  between and after them. Where each begins and ends is known.
- `spoken`: the text of an utterance in a voice of flite, which tells where each of its phones ends. Where every word
  begins and ends is known.

`peer` is faster-whisper, which needs an environment of its own, with the same weights. A boundary counts where all ways
of a condition have recognised its word. Rows are flushed one by one, for each clip and way; a rerun resumes.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import subprocess
import tempfile
import time
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16_000  # Hz
PAUSES = (0.3, 1.5)  # seconds
VOICES = ("slt", "rms", "awb", "kal")
FLOOR = -65.0  # dBFS of the noise in clean clips: recordings have some
SNR = 10.0  # dB
QUIET = 40.0  # dB below the loudest frame: where an utterance begins and ends
FRAME = 80  # samples, 5 ms
MODEL = "tiny.en"

Found = list[tuple[str, float, float]]  # word, start, end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("manifest", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--count", type=int, default=24, help="clips of each kind and condition")
    one.set_defaults(run=make)
    for name, command in (("ours", ours), ("peer", peer)):
        one = commands.add_parser(name)
        one.add_argument("clips", type=Path)
        one.add_argument("--rows", type=Path, required=True)
        if name == "peer":
            one.add_argument("--weights", required=True, help="the CTranslate2 directory of the same model")
        else:
            one.add_argument("--ways", type=lambda text: text.split(","), default=["full", "condensed", "adapted"])
        one.set_defaults(run=command)
    one = commands.add_parser("table")
    one.add_argument("rows", type=Path)
    one.set_defaults(run=table)
    args = parser.parse_args()
    return args.run(args)


def make(args: argparse.Namespace) -> int:
    """Writes clips as wav files, and clips.jsonl with the words of each and their true times."""
    from sharpen.evaluation.corpora.corpus import read_corpus

    utterances = read_corpus(args.manifest).utterances
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "clips.jsonl").open("w", encoding="utf-8") as file:
        for kind, clips in (("joined", joined(utterances)), ("spoken", spoken(utterances))):
            for i, (speech, words) in zip(range(args.count), clips, strict=False):
                for snr in (None, SNR):
                    name = f"{kind}-{i:02d}" + ("" if snr is None else f"-{snr:g}dB")
                    write(args.out / f"{name}.wav", noisy(speech, snr, name))
                    row = {"clip": name, "kind": kind, "snr": snr, "words": words}
                    file.write(json.dumps(row) + "\n")
    return 0


def joined(utterances: Any) -> Iterator[tuple[np.ndarray, Found]]:
    """Pairs of different speakers; inside an utterance times are not known: None."""
    half = len(utterances) // 2
    for i, (first, second) in enumerate(zip(utterances[:half], utterances[half:], strict=False)):
        rng = np.random.default_rng([1, i])
        parts, words, at = [pause(rng)], [], 0
        for u in (first, second):
            at = sum(map(len, parts))
            samples = trimmed(u.samples())
            said = u.reference.lower().split()
            times = [[None, None] for _ in said]
            times[0][0], times[-1][1] = at / RATE, (at + len(samples)) / RATE
            words += [[word, *both] for word, both in zip(said, times, strict=True)]
            parts += [samples, pause(rng)]
        yield np.concatenate(parts), words


def spoken(utterances: Any) -> Iterator[tuple[np.ndarray, Found]]:
    """Texts in synthetic voices, in turn; one whose phones cannot be assigned to its words is left out."""
    for i, u in enumerate(utterances):
        rng = np.random.default_rng([2, i])
        said, voice = u.reference.lower().split(), VOICES[i % len(VOICES)]
        counts = [len(phones(voice, word)[1]) for word in said]
        samples, ends = phones(voice, " ".join(said))
        if sum(counts) != len(ends):
            continue
        before = pause(rng)
        last = np.cumsum(counts)
        words = [
            [word, round(len(before) / RATE + ends[b - n][0], 3), round(len(before) / RATE + ends[b - 1][1], 3)]
            for word, n, b in zip(said, counts, last, strict=True)
        ]
        yield np.concatenate([before, samples, pause(rng)]), words


def phones(voice: str, text: str) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """The text as flite says it, and where each phone begins and ends; pauses are no phones."""
    if shutil.which("flite") is None:
        raise SystemExit("flite is not installed: apt-get install flite")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "speech.wav")
        command = ["flite", "-voice", voice, "-psdur", "-t", text, "-o", path]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        with wave.open(path, "rb") as file:
            rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2")
    parts = [part.split(":") for part in printed.split()]
    ends = [0.0, *(float(end) for _, end in parts)]
    spans = [(ends[i], ends[i + 1]) for i, (name, _) in enumerate(parts) if name != "pau"]
    if rate != RATE:  # kal is recorded at 8 kHz
        at = np.arange(round(len(samples) * RATE / rate)) * rate / RATE
        samples = np.interp(at, np.arange(len(samples)), samples)
    return samples.astype(np.float64) / 32768, spans


def pause(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(round(rng.uniform(*PAUSES) * RATE))


def trimmed(samples: np.ndarray) -> np.ndarray:
    """From the first to the last frame that is not quiet."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME).astype(np.float64)
    level = 10 * np.log10((frames**2).mean(1) + 1e-12)
    loud = np.flatnonzero(level > level.max() - QUIET)
    return samples[loud[0] * FRAME : (loud[-1] + 1) * FRAME].astype(np.float64)


def noisy(speech: np.ndarray, snr: float | None, name: str) -> np.ndarray:
    rng = np.random.default_rng([3, *name.encode()])
    said = speech[speech != 0]
    rms = float(np.sqrt(np.mean(said**2)))
    level = 10 ** (FLOOR / 20) if snr is None else rms * 10 ** (-snr / 20)
    return speech + level * rng.standard_normal(len(speech))


def write(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(samples / max(1.0, np.abs(samples).max()), -1, 1) * 32767).astype("<i2").tobytes())


def ours(args: argparse.Namespace) -> int:
    import torch

    import sharpen
    from sharpen.speech.options import Options

    torch.set_num_threads(1)
    model = sharpen.load(MODEL)
    one_step = sharpen.Adaptation(samples=5, steps=1, lr=1e-2)  # the effort normal's, in every window
    ways = {
        "full": Options(word_timestamps=True),
        "condensed": Options(word_timestamps=True, padding="condensed"),
        "adapted": Options(word_timestamps=True, padding="condensed", adapt=one_step),
    }
    for way in args.ways:

        def words(path: Path, options: Options = ways[way]) -> Found:
            segments = model.transcribe(path, options).segments
            return [(w.word, w.start, w.end) for segment in segments for w in segment.words]

        measure(args, f"sharpen, {way}", words)
    return 0


def peer(args: argparse.Namespace) -> int:
    from faster_whisper import WhisperModel, __version__

    model = WhisperModel(args.weights, device="cpu", compute_type="float32", cpu_threads=1)

    def words(path: Path) -> Found:
        how = {"language": "en", "beam_size": 5, "word_timestamps": True, "condition_on_previous_text": False}
        segments, _ = model.transcribe(str(path), **how)
        return [(w.word, float(w.start), float(w.end)) for segment in segments for w in segment.words]

    measure(args, f"faster-whisper {__version__}", words)
    return 0


def measure(args: argparse.Namespace, way: str, words: Callable[[Path], Found]) -> None:
    """One row for each clip: every known boundary with the time that was found for it, None where the word was not."""
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["clip"], row["way"]) for row in read(args.rows)} if args.rows.exists() else set()
    with args.rows.open("a", encoding="utf-8") as file:
        for clip in read(args.clips / "clips.jsonl"):
            if (clip["clip"], way) in done:
                continue
            start = time.perf_counter()
            found = words(args.clips / f"{clip['clip']}.wav")
            seconds = time.perf_counter() - start
            row = {key: clip[key] for key in ("clip", "kind", "snr")} | {"way": way, "seconds": round(seconds, 2)}
            file.write(json.dumps(row | matched(clip["words"], found)) + "\n")
            file.flush()


def matched(true: list[list[Any]], found: Found) -> dict[str, list[list[float | None]]]:
    """The known starts and ends, each with the one found for the same word."""
    plain = [re.sub(r"[^a-z']", "", word.lower()) for word, _, _ in found]
    blocks = difflib.SequenceMatcher(None, [word for word, _, _ in true], plain, autojunk=False).get_matching_blocks()
    of = {block.a + i: found[block.b + i] for block in blocks for i in range(block.size)}
    sides = {}
    for side, name in ((1, "starts"), (2, "ends")):
        known = [(i, word[side]) for i, word in enumerate(true) if word[side] is not None]
        sides[name] = [[round(time, 3), round(of[i][side], 3) if i in of else None] for i, time in known]
    return sides


def table(args: argparse.Namespace) -> int:
    print("\n".join(lines(read(args.rows))))
    return 0


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Absolute errors in milliseconds, at the boundaries whose word all ways of a condition have recognised."""
    conditions: dict[tuple[str, float | None], dict[str, dict[str, Any]]] = {}
    for row in rows:
        conditions.setdefault((row["kind"], row["snr"]), {}).setdefault(row["way"], {})[row["clip"]] = row
    yield "| clips | way | starts | median | 90 % | ends | median | 90 % |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for (kind, snr), ways in conditions.items():
        clips = sorted(set.intersection(*map(set, ways.values())))
        for way in ways:
            cells = [f"{len(clips)} {kind}, {'clean' if snr is None else f'{snr:g} dB'}", way]
            for side in ("starts", "ends"):
                errors = 1000 * common(ways, way, clips, side)
                cells += [str(len(errors)), f"{np.median(errors):.0f}", f"{np.quantile(errors, 0.9):.0f}"]
            yield f"| {' | '.join(cells)} |"


def common(ways: dict[str, dict[str, Any]], way: str, clips: list[str], side: str) -> np.ndarray:
    """Absolute errors of one way in seconds, at the boundaries that every way has found."""
    errors = [
        abs(found - true)
        for clip in clips
        for i, (true, found) in enumerate(ways[way][clip][side])
        if all(rows[clip][side][i][1] is not None for rows in ways.values())
    ]
    return np.array(errors)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
