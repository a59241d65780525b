"""Moonshine as a speech model: English only, no timestamps, no prompt, and no token for silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.policy import LONGEST
from sharpen.models.moonshine import MoonshinePolicy
from sharpen.models.moonshine_tokens import MoonshineTokenizer
from sharpen.models.speech import Start
from sharpen.models.states import EncodedSpeech, PreparedSpeech, SpeechState
from sharpen.models.weights.moonshine import MoonshineCheckpoint

SECONDS = 30.0  # the longest audio that it was trained with
TOKENS_PER_SECOND = 13  # twice what its authors allow: 6.5
SHORTEST_LIMIT = 32  # tokens


class MoonshineSpeech:
    """Answers `models.speech.SpeechModel` for a Moonshine checkpoint."""

    timestamps = False
    multilingual = False

    def __init__(
        self, checkpoint: MoonshineCheckpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.checkpoint = checkpoint
        self.policy = MoonshinePolicy(checkpoint, device, dtype)
        self.tokenizer: MoonshineTokenizer = checkpoint.tokenizer
        self.name = checkpoint.name
        self.sampling_rate = checkpoint.sampling_rate
        self.seconds = SECONDS

    def check(self, language: str, task: str) -> None:
        if language != "en" or task != "transcribe":
            raise SharpenError(f"Moonshine transcribes English and cannot {task} {language!r}; use a Whisper model")

    def prepare(self, windows: Sequence[np.ndarray], padding: str = "full") -> PreparedSpeech:
        """There is no padding to condense: every `padding` is the same."""
        samples = [torch.tensor(window, dtype=torch.float32) for window in windows]  # a copy: some are read-only
        return self.policy.prepare(samples, [[self.tokenizer.bos]] * len(windows))

    def prompted(
        self,
        prepared: PreparedSpeech,
        languages: Sequence[str],
        contexts: Sequence[Sequence[int]],
        task: str,
        timestamps: bool,
    ) -> PreparedSpeech:
        """Its prompt is always the start token; earlier text is not used."""
        self._check(languages, task)
        return prepared.prompted([[self.tokenizer.bos]] * len(prepared))

    def start(
        self,
        encoded: EncodedSpeech,
        languages: Sequence[str | None],
        contexts: Sequence[Sequence[int]],
        task: str,
        timestamps: bool,
    ) -> Start[EncodedSpeech, SpeechState]:
        known = [language or "en" for language in languages]
        self._check(known, task)
        encoded = encoded.prompted([[self.tokenizer.bos]] * len(encoded))
        return Start(encoded, self.policy.begin(encoded), known, [0.0] * len(encoded))

    def grammar(self, policy: MoonshinePolicy, timestamps: bool, beams: bool = False) -> tuple[MoonshinePolicy, None]:
        return policy, None

    def length_limit(self, seconds: float, language: str, task: str) -> int:
        return min(LONGEST, max(SHORTEST_LIMIT, round(TOKENS_PER_SECOND * seconds)))

    def attention(
        self,
        policy: MoonshinePolicy,
        encoded: EncodedSpeech,
        texts: Sequence[Sequence[int]],
        languages: Sequence[str],
        task: str,
        seconds: Sequence[float],
    ) -> NoReturn:
        raise SharpenError("no heads of Moonshine are known to follow the speech: word timestamps need a Whisper model")

    def frame_times(self, prepared: PreparedSpeech | EncodedSpeech) -> Tensor:
        times = prepared.frames * self.policy.seconds_per_frame
        return times if prepared.bias is None else times.masked_fill(prepared.bias[:, 0, 0] == -torch.inf, torch.nan)

    def _check(self, languages: Sequence[str], task: str) -> None:
        for language in languages:
            self.check(language, task)
