"""A name to a model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import torch

from sharpen.errors import SharpenError, WeightsWarning
from sharpen.models.causal_text import CausalText
from sharpen.models.ctc_speech import CTCSpeech
from sharpen.models.moonshine_speech import MoonshineSpeech
from sharpen.models.seq2seq_families import SEQ2SEQ
from sharpen.models.seq2seq_text import Seq2SeqText
from sharpen.models.speech import SpeechModel
from sharpen.models.text import TextModel
from sharpen.models.weights.ctc import CTCCheckpoint
from sharpen.models.weights.load import Found, find_checkpoint
from sharpen.models.weights.moonshine import MoonshineCheckpoint
from sharpen.models.weights.text import load_text_checkpoint
from sharpen.models.whisper_speech import WhisperSpeech


def load_speech(name: str | Path | Found, device: str, dtype: str) -> SpeechModel:
    """The speech model of a checkpoint: a path, an installed package, a size name, a Hugging Face id, or a `Found`."""
    with torch.inference_mode(False):  # weights made inside of it could never be adapted
        checkpoint = (name if isinstance(name, Found) else find_checkpoint(name)).load()
        if checkpoint.note:
            warnings.warn(f"{checkpoint.name}: {checkpoint.note}", WeightsWarning, stacklevel=2)
        try:
            if isinstance(checkpoint, MoonshineCheckpoint):
                return MoonshineSpeech(checkpoint, device, getattr(torch, dtype))
            if isinstance(checkpoint, CTCCheckpoint):
                own: Any = CTCSpeech(checkpoint, device, getattr(torch, dtype))
                return cast(SpeechModel, own)  # but for the calls about a policy
            return WhisperSpeech(checkpoint, device, getattr(torch, dtype))
        except (RuntimeError, AssertionError, AttributeError, TypeError) as error:
            raise SharpenError(f"cannot use device {device!r} with dtype {dtype!r}: {error}") from error


def load_text_model(name: str | Path, device: str, dtype: str) -> TextModel:
    """A language model: a path, a name of the catalogue or a Hugging Face id."""
    with torch.inference_mode(False):  # weights made inside of it could never be adapted
        checkpoint = load_text_checkpoint(name)
        kind = checkpoint.config.get("model_type")
        if checkpoint.config.get("is_encoder_decoder") and kind not in SEQ2SEQ:
            raise SharpenError(
                f"{checkpoint.name} is an encoder-decoder of type {kind!r}: expected one of {', '.join(SEQ2SEQ)}"
            )
        try:
            if kind in SEQ2SEQ:
                return Seq2SeqText(checkpoint, device, getattr(torch, dtype))
            return CausalText(checkpoint, device, getattr(torch, dtype))
        except (RuntimeError, AssertionError, AttributeError, TypeError) as error:
            raise SharpenError(f"cannot use device {device!r} with dtype {dtype!r}: {error}") from error
