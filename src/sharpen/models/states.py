"""What passes between Whisper's stages: prepared audio, encoded audio, and a search in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sharpen.models.cache import TreeCache


@dataclass(frozen=True)
class Prepared:
    """Utterances up to where the first norm stands: the convolutions are behind them."""

    stem: Tensor  # (B, S, d)
    prompts: tuple[tuple[int, ...], ...]  # B prompts; their lengths may differ
    bias: Tensor | None = None  # (B, 1, 1, S) added to the attention logits of each frame; None where padding is full

    def __len__(self) -> int:
        return len(self.prompts)

    def prompted(self, prompts: Sequence[Sequence[int]]) -> Prepared:
        """The same utterances with other prompts."""
        return replace(self, prompts=tuple(tuple(prompt) for prompt in prompts))

    def select(self, inputs: Sequence[int]) -> Prepared:
        rows = list(inputs)
        if rows == list(range(len(self))):
            return self
        bias = None if self.bias is None else self.bias[rows]
        return Prepared(self.stem[rows], tuple(self.prompts[b] for b in rows), bias)


@dataclass(frozen=True)
class Encoded:
    """What Whisper computes once per utterance."""

    states: Tensor  # (B, S, d) encoder output
    cross: tuple[tuple[Tensor, Tensor], ...]  # keys and values of each decoder layer, (B, heads, S, d/heads)
    prompts: tuple[tuple[int, ...], ...]  # B prompts; their lengths may differ
    bias: Tensor | None = None  # (B, 1, 1, S) of each frame's attention logits

    @classmethod
    def joined(cls, alone: Sequence[Encoded], bias: Tensor | None) -> Encoded:
        """Utterances that were encoded one by one, as a batch."""
        layers = zip(*(one.cross for one in alone), strict=True)
        cross = tuple((torch.cat([k for k, _ in layer]), torch.cat([v for _, v in layer])) for layer in layers)
        prompts = tuple(prompt for one in alone for prompt in one.prompts)
        return cls(torch.cat([one.states for one in alone]), cross, prompts, bias)

    def detach(self) -> Encoded:
        """The same values without their gradient, for searching before scoring.

        Keys and values are laid out one frame behind the other: a search reads them at every level.
        """
        cross = tuple((k.detach().contiguous(), v.detach().contiguous()) for k, v in self.cross)
        return replace(self, states=self.states.detach(), cross=cross)

    def prompted(self, prompts: Sequence[Sequence[int]]) -> Encoded:
        """The same utterances with other prompts."""
        return replace(self, prompts=tuple(tuple(prompt) for prompt in prompts))

    def select(self, inputs: Sequence[int]) -> Encoded:
        """Some of the utterances."""
        rows = list(inputs)
        if rows == list(range(len(self.prompts))):
            return self
        cross = tuple((k[rows], v[rows]) for k, v in self.cross)
        bias = None if self.bias is None else self.bias[rows]
        return Encoded(self.states[rows], cross, tuple(self.prompts[b] for b in rows), bias)


@dataclass(frozen=True)
class WhisperState:
    """A search in progress over B utterances."""

    hidden: Tensor  # (B, n, d) of the frontier's nodes; zeros where padded or ended
    prompt_hidden: Tensor  # (B, P, d) of every prompt position, for the no-speech and the language probabilities
    cache: TreeCache
    cross: tuple[tuple[Tensor, Tensor], ...]  # of the utterances still in the work
    heard: Tensor | None  # (b, 1, 1, S) of those utterances: what is added to each frame's attention logits
    positions: Tensor  # (b,) the next node's position
    rows: Tensor  # (b,) which utterances are still in the work
