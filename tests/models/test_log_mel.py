import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from sharpen.models.log_mel import log_mel, mel_filters
from sharpen.models.weights.checkpoint import MelSettings


def recording(samples: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    t = np.arange(samples) / 16_000
    speech = 0.3 * np.sin(2 * np.pi * (200 + 300 * t) * t) * (1 + np.sin(2 * np.pi * 3 * t))
    return (speech + 0.01 * generator.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("samples", [1, 201, 16_000, 7 * 16_000 + 77, 480_000 - 1, 480_000, 480_001, 500_000])
def test_equal_to_the_extractor_of_transformers(n_mels, samples):
    x = recording(samples)
    expected = WhisperFeatureExtractor(feature_size=n_mels)(x, sampling_rate=16_000, return_tensors="pt").input_features
    found = log_mel(x, MelSettings(n_mels))
    assert found.shape == (n_mels, 3000)
    assert found.dtype == torch.float32
    assert (found - expected[0]).abs().max() < 1e-5


@pytest.mark.parametrize("x", [np.zeros(16_000, np.float32), np.ones(16_000, np.float32)], ids=["silence", "constant"])
def test_equal_on_signals_without_noise(x):
    expected = WhisperFeatureExtractor(feature_size=80)(x, sampling_rate=16_000, return_tensors="pt").input_features
    assert (log_mel(x, MelSettings(80)) - expected[0]).abs().max() < 1e-5


@pytest.mark.parametrize("n_mels", [80, 128])
def test_the_filter_bank_alone(n_mels):
    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    assert np.abs(mel_filters(n_mels, 400, 16_000).numpy() - extractor.mel_filters.T).max() < 1e-8


def test_a_batch_is_its_windows_one_by_one():
    windows = [recording(16_000), recording(90_000, seed=1)]
    batch = log_mel(windows, MelSettings(80))
    assert batch.shape == (2, 80, 3000)
    assert torch.equal(batch[0], log_mel(windows[0], MelSettings(80)))
    assert torch.equal(batch[1], log_mel(windows[1], MelSettings(80)))


def test_settings_are_the_checkpoints_own():
    assert log_mel(recording(16_000), MelSettings(40, seconds=5)).shape == (40, 500)
    assert log_mel(recording(16_000), MelSettings(80, hop_length=320)).shape == (80, 1500)
