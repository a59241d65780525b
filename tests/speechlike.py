"""Utterances for tests with real models: the example clips, as they are and with noise added."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sharpen.speech.audio import read_audio

EXAMPLES = Path(__file__).parent.parent / "examples"


def manifest(folder: Path) -> list[dict]:
    lines = (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**row, "path": folder / row["audio_filepath"]} for row in map(json.loads, lines)]


def with_noise(samples: np.ndarray, snr: float, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(len(samples))
    noise *= np.sqrt(np.mean(samples**2) / np.mean(noise**2)) * 10 ** (-snr / 20)
    return (samples + noise).astype(np.float32)


def utterances(count: int) -> list[np.ndarray]:
    """`count` different utterances: every example, then every example again at 15 dB, 5 dB and 0 dB."""
    clips = [read_audio(row["path"]).samples for row in manifest(EXAMPLES)]
    found = [
        clip if snr is None else with_noise(clip, snr, seed)
        for snr in (None, 15.0, 5.0, 0.0)
        for seed, clip in enumerate(clips)
    ]
    return found[:count]
