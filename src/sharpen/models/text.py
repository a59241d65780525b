"""What generation needs of a model: the protocol between text/ and the models that run.

`models.causal_text.CausalText` answers it for causal language models, `models.seq2seq_text.Seq2SeqText` for
encoder-decoders. text/ knows models by this protocol only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sharpen.method.policy import Policy, Prepared


class TextTokens(Protocol):
    """The text of tokens."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that continues another: nothing is added before or after."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; special ones are left out."""

    def is_text(self, token: int) -> bool: ...
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a text token writes; a character may span several tokens."""


class TextModel(Protocol):
    """A model that answers prompts."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> TextTokens: ...
    @property
    def quantised(self) -> str:
        """How the weights were quantised before they were read; empty where they were not."""

    def policy(self, chat: bool, end: str = "") -> Policy[Any, Any, Any]:
        """The model; in a conversation an answer may end with another token than a text, or `end` names that token."""

    def prepare(self, prompts: Sequence[str], chat: bool) -> Prepared:
        """Prompts made ready: as they are, or as a user's turn in a conversation."""
