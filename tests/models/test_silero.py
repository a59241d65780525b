import importlib.util
import subprocess
import sys

import numpy as np
import pytest
import torch
from speechlike import EXAMPLES

from sharpen.errors import SharpenError
from sharpen.models import silero
from sharpen.models.silero import FRAME, load_silero
from sharpen.speech.audio import read_audio
from sharpen.speech.stream import blocks_of


@pytest.fixture(scope="module")
def speech():
    """Two examples with a second of silence between them."""
    first, second = (read_audio(EXAMPLES / name).samples for name in ("ferry.flac", "market.mp3"))
    return np.concatenate([first, np.zeros(16000, np.float32), second])


def heard(samples, frames):
    return np.concatenate(list(load_silero().probabilities(blocks_of(samples, frames * FRAME))))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_it_is_the_network_of_the_package(speech):
    """The package's own TorchScript goes frame by frame."""
    path = importlib.util.find_spec("silero_vad").submodule_search_locations[0] + "/data/silero_vad.jit"
    theirs = torch.jit.load(path)
    padded = np.pad(speech, (0, -len(speech) % FRAME)).reshape(-1, FRAME)
    with torch.no_grad():
        expected = [theirs(torch.from_numpy(frame), 16000).item() for frame in padded]
    ours = heard(speech, 512)
    assert 0.3 < (ours > 0.5).mean() < 0.95
    np.testing.assert_allclose(ours, expected, atol=1e-3)


def test_the_size_of_a_block_makes_no_difference(speech):
    np.testing.assert_allclose(heard(speech, 512), heard(speech, 7), atol=1e-3)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SharpenError, match=r"pip install 'sharpen\[vad\]'"):
        load_silero.__wrapped__()


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setitem(silero._SHAPES, "decoder.rnn.weight_ih", (512, 64))
    with pytest.raises(SharpenError, match="another version of silero-vad"):
        load_silero.__wrapped__()


def test_the_package_is_not_imported():
    """It would set torch to one thread."""
    code = (
        "import sys, torch\ntorch.set_num_threads(2)\n"
        "from sharpen.models.silero import load_silero\nload_silero()\n"
        "sys.exit('silero_vad' in sys.modules or torch.get_num_threads() != 2)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
