"""An encoder-decoder text model as a text model: prompts to tokens, tokens to text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch

from sharpen.errors import SharpenError, WeightsWarning
from sharpen.models.causal_text import LanguageTokens
from sharpen.models.seq2seq import Seq2SeqPolicy
from sharpen.models.states import PreparedSpeech
from sharpen.models.weights.tensors import numbers
from sharpen.models.weights.text import TextCheckpoint


class WholeTexts(LanguageTokens):
    """The tokeniser of a model that writes texts of its own, where a causal model continues one."""

    def decode(self, ids: Iterable[int]) -> str:
        """Without the space that the first word begins with where every word begins with one."""
        text = super().decode(ids)
        return text if self._byte_level else text.removeprefix(" ")


class Seq2SeqText:
    """An encoder-decoder text model behind `models.text.TextModel`."""

    def __init__(self, checkpoint: TextCheckpoint, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.checkpoint, self.name, self.quantised = checkpoint, checkpoint.name, checkpoint.quantised
        self.tokenizer = WholeTexts(checkpoint.tokenizer)
        self._plain = Seq2SeqPolicy.of(
            checkpoint.config,
            {name: numbers(weight) for name, weight in checkpoint.tensors.items()},
            {**(checkpoint.generation or {}), "eos_token_id": list(checkpoint.ends)},
            device=device,
            dtype=dtype,
        )
        if self._plain.decoding.unused:
            names = ", ".join(self._plain.decoding.unused)
            warnings.warn(
                f"{self.name} asks for {names}, which change the distribution while searching and are not applied",
                WeightsWarning,
                stacklevel=2,
            )

    def policy(self, chat: bool, end: str = "") -> Seq2SeqPolicy:
        self._refuse(chat)
        if not end:
            return self._plain
        tokens = self.tokenizer.encode(end)
        if len(tokens) != 1:
            raise SharpenError(f"end_with is {end!r}, which {self.name} writes as {len(tokens)} tokens; expected one")
        return self._plain.ending(tokens[0])

    def prepare(self, prompts: Sequence[str], chat: bool) -> PreparedSpeech:
        self._refuse(chat)
        return self._plain.prepare([self.tokenizer.prompt(prompt) for prompt in prompts])

    def _refuse(self, chat: bool) -> None:
        if chat:
            raise SharpenError(f"{self.name} is an encoder-decoder, which has no chat template; leave --chat out")
