"""What passes between Whisper's stages: prepared audio, encoded audio, and a search in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
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

    def alone(self, b: int) -> Prepared:
        """One utterance, without the frames that only fill it up to its neighbours' length."""
        if self.bias is None:
            return self.select([b])
        S = int((self.bias[b] > -torch.inf).sum())
        return Prepared(self.stem[b : b + 1, :S], (self.prompts[b],), self.bias[b : b + 1, ..., :S])

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
    alone: tuple[Encoded, ...] = ()  # the same one by one, where they were encoded so: then these have the gradient

    @classmethod
    @torch.no_grad()
    def joined(cls, alone: Sequence[Encoded], bias: Tensor | None) -> Encoded:
        """Utterances that were encoded one by one, as a batch to search, which keeps them as they are to score."""
        layers = zip(*(one.cross for one in alone), strict=True)
        cross = tuple((_filled([k for k, _ in layer]), _filled([v for _, v in layer])) for layer in layers)
        prompts = tuple(prompt for one in alone for prompt in one.prompts)
        return cls(_filled([one.states for one in alone]), cross, prompts, bias, tuple(alone))

    def detach(self) -> Encoded:
        """The same values without their gradient, for searching before scoring.

        Keys and values are laid out one frame behind the other: a search reads them at every level.
        """
        cross = tuple((k.detach().contiguous(), v.detach().contiguous()) for k, v in self.cross)
        return replace(self, states=self.states.detach(), cross=cross, alone=())

    def prompted(self, prompts: Sequence[Sequence[int]]) -> Encoded:
        """The same utterances with other prompts."""
        alone = tuple(one.prompted([prompt]) for one, prompt in zip(self.alone, prompts, strict=False))
        return replace(self, prompts=tuple(tuple(prompt) for prompt in prompts), alone=alone)

    def select(self, inputs: Sequence[int]) -> Encoded:
        """Some of the utterances."""
        rows = list(inputs)
        if rows == list(range(len(self.prompts))):
            return self
        cross = tuple((k[rows], v[rows]) for k, v in self.cross)
        bias = None if self.bias is None else self.bias[rows]
        alone = tuple(self.alone[b] for b in rows) if self.alone else ()
        return Encoded(self.states[rows], cross, tuple(self.prompts[b] for b in rows), bias, alone)


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


def _filled(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (1, ..., S, d) one below the other, with zeros where one is shorter."""
    S = max(part.shape[-2] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, S - part.shape[-2])) for part in parts])
