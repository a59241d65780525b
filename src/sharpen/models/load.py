"""A name to a speech model."""

from __future__ import annotations

from pathlib import Path

import torch

from sharpen.errors import SharpenError
from sharpen.models.weights.load import load_checkpoint
from sharpen.models.whisper_speech import WhisperSpeech


def load_speech(name: str | Path, device: str, dtype: str) -> WhisperSpeech:
    """The speech model of a checkpoint: a path, an installed package, a size name, or a Hugging Face id."""
    with torch.inference_mode(False):  # weights made inside of it could never be adapted
        checkpoint = load_checkpoint(name)
        module: torch.nn.Module = checkpoint.model
        try:
            module.to(device=torch.device(device), dtype=getattr(torch, dtype))
        except (RuntimeError, AssertionError, AttributeError, TypeError) as error:
            raise SharpenError(f"cannot use device {device!r} with dtype {dtype!r}: {error}") from error
        return WhisperSpeech(checkpoint)
