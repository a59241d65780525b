"""Silero's voice activity detector (silero-vad, version 6): how probable speech is in every 32 ms of audio at 16 kHz.

Only the weights of its package are used, and the package is not imported: importing it sets torch to one thread. They
are in its TorchScript file; the safetensors file beside it is of an older training.
A frame passes through a learnt spectrum and four convolutions, then through an LSTM cell. The convolutions know nothing
of other frames, so that many frames are computed at once; the LSTM goes over them in order.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.errors import SharpenError

RATE = 16_000  # Hz
FRAME = 512  # samples
BLOCK = 512  # frames at once: 16 s
_BEFORE = 64  # samples of the frame before, which a frame begins with
_AFTER = 64  # samples mirrored at its end
_STRIDE = 128  # samples between the spectra of a frame
_BINS = 129
_STRIDES = (1, 2, 2, 1)  # of the convolutions
_SHAPES = {
    "stft.forward_basis_buffer": (258, 1, 256),
    **{f"encoder.{i}.reparam_conv.bias": (n,) for i, n in enumerate((128, 64, 64, 128))},
    **{f"decoder.rnn.{name}": (512, 128) for name in ("weight_ih", "weight_hh")},
    **{f"decoder.rnn.{name}": (512,) for name in ("bias_ih", "bias_hh")},
    "decoder.decoder.2.weight": (1, 128, 1),
    "decoder.decoder.2.bias": (1,),
}


class SileroVoice:
    """The network; it keeps nothing from one recording to the next."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    @torch.inference_mode()
    def probabilities(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Consecutive blocks of samples, each of whole frames but the last, to the probability of speech by frame."""
        before = torch.zeros(_BEFORE)
        state = torch.zeros(1, 1, 128), torch.zeros(1, 1, 128)
        for block in blocks:
            samples = torch.from_numpy(np.ascontiguousarray(block, np.float32))
            frames = F.pad(samples, (0, -len(samples) % FRAME)).view(-1, FRAME)  # (n, 512)
            ends = torch.cat([before[None], frames[:, -_BEFORE:]])  # (n + 1, 64)
            before = ends[-1]
            features = self._features(torch.cat([ends[:-1], frames], 1))  # (n, 128)
            hidden, state = self._lstm(features, state)
            weight, bias = self.weights["decoder.decoder.2.weight"], self.weights["decoder.decoder.2.bias"]
            yield F.linear(hidden.relu(), weight[:, :, 0], bias)[:, 0].sigmoid().numpy()  # (n,)

    def _features(self, frames: Tensor) -> Tensor:
        x = F.pad(frames[:, None], (0, _AFTER), "reflect")  # (n, 1, 640)
        waves = F.conv1d(x, self.weights["stft.forward_basis_buffer"], stride=_STRIDE)  # (n, 258, 4)
        x = (waves[:, :_BINS] ** 2 + waves[:, _BINS:] ** 2).sqrt()  # (n, 129, 4)
        for i, stride in enumerate(_STRIDES):
            weight, bias = (self.weights[f"encoder.{i}.reparam_conv.{name}"] for name in ("weight", "bias"))
            x = F.conv1d(x, weight, bias, stride=stride, padding=1).relu()
        return x[:, :, 0]

    def _lstm(self, features: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        parameters = [self.weights[f"decoder.rnn.{name}"] for name in names]
        out, h, c = torch.lstm(features[:, None], state, parameters, True, 1, 0.0, False, False, False)
        return out[:, 0], (h, c)


@cache
def load_silero() -> SileroVoice:
    """The network of the installed package."""
    found = importlib.util.find_spec("silero_vad")  # looked for, not imported
    if found is None or not found.submodule_search_locations:
        raise SharpenError("voice activity needs the package silero-vad: pip install 'sharpen[vad]'")
    path = Path(found.submodule_search_locations[0]) / "data" / "silero_vad.jit"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the file has no newer format
            module = torch.jit.load(str(path), "cpu")  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError, ValueError) as error:
        raise SharpenError(f"{path} cannot be read ({error}): pip install --force-reinstall 'sharpen[vad]'") from error
    prefix = "_model."  # the other network is for 8 kHz
    weights = {name.removeprefix(prefix): x for name, x in module.state_dict().items() if name.startswith(prefix)}
    if any(name not in weights or tuple(weights[name].shape) != shape for name, shape in _SHAPES.items()):
        raise SharpenError(f"{path} is of another version of silero-vad: pip install 'sharpen[vad]' has the right one")
    return SileroVoice(weights)
