"""Noise at a known signal-to-noise ratio; an utterance gets the same noise in every run.

The ten noises are those of corrupted LibriSpeech in the literature: nine clips of MS-SNSD, and Gaussian noise. A clip
is used from its start, repeated and cut to the length of the utterance. Other draws are other samples of Gaussian noise
and other places of the clip to start at: they tell a setting's worth from the luck of one noise. Speech and noise are
scaled to LEVEL, measured over the whole utterance; then the noise is attenuated by the ratio.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from sharpen.errors import SharpenError
from sharpen.speech.audio import read_audio

LEVEL = -25.0  # dBFS: the root mean square of the scaled speech, as in corrupted LibriSpeech

# code -> the name of its clip in MS-SNSD; None for Gaussian noise
DOMAINS: Mapping[str, str | None] = {
    "AA": "AirportAnnouncements_2",
    "AC": "AirConditioner_6",
    "BA": "Babble_4",
    "CM": "CopyMachine_2",
    "GS": None,
    "MU": "Munching_3",
    "NB": "Neighbor_6",
    "SD": "ShuttingDoor_6",
    "TP": "Typing_2",
    "VC": "VacuumCleaner_1",
}

SNR_RULES = ("true", "ms-snsd-legacy")
OVERFLOWS = ("float", "clip", "wrap")
SUFFIXES = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus", ".webm")

# The folders in which MS-SNSD and its copies keep the clips.
_SUBFOLDERS = (".", "audio", "noise_test", "noise_train")


@dataclass(frozen=True)
class Corruption:
    """A noise at a signal-to-noise ratio; `corruption(speech, utterance_id)` returns the noisy speech."""

    noise: str  # a code of DOMAINS
    snr: float  # dB, speech over noise
    clip: Path | None = None  # the recording of that noise; None for Gaussian noise
    snr_rule: str = "true"  # "ms-snsd-legacy": MS-SNSD's mixer takes one square root too many, so its 10 dB are 5 dB
    # "clip": 16 bits, clipped; "wrap": 16 bits, where loud samples change sign, as in published files.
    overflow: str = "float"
    draw: int = 0

    def __post_init__(self) -> None:
        _known("noise", self.noise, DOMAINS)
        _known("snr_rule", self.snr_rule, SNR_RULES)
        _known("overflow", self.overflow, OVERFLOWS)
        if not math.isfinite(self.snr):
            raise SharpenError(f"the signal-to-noise ratio is {self.snr} dB; expected a finite number such as 10")
        if self.draw < 0:
            raise SharpenError(f"the draw of the noise is {self.draw}; expected 0, 1, 2 …")
        if DOMAINS[self.noise] and self.clip is None:
            raise SharpenError(f"the noise {self.noise} needs the clip {DOMAINS[self.noise]}: give its file")

    def __call__(self, speech: np.ndarray, utterance: str) -> np.ndarray:
        """Noisy speech (N,), float32; with "clip" and "wrap" exactly as read from a 16-bit file."""
        if self.clip is None:
            noise = gaussian(len(speech), utterance, self.draw)
        else:
            noise = from_clip(_clip(self.clip), len(speech), utterance, self.draw)
        mixed = mix(speech, noise, self.snr if self.snr_rule == "true" else self.snr / 2)
        if self.overflow == "float":
            return mixed
        return sixteen_bits(mixed, wrap=self.overflow == "wrap").astype(np.float32) / 32768


def corruption(
    noise: str,
    snr: float,
    folder: str | Path | None = None,
    *,
    snr_rule: str = "true",
    overflow: str = "float",
    draw: int = 0,
) -> Corruption:
    """The noise with that code, its clip from `folder`; Gaussian noise (GS) needs no folder."""
    clip = None if _clip_name(noise) is None else find_clip(noise, folder)
    return Corruption(noise, snr, clip, snr_rule, overflow, draw)


def find_clip(noise: str, folder: str | Path | None) -> Path:
    """The file of the clip of that noise."""
    name = _clip_name(noise)
    if folder is None:
        raise SharpenError(f"the noise {noise} needs the clip {name}: give the folder that has it")
    clips = find_clips(folder)
    if noise not in clips:
        raise SharpenError(
            f"{folder} has no clip {name} ({', '.join(SUFFIXES)}), which the noise {noise} needs; available there: "
            f"{', '.join(clips) or 'none'}, and GS, which needs no clip; add the file or choose one of these"
        )
    return clips[noise]


def find_clips(folder: str | Path) -> dict[str, Path]:
    """Code -> file of every clip in `folder`, by MS-SNSD's names; also from its subfolders and manifest.jsonl."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SharpenError(f"{folder}: no such folder; expected one with clips such as AirConditioner_6.wav")
    files: dict[str, Path] = {}
    for place in (folder / sub for sub in _SUBFOLDERS):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.suffix.lower() in SUFFIXES and path.is_file():
                files.setdefault(path.stem, path)
    for name, path in _listed(folder / "manifest.jsonl"):
        files.setdefault(name, path)
    return {code: files[name] for code, name in DOMAINS.items() if name in files}


