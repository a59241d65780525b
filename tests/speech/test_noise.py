import numpy as np
import pytest

from sharpen.errors import SharpenError
from sharpen.speech.noise import gaussian, mix

SPEECH = np.sin(np.arange(16000) / 7) * np.linspace(0, 1, 16000)


@pytest.mark.parametrize("snr", [-5.0, 0.0, 10.0])
def test_the_ratio_is_true(snr):
    noise = gaussian(16000, "u1")
    mixed = mix(SPEECH, noise, snr)
    clean = SPEECH * (10 ** (-25 / 20) / np.sqrt(np.mean(SPEECH**2)))
    rest = mixed - clean
    assert 10 * np.log10(np.mean(clean**2) / np.mean(rest**2)) == pytest.approx(snr, abs=1e-3)
    assert mixed.dtype == np.float32


def test_noise_belongs_to_the_utterance():
    assert np.array_equal(gaussian(100, "u1"), gaussian(200, "u1")[:100])
    assert not np.array_equal(gaussian(100, "u1"), gaussian(100, "u2"))
    assert not np.array_equal(gaussian(100, "u1"), gaussian(100, "u1", seed=1))


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(SharpenError, match="speech is silent"):
        mix(np.zeros(10), np.ones(10), 10)
    with pytest.raises(SharpenError, match="noise is silent"):
        mix(np.ones(10), np.zeros(10), 10)
    with pytest.raises(SharpenError, match="cut or tile"):
        mix(np.ones(10), np.ones(11), 10)
