"""Noise at a known signal-to-noise ratio, the same for an utterance in every run."""

from __future__ import annotations

import hashlib

import numpy as np

from sharpen.errors import SharpenError

LEVEL = (
    -25.0
)  # dBFS: the root mean square that speech is brought to before noise is added, as corrupted LibriSpeech does


def gaussian(count: int, utterance: str, seed: int = 0) -> np.ndarray:
    """White Gaussian noise (count,) that depends on the seed and the utterance's name alone."""
    digest = hashlib.sha256(f"{seed}\x00{utterance}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big")).standard_normal(count)


def mix(speech: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Speech at LEVEL plus noise `snr` dB below it, both measured over the whole utterance; float32, never clipped."""
    if speech.shape != noise.shape:
        raise SharpenError(f"speech has {speech.shape} samples and noise {noise.shape}: cut or tile the noise first")
    parts = []
    for name, samples, level in (("speech", speech, LEVEL), ("noise", noise, LEVEL - snr)):
        rms = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
        if rms == 0:
            raise SharpenError(f"the {name} is silent: it has no level to measure a ratio by")
        parts.append(samples * (10 ** (level / 20) / rms))
    return (parts[0] + parts[1]).astype(np.float32)
