"""What passes between the stages of an encoder-decoder: prepared audio, encoded audio, and a search in progress.

An encoder-decoder over text uses the same: its utterances are prompts, and their frames are tokens.

A batch may hold utterances with different numbers of frames. The shorter ones are filled up at the end, with zeros that
have a bias of -inf and so are never attended to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.models.cache import TreeCache


@dataclass(frozen=True)
class PreparedSpeech:
    """Utterances after the convolutions, and after the lower layers of the encoder where these are never adapted."""

    stem: Tensor  # (B, S, d)
    prompts: tuple[tuple[int, ...], ...]  # B prompts; their lengths may differ
    frames: Tensor  # (B, S) int64: which frame of its window each one is; 0 for filling
    bias: Tensor | None = None  # (B, 1, 1, S) added to the attention logits of each frame; None stands for zeros
    layers: int = 0  # of the encoder, that the stem went through already

    def __len__(self) -> int:
        return len(self.prompts)

    def prompted(self, prompts: Sequence[Sequence[int]]) -> PreparedSpeech:
        """The same utterances with other prompts."""
        return replace(self, prompts=tuple(tuple(prompt) for prompt in prompts))

    def select(self, inputs: Sequence[int]) -> PreparedSpeech:
        """Some of the utterances, without the filling that none of them needs."""
        rows = list(inputs)
        if rows == list(range(len(self))):
            return self
        bias, S = _selected(self.bias, rows, self.stem.shape[1])
        prompts = tuple(self.prompts[b] for b in rows)
        return PreparedSpeech(self.stem[rows, :S], prompts, self.frames[rows, :S], bias, self.layers)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The utterances of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        bias = _joined_bias([(part.bias, part.stem) for part in parts])
        prompts = tuple(prompt for part in parts for prompt in part.prompts)
        frames = _filled([part.frames for part in parts], dim=1)
        (layers,) = {part.layers for part in parts}
        return cls(_filled([part.stem for part in parts], dim=1), prompts, frames, bias, layers)


@dataclass(frozen=True)
class EncodedSpeech:
    """What the encoder computes once per utterance."""

    cross: tuple[tuple[Tensor, Tensor], ...]  # keys and values of each decoder layer, (B, heads, S, d/heads)
    prompts: tuple[tuple[int, ...], ...]  # B prompts; their lengths may differ
    frames: Tensor  # (B, S) int64: which frame of its window each one is; 0 for filling
    bias: Tensor | None = None  # (B, 1, 1, S) added to the attention logits of each frame; None stands for zeros
    alone: tuple[EncodedSpeech, ...] = ()  # one by one, where they were encoded so: they carry the gradient

    def __len__(self) -> int:
        return len(self.prompts)

    def detach(self) -> EncodedSpeech:
        """The same values without their gradient, for searching before scoring.

        Keys and values are made contiguous: a search reads them at every level.
        """
        cross = tuple((k.detach().contiguous(), v.detach().contiguous()) for k, v in self.cross)
        return replace(self, cross=cross, alone=())

    def prompted(self, prompts: Sequence[Sequence[int]]) -> EncodedSpeech:
        """The same utterances with other prompts."""
        alone = tuple(one.prompted([prompt]) for one, prompt in zip(self.alone, prompts, strict=False))
        return replace(self, prompts=tuple(tuple(prompt) for prompt in prompts), alone=alone)

    def select(self, inputs: Sequence[int]) -> EncodedSpeech:
        """Some of the utterances, without the filling that none of them needs."""
        rows = list(inputs)
        if rows == list(range(len(self))):
            return self
        bias, S = _selected(self.bias, rows, self.frames.shape[1])
        cross = tuple((k[rows, :, :S], v[rows, :, :S]) for k, v in self.cross)
        alone = tuple(self.alone[b] for b in rows) if self.alone else ()
        return EncodedSpeech(cross, tuple(self.prompts[b] for b in rows), self.frames[rows, :S], bias, alone)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The utterances of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        layers = zip(*(part.cross for part in parts), strict=True)
        cross = tuple(
            (_filled([k for k, _ in layer], dim=2), _filled([v for _, v in layer], dim=2)) for layer in layers
        )
        prompts = tuple(prompt for part in parts for prompt in part.prompts)
        frames = _filled([part.frames for part in parts], dim=1)
        bias = _joined_bias([(part.bias, part.cross[0][0].transpose(1, 2)) for part in parts])
        alone = tuple(one for part in parts for one in (part.alone or ((part,) if len(part) == 1 else ())))
        return cls(cross, prompts, frames, bias, alone if len(alone) == len(prompts) else ())


@dataclass(frozen=True)
class SpeechState:
    """A search in progress over B utterances."""

    hidden: Tensor  # (B, n, d) of the frontier's nodes; zeros where padded or ended
    cache: TreeCache
    cross: tuple[tuple[Tensor, Tensor], ...]  # of the b utterances that have not ended
    frame_bias: Tensor | None  # (b, 1, 1, S) of those utterances, added to each frame's attention logits
    positions: Tensor  # (b,) the next node's position
    rows: Tensor  # (b,) which utterances have not ended


def _selected(bias: Tensor | None, rows: list[int], S: int) -> tuple[Tensor | None, int]:
    """The bias of some rows, and how many frames the longest of them has."""
    if bias is None:
        return None, S
    chosen = bias[rows]
    S = int((chosen > -torch.inf).sum(-1).max()) if rows else 0
    return chosen[..., :S], S


def _joined_bias(parts: Sequence[tuple[Tensor | None, Tensor]]) -> Tensor | None:
    """The bias of all parts, each given as its bias and what it belongs to, (B, S, ...)."""
    lengths = {x.shape[1] for _, x in parts}
    if len(lengths) == 1 and all(bias is None for bias, _ in parts):
        return None
    whole = [x.new_zeros(len(x), 1, 1, x.shape[1]) if bias is None else bias for bias, x in parts]
    return _filled(whole, dim=3, value=-torch.inf)


def _filled(parts: Sequence[Tensor], dim: int, value: float = 0.0) -> Tensor:
    """Tensors one below the other, filled up to the same length along `dim`."""
    longest = max(part.shape[dim] for part in parts)
    return torch.cat(
        [
            F.pad(part, (0, 0) * (part.dim() - 1 - dim) + (0, longest - part.shape[dim]), value=value)
            if part.shape[dim] < longest
            else part
            for part in parts
        ]
    )
