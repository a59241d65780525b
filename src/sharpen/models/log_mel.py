"""Whisper's log-mel spectrogram, with the settings of a checkpoint."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from sharpen.models.weights.checkpoint import MelSettings

LINEAR_HZ = 1000.0  # Slaney's mel scale is linear up to here, at 3 mels per 200 Hz, and logarithmic above
MELS_PER_HZ = 3 / 200
MELS_PER_LOG = 27 / np.log(6.4)


def log_mel(samples: np.ndarray | Sequence[np.ndarray], mel: MelSettings) -> torch.Tensor:
    """Features of one window, (n_mels, frames), or of a list of windows, (B, n_mels, frames).

    Each window is padded with silence, or cut, to the length the model was trained on: 3000 frames for 30 seconds.
    Longer recordings must be divided into windows first.
    """
    if not isinstance(samples, np.ndarray):
        return torch.stack([log_mel(window, mel) for window in samples])  # (B, n_mels, frames)
    n = mel.seconds * mel.sampling_rate
    x = torch.tensor(samples[:n], dtype=torch.float32)
    x = F.pad(x, (0, n - len(x)))  # (n,)
    spectrum = torch.stft(x, mel.n_fft, mel.hop_length, window=_window(mel.n_fft), return_complex=True)
    power = spectrum[:, :-1].abs() ** 2  # (n_fft/2 + 1, frames)
    bank = mel_filters(mel.n_mels, mel.n_fft, mel.sampling_rate)  # (n_mels, n_fft/2 + 1)
    log = (bank @ power).clamp(min=1e-10).log10()
    log = torch.maximum(log, log.max() - 8.0)
    return (log + 4.0) / 4.0


@lru_cache
def mel_filters(n_mels: int, n_fft: int, sampling_rate: int) -> torch.Tensor:
    """Triangles equally spaced in Slaney's mels from 0 Hz to the Nyquist frequency, each of area 1: (n_mels, bins)."""
    edges = _hertz(np.linspace(0.0, _mels(sampling_rate / 2), n_mels + 2))  # (n_mels + 2,)
    bins = np.linspace(0.0, sampling_rate / 2, n_fft // 2 + 1)  # (bins,)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]  # (n_mels, 1)
    rise = (bins - low) / (centre - low)  # (n_mels, bins)
    fall = (high - bins) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rise, fall)) * 2.0 / (high - low)
    # A copy in torch's own memory: alignment changes the rounding of products.
    return torch.tensor(triangles, dtype=torch.float32)


def _mels(hertz: float) -> float:
    if hertz < LINEAR_HZ:
        return hertz * MELS_PER_HZ
    return float(LINEAR_HZ * MELS_PER_HZ + MELS_PER_LOG * np.log(hertz / LINEAR_HZ))


def _hertz(mels: np.ndarray) -> np.ndarray:
    above = mels - LINEAR_HZ * MELS_PER_HZ
    return np.where(above < 0, mels / MELS_PER_HZ, LINEAR_HZ * np.exp(np.maximum(above, 0.0) / MELS_PER_LOG))


@lru_cache
def _window(n_fft: int) -> torch.Tensor:
    return torch.hann_window(n_fft)
