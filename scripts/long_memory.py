"""Transcribes a recording of hours with --resume, ends the process in the middle, continues, and watches its memory.

    python scripts/long_memory.py measure MANIFEST --hours 3 --rows results/long/memory.jsonl
    python scripts/long_memory.py table results/long/memory.jsonl

The recording is the manifest's utterances, one after the other with pauses of half a second and again from the first,
as one FLAC file. `sharpen transcribe --resume` runs as a process of its own; half of the way through it is killed, and
the same command runs again. A row is written after every minute of transcript: which process, how far it is, and the
memory that it holds (VmRSS, so Linux only). The last row has what came out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16_000  # Hz
PAUSE = np.zeros(RATE // 2, np.float32)
EVERY = 60.0  # seconds of the recording between two rows
MB = 1024  # kB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("manifest", type=Path)
    one.add_argument("--rows", type=Path, required=True)
    one.add_argument("--hours", type=float, default=3.0)
    one.add_argument("--model", default="tiny.en")
    one.add_argument("--effort", default="plain")
    one.add_argument("--threads", type=int, default=1)
    one.set_defaults(run=measure)
    one = commands.add_parser("table")
    one.add_argument("rows", type=Path)
    one.set_defaults(run=table)
    args = parser.parse_args()
    return args.run(args)


def measure(args: argparse.Namespace) -> int:
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, args.rows.open("w", encoding="utf-8") as file:
        recording, out = Path(folder) / "long.flac", Path(folder) / "out"
        seconds, spoken = join(args.manifest, args.hours * 3600, recording)

        def keep(row: dict[str, Any]) -> None:
            file.write(json.dumps({"model": args.model, "effort": args.effort, **row}) + "\n")
            file.flush()

        command = [sys.executable, "-m", "sharpen", "transcribe", str(recording), "--model", args.model, "--resume"]
        command += ["--effort", args.effort, "--threads", str(args.threads), "--language", "en", "--quiet"]
        command += ["--output-dir", str(out), "--output-format", "json"]
        killed = watch(command, out, keep, "first", until=seconds / 2)
        ended = watch(command, out, keep, "continued")
        made = json.loads((out / "long.json").read_text(encoding="utf-8"))
        starts = [segment["start"] for segment in made["segments"]]
        row = {"process": "result", "seconds": round(seconds, 1), "reference_words": spoken, "exits": [killed, ended]}
        row |= {"segments": len(starts), "in_order": starts == sorted(starts), "last": made["segments"][-1]["end"]}
        keep(row | {"words": len(made["text"].split()), "left": sorted(path.name for path in out.iterdir())})
    return ended


def join(manifest: Path, seconds: float, path: Path) -> tuple[float, int]:
    """Writes the recording a clip at a time; returns its seconds and the words of its references."""
    import av

    from sharpen.evaluation.corpora.corpus import read_corpus

    utterances = read_corpus(manifest).utterances
    total, words = 0, 0
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        while total < seconds * RATE:
            for u in utterances:
                samples = np.concatenate([u.samples(), PAUSE])
                frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], "s16", "mono")
                frame.sample_rate, frame.pts = RATE, total
                container.mux(stream.encode(frame))
                total, words = total + len(samples), words + len(u.reference.split())
                if total >= seconds * RATE:
                    break
        container.mux(stream.encode(None))
    return total / RATE, words


def watch(command: list[str], out: Path, keep: Any, name: str, until: float | None = None) -> int:
    """Runs the command and keeps a row a minute; kills it when it has come so far. Returns its exit code."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    begun, last = time.perf_counter(), None
    try:
        while process.poll() is None:
            time.sleep(0.2)
            at = position(out / "long.resume.jsonl")
            if last is None:
                last = at  # where it begins: the model is not loaded yet
            elif at >= last + EVERY:
                took = round(time.perf_counter() - begun, 1)
                keep({"process": name, "at": round(at, 1), "took": took, "mb": memory(process)})
                last = at
            if until is not None and at >= until:
                os.kill(process.pid, signal.SIGKILL)
                return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode


def position(path: Path) -> float:
    """Seconds of the recording that are on disk."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 1_000_000))
            rows = file.read().split(b"\n")[1:-1]
        return float(json.loads(rows[-1])["position"]) / RATE if rows else 0.0
    except FileNotFoundError:
        return 0.0


def memory(process: subprocess.Popen[bytes]) -> int:
    """MB that the process holds; 0 where it has just ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return 0
    (held,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(held.split()[1]) // MB


def table(args: argparse.Namespace) -> int:
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines()]
    print("\n".join(lines(rows)))
    return 0


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The memory of both processes at a few places of the recording."""
    yield "| process | minutes | MB at the first | at a quarter | half | three quarters | at the end | most |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for name in ("first", "continued"):
        mine = [row for row in rows if row["process"] == name and row["mb"]]
        places = [mine[round(part * (len(mine) - 1))]["mb"] for part in (0, 0.25, 0.5, 0.75, 1)]
        span = f"{mine[0]['at'] / 60:.0f} to {mine[-1]['at'] / 60:.0f}"
        yield f"| {name} | {span} | {' | '.join(map(str, places))} | {max(row['mb'] for row in mine)} |"


if __name__ == "__main__":
    raise SystemExit(main())