def gaussian(count: int, utterance: str, draw: int = 0) -> np.ndarray:
    """White Gaussian noise (count,); it depends only on the draw and the utterance's id."""
    return _generator(utterance, draw).standard_normal(count)


def from_clip(clip: np.ndarray, count: int, utterance: str, draw: int = 0) -> np.ndarray:
    """A clip (count,), repeated and cut; draw 0 starts where it starts, the others anywhere in it."""
    start = int(_generator(utterance, draw).integers(len(clip))) if draw else 0
    return np.resize(np.roll(clip, -start), count)


def mix(speech: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Speech at LEVEL plus noise `snr` dB below it, both measured over the whole utterance; float32, never clipped."""
    if speech.shape != noise.shape:
        raise SharpenError(f"speech has shape {speech.shape} and noise {noise.shape}: cut or tile the noise first")
    parts = []
    for name, samples, level in (("speech", speech, LEVEL), ("noise", noise, LEVEL - snr)):
        rms = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
        if rms == 0:
            raise SharpenError(f"the {name} is silent: a signal-to-noise ratio needs both speech and noise")
        parts.append(samples * (10 ** (level / 20) / rms))
    return (parts[0] + parts[1]).astype(np.float32)


def sixteen_bits(samples: np.ndarray, wrap: bool = False) -> np.ndarray:
    """int16 (N,), rounded and clipped; with `wrap`, truncated and wrapped around as in published files."""
    if wrap:
        return (samples * np.float32(32767)).astype(np.int64).astype(np.int16)
    return np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype(np.int16)


def _listed(manifest: Path) -> list[tuple[str, Path]]:
    """(name, file) of each clip in a manifest, by its id and by the name of its file."""
    names: list[tuple[str, Path]] = []
    for line in manifest.read_text(encoding="utf-8").splitlines() if manifest.is_file() else ():
        try:
            row = json.loads(line)
            path = manifest.parent / row["audio_filepath"]
        except (json.JSONDecodeError, KeyError, TypeError):
            continue  # a missing clip is reported when it is needed
        if path.is_file():
            names += [(str(row.get("id")), path), (path.stem, path)]
    return names


@lru_cache(maxsize=len(DOMAINS))
def _clip(path: Path) -> np.ndarray:
    samples = read_audio(path).samples
    samples.setflags(write=False)
    return samples


def _generator(utterance: str, draw: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{draw}\x00{utterance}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _clip_name(noise: str) -> str | None:
    _known("noise", noise, DOMAINS)
    return DOMAINS[noise]


def _known(what: str, value: str, values: Mapping[str, object] | tuple[str, ...]) -> None:
    if value not in values:
        raise SharpenError(f"unknown {what} {value!r}; choose from {', '.join(values)}")
