"""Short English words in voices of flite and espeak-ng, alone and in sequences: what a small CTC model is trained and
tested with (scripts/train_ctc.py, scripts/ctc_shift.py).
"""

import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np

RATE = 16_000  # Hz
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
WORDS = (*DIGITS, "yes", "no", "stop", "go", "left", "right", "up", "down", "red", "green")
SEEN = (
    "flite:slt",
    "flite:rms",
    "flite:kal16",
    *(f"espeak-ng:{v}" for v in ("en-us", "en-us+f2", "en-gb+m3", "en-gb+f4")),
)
OTHER = ("flite:awb", "espeak-ng:en-gb-scotland+m7", "espeak-ng:en-us+f5")  # never trained with
SPEEDS = (0.9, 1.0, 1.15)
LOUD = 0.05  # RMS of a word
GAP = (0.08, 0.3)  # seconds between words


@functools.cache
def spoken(word: str, voice: str, speed: float) -> np.ndarray:
    """A word without the silence around it, at the usual loudness."""
    program, _, name = voice.partition(":")
    if shutil.which(program) is None:
        sys.exit(f"{program} is not installed; on Debian: apt-get install flite espeak-ng")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "word.wav"
        if program == "flite":
            command = ["flite", "-voice", name, "--setf", f"duration_stretch={1 / speed}", "-t", word, "-o", path]
        else:
            command = ["espeak-ng", "-v", name, "-s", str(round(160 * speed)), "-w", path, word]
        subprocess.run(command, check=True, capture_output=True)
        with wave.open(str(path)) as file:
            rate, samples = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), dtype=np.int16)
    x = samples.astype(np.float64) / 32768
    x = np.interp(np.arange(0, len(x), rate / RATE), np.arange(len(x)), x) if rate != RATE else x
    loud = np.flatnonzero(np.abs(x) > 0.02 * np.abs(x).max())
    x = x[loud[0] : loud[-1] + 1]
    return (x * LOUD / np.sqrt((x**2).mean())).astype(np.float32)


def sequence(rng: np.random.Generator, voices: tuple[str, ...], count: int) -> tuple[str, np.ndarray]:
    """Words at random, all in one voice, with pauses: their text and their samples."""
    voice = voices[rng.integers(len(voices))]
    words = [WORDS[i] for i in rng.integers(len(WORDS), size=count)]
    parts = [_silence(rng)]
    for word in words:
        parts += [spoken(word, voice, SPEEDS[rng.integers(len(SPEEDS))]) * rng.uniform(0.7, 1.4), _silence(rng)]
    return " ".join(words), np.concatenate(parts)


def noisy(rng: np.random.Generator, samples: np.ndarray, snr: float) -> np.ndarray:
    """With white noise at a signal-to-noise ratio in dB, over the whole."""
    power = float((samples.astype(np.float64) ** 2).mean()) / 10 ** (snr / 10)
    return (samples + rng.normal(0, power**0.5, len(samples))).astype(np.float32)


def draws(*names: object) -> np.random.Generator:
    """A random source of its own for every use."""
    digest = hashlib.sha256(" ".join(map(str, names)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _silence(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(int(rng.uniform(*GAP) * RATE), dtype=np.float32)
