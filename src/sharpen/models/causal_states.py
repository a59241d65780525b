"""What passes between the stages of a causal language model: prompts, read prompts, and a search in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from sharpen.models.cache import TreeCache


@dataclass(frozen=True)
class PreparedText:
    """Prompts as tokens."""

    prompts: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, inputs: Sequence[int]) -> PreparedText:
        return PreparedText(tuple(self.prompts[b] for b in inputs))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        return cls(tuple(prompt for part in parts for prompt in part.prompts))


@dataclass(frozen=True)
class ReadPrompt:
    """One prompt after the model has read it."""

    keys: tuple[Tensor, ...]  # of each layer: (1, kv_heads, P, size)
    values: tuple[Tensor, ...]
    root: Tensor  # (1, 1, d) the last hidden state of its last token

    @property
    def length(self) -> int:
        return self.keys[0].shape[2]

    def detach(self) -> ReadPrompt:
        keys, values = (tuple(x.detach() for x in xs) for xs in (self.keys, self.values))
        return ReadPrompt(keys, values, self.root.detach())


@dataclass(frozen=True)
class ReadPrompts:
    """Prompts of any lengths, each read alone: there is no padding, so a batch computes what each computes alone."""

    each: tuple[ReadPrompt, ...]

    def __len__(self) -> int:
        return len(self.each)

    def detach(self) -> ReadPrompts:
        return ReadPrompts(tuple(one.detach() for one in self.each))

    def select(self, inputs: Sequence[int]) -> ReadPrompts:
        return ReadPrompts(tuple(self.each[b] for b in inputs))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        return cls(tuple(one for part in parts for one in part.each))


@dataclass(frozen=True)
class CausalState:
    """A search in progress over B prompts."""

    hidden: Tensor  # (B, n, d) of the frontier's nodes; zeros where padded or ended
    cache: TreeCache
    positions: Tensor  # (b,) of the next node
    rows: Tensor  # (b,) which prompts have not ended
