"""A causal language model as a text model: prompts to tokens, chat templates, tokens to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch

from sharpen.errors import SharpenError
from sharpen.models.causal import CausalPolicy
from sharpen.models.causal_states import PreparedText
from sharpen.models.weights.text import TextCheckpoint


class LanguageTokens:
    """The tokeniser of a checkpoint."""

    def __init__(self, tokenizer: Any) -> None:
        self._tok = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, word in added.items() if word.special)
        self._added = {token: word.content for token, word in added.items()}

    def encode(self, text: str) -> list[int]:
        return list(self._tok.encode(text, add_special_tokens=False).ids)

    def prompt(self, text: str) -> list[int]:
        """With what the model's texts begin with, such as BOS."""
        return list(self._tok.encode(text, add_special_tokens=True).ids)

    def decode(self, ids: Iterable[int]) -> str:
        # The library's own decoder would drop the space that a continuation begins with.
        return b"".join(self.token_bytes(token) for token in ids if self.is_text(token)).decode("utf-8", "replace")

    def is_text(self, token: int) -> bool:
        return token < self.size and token not in self._special

    def token_bytes(self, token: int) -> bytes:
        if token in self._added:
            return bytes(self._added[token], "utf-8")
        piece = self._tok.id_to_token(token) or ""
        if self._byte_level:
            return bytes(_BYTE_OF.get(character, 0x3F) for character in piece)
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode()

    @cached_property
    def size(self) -> int:
        return int(self._tok.get_vocab_size(with_added_tokens=True))

    @cached_property
    def _byte_level(self) -> bool:
        """Whether tokens are written in the alphabet of 256 printable characters for bytes, which GPT-2 began."""
        return "ByteLevel" in repr(self._tok.decoder)


def _printable() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _printable()


class CausalText:
    """A causal language model behind `models.text.TextModel`."""

    def __init__(self, checkpoint: TextCheckpoint, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.checkpoint, self.name, self.quantised = checkpoint, checkpoint.name, checkpoint.quantised
        self.tokenizer = LanguageTokens(checkpoint.tokenizer)
        self._plain = CausalPolicy.of(
            checkpoint.config, checkpoint.tensors, ends=checkpoint.ends, device=device, dtype=dtype
        )

    def policy(self, chat: bool, end: str = "") -> CausalPolicy:
        """Of several end tokens, one of the template ends a turn."""
        if end:
            tokens = self.tokenizer.encode(end)
            if len(tokens) != 1:
                raise SharpenError(
                    f"end_with is {end!r}, which {self.name} writes as {len(tokens)} tokens; expected one"
                )
            return self._plain.ending(tokens[0])
        template = self.checkpoint.chat_template
        for token in self._plain.ends if chat else ():
            if self.checkpoint.tokenizer.id_to_token(token) in template:
                return self._plain.ending(token)
        return self._plain

    def prepare(self, prompts: Sequence[str], chat: bool) -> PreparedText:
        tokens = [self.tokenizer.encode(self._turn(p)) if chat else self.tokenizer.prompt(p) for p in prompts]
        return self._plain.prepare(tokens)

    def _turn(self, prompt: str) -> str:
        """A conversation of one message, up to where the answer begins. The template runs in Jinja's sandbox."""
        if not self.checkpoint.chat_template:
            raise SharpenError(f"{self.name} has no chat template; leave --chat out, or use an instruction-tuned model")
        from jinja2 import TemplateError  # it comes with torch
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> str:
            raise TemplateError(message)

        sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        sandbox.globals |= {"raise_exception": refuse}
        try:
            template = sandbox.from_string(self.checkpoint.chat_template)
            return template.render(
                messages=[{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                **(self.checkpoint.words or {}),
            )
        except TemplateError as error:
            raise SharpenError(f"the chat template of {self.name} fails ({error}); leave --chat out") from error
