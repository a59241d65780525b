"""Samples in an array: checked, mixed down to mono and resampled."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from sharpen.errors import AudioError, AudioTooLongError

MIN_RATE, MAX_RATE = 1_000, 1_000_000  # Hz; a header that says otherwise is wrong, and could fill the memory
MAX_FLOAT_PEAK = 16.0  # float mixes overshoot 1.0 a little; beyond this they are integers stored as floats
MAX_CHANNELS = 8  # of an array: an axis that is longer is time; files say how many they have
_CHUNK = 1 << 16  # samples handed to the resampler at a time


@dataclass(frozen=True)
class ReadLimits:
    """How much of a file is decoded, for files from strangers: a few bytes can stand for hours of audio."""

    seconds: float = math.inf
    samples: float = math.inf  # of all channels, before they are mixed
    formats: str = ""  # FFmpeg's names of the containers that may be opened, with commas between them; empty: all

    def check(self, seconds: float, samples: int, label: str) -> None:
        """Raises where so much has been decoded that the rest is not worth reading."""
        if seconds > self.seconds:
            raise AudioTooLongError(f"{label} is longer than {self.seconds:g} seconds, the most that is accepted")
        if samples > self.samples:
            raise AudioTooLongError(
                f"{label} has more than {self.samples:g} samples in all its channels, the most that is accepted"
            )


NO_LIMITS = ReadLimits()


def as_array(source: Any) -> np.ndarray:
    """Anything that numpy can view as an array."""
    try:
        return np.asarray(source)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU, or one that requires a gradient
        raise AudioError(f"{type(source).__name__} cannot be converted to a numpy array: {error}") from error


def mono(array: np.ndarray) -> np.ndarray:
    """Samples of any accepted shape and type as (N,) float32."""
    if array.ndim == 2:
        short, long = sorted(array.shape)
        if short > MAX_CHANNELS or short == long:
            raise AudioError(
                f"an array of shape {array.shape} is not audio: expected (N,), (channels, N) or (N, channels) "
                f"with at most {MAX_CHANNELS} channels"
            )
        axis = array.shape.index(short)
        samples = scaled(array).mean(axis=axis, dtype=np.float32) if array.size else array.reshape(-1)
    elif array.ndim == 1:
        samples = scaled(array)
    else:
        raise AudioError(
            f"an array of shape {array.shape} is not one recording: expected (N,), (channels, N) or (N, channels)"
        )
    if samples.size == 0:
        raise AudioError(f"an array of shape {array.shape} has no samples: the recording has zero length")
    return samples


def scaled(array: np.ndarray) -> np.ndarray:
    """PCM integers, or floats in [-1, 1], as float32 in [-1, 1]; the shape stays."""
    if array.dtype == np.uint8:  # the only unsigned PCM, with silence at 128
        return (array.astype(np.float32) - 128.0) / 128.0
    if array.dtype.kind == "i" and array.dtype.itemsize <= 4:
        return array.astype(np.float32) / -float(np.iinfo(array.dtype).min)
    if array.dtype.kind != "f":
        raise AudioError(
            f"samples of type {array.dtype} are not audio: expected floats in [-1, 1], or int16 or int32 PCM"
        )
    bad = array.size - int(np.isfinite(array).sum())
    if bad:
        raise AudioError(f"{bad} of {array.size} samples are NaN or infinite: remove or replace them first")
    peak = float(np.abs(array).max(initial=0.0))
    if peak > MAX_FLOAT_PEAK:
        raise AudioError(
            f"float samples reach {peak:.6g} where [-1, 1] is expected: if they are int16 values, divide by 32768"
        )
    return array.astype(np.float32)


def resample(samples: np.ndarray, rate: int, sampling_rate: int) -> np.ndarray:
    """(N,) float32 at `rate` as (M,) float32 at `sampling_rate`."""
    for value in (rate, sampling_rate):
        if not isinstance(value, Real) or not MIN_RATE <= value <= MAX_RATE or value != math.floor(value):
            raise AudioError(
                f"{value!r} is not a sampling rate; expected a whole number of Hz from {MIN_RATE} to {MAX_RATE}, such "
                "as 44100"
            )
    if rate == sampling_rate:
        return samples
    resampler = AudioResampler(format="flt", layout="mono", rate=int(sampling_rate))
    out: list[np.ndarray] = []
    for start in range(0, len(samples), _CHUNK):
        frame = AudioFrame.from_ndarray(samples[None, start : start + _CHUNK], format="flt", layout="mono")
        frame.sample_rate = int(rate)
        out += [f.to_ndarray()[0] for f in resampler.resample(frame)]
    out += [f.to_ndarray()[0] for f in resampler.resample(None)]
    return np.concatenate(out) if out else np.zeros(0, np.float32)
