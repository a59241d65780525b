"""Moonshine's tokeniser: pieces of text in which a space is "▁", bytes for what has no piece, and specials."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpen.errors import SharpenError, WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.stored import read_json

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, eq=False)
class MoonshineTokenizer:
    """Answers `models.speech.TokenText`; the model has no timestamps and takes no text."""

    pieces: tuple[bytes, ...]  # of the tokens that are text; b"" for the others
    text: np.ndarray  # (V,) bool: whether a token is text
    bos: int
    eos: int

    @classmethod
    def from_json(cls, path: Path, vocab_size: int) -> MoonshineTokenizer:
        """The vocabulary of a tokenizer.json, whose tokens must be those of the model."""
        tree = read_json(path)
        model, added = tree.get("model"), tree.get("added_tokens")
        vocabulary: Any = model.get("vocab") if isinstance(model, dict) else None
        if not isinstance(vocabulary, dict) or not isinstance(added, list):
            raise WeightsError(f"{path}: no vocabulary of pieces (model.vocab and added_tokens); {GET_AGAIN}")
        specials = {str(entry.get("content")): entry.get("id") for entry in added if isinstance(entry, dict)}
        names = {**vocabulary, **specials}
        if not all(isinstance(number, int) and 0 <= number < vocab_size for number in names.values()):
            raise WeightsError(f"{path}: tokens beyond the model's {vocab_size}; the files do not match")
        missing = [name for name in ("<s>", "</s>") if name not in names]
        if missing:
            raise WeightsError(f"{path}: no {missing[0]} among its tokens, so not Moonshine's tokeniser; {GET_AGAIN}")
        pieces, text = [b""] * vocab_size, np.zeros(vocab_size, dtype=bool)
        for piece, number in vocabulary.items():
            if piece not in specials:
                pieces[number], text[number] = _bytes(piece), True
        return cls(tuple(pieces), text, names["<s>"], names["</s>"])

    def encode(self, text: str) -> list[int]:
        raise SharpenError("Moonshine takes no text before its output; leave the initial prompt out")

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", errors="replace")

    def is_text(self, token: int) -> bool:
        return bool(self.text[token])

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def time(self, token: int) -> float | None:
        return None


def _bytes(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()
