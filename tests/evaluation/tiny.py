"""A corpus of noises and a random model, both small enough to evaluate many times in a test."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from models.weights.writers import small_model, write_openai

from sharpen.evaluation.runs.plan import Part, Run, plan
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.evaluation.runs.settings import settings
from sharpen.evaluation.runs.store import read_rows

ROW = Row(
    corpus="c",
    domain="GS",
    id="0",
    speaker="s",
    language="en",
    duration=1.5,
    reference="naïve café",
    model="base",
    method="source",
    samples=0,
    steps=0,
    seed=0,
    options={"threads": 1},
    versions={"torch": "2"},
    text="naïve café\nor two lines",
    errors=ErrorCounts(1, 2, 3, 4),
)


def checkpoint(folder: Path) -> Path:
    """Its weights are large enough for its answers to differ with what it hears, and with every update."""
    model = small_model()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return write_openai(model, folder / "small.pt")


def wav(path: Path, samples: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def corpus(folder: Path, count: int, seconds: float = 0.4, **fields: object) -> Path:
    """A manifest of `count` short noises with references."""
    rows = []
    for i in range(count):
        name = f"u{i:02}"
        noise = 0.1 * np.random.default_rng(i).standard_normal(int(16000 * seconds) + 800 * i)
        wav(folder / "audio" / f"{name}.wav", noise)
        text = f"words of number {i} that nobody said"
        rows.append({"id": name, "audio_filepath": f"audio/{name}.wav", "text": text, "speaker": f"s{i % 3}", **fields})
    manifest = folder / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return manifest


def work(manifest: Path, model: Path, methods=("source", "em-tok"), limit=None, batch_size=2, **others):
    """A plan over the corpus: two steps with two hypotheses, unless told otherwise."""
    from sharpen.evaluation.corpora.corpus import read_corpus

    chosen = settings(methods, **{"samples": (2,), "steps": (1, 2), "lr": (0.05,), **others})
    return plan([Part(read_corpus(manifest))], chosen, Run(str(model), batch_size=batch_size), limit)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sharpen", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True)


def timeless(row: Row) -> Row:
    """All of a row that must be the same in every run."""
    trace = {name: value for name, value in row.trace.items() if name != "seconds"}
    return replace(row, seconds=0.0, trace=trace)


def found(folder: Path) -> dict[str, Row]:
    rows = read_rows(folder)
    assert len({row.key for row in rows}) == len((folder / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    return {row.key: timeless(row) for row in rows}
