"""Peak memory of one step, each engine in its own process.

    python -m sharpen.benchmarks.memory base em-tok 64 reference 150 clip.npy

prints the peak of its resident memory in bytes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from sharpen.benchmarks.episodes import Bench, BenchCase, Clip
from sharpen.models.weights.load import load_checkpoint


def peak(model: str, case: BenchCase, clip: Clip) -> int | str:
    """Peak memory, in bytes, of a new process that loads the model and runs one step; or why that failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.npy"
        np.save(path, clip.samples)
        words = [model, case.method, str(case.samples), case.engine, str(clip.limit), str(path)]
        done = subprocess.run(
            [sys.executable, "-m", "sharpen.benchmarks.memory", *words], capture_output=True, text=True
        )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        return f"failed with exit code {done.returncode}: {last[0] if last else 'no message; out of memory?'}"
    return int(done.stdout)


def main(words: list[str]) -> int:
    model, method, samples, engine, cap, path = words
    bench = Bench(load_checkpoint(model))
    bench.time(BenchCase(engine, method, int(samples)), [Clip("clip", np.load(path), int(cap))], steps=1)
    print(_peak())
    return 0


def _peak() -> int:
    """Of this process alone: on Linux `ru_maxrss` includes what the parent held when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
