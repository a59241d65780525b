"""A policy small enough to enumerate, in float64."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sharpen.method.norms import Affine, Norm
from sharpen.method.tree import PackedTrees

EOS = 0


@dataclass(frozen=True)
class Vectors:
    """What the enumerable model reads: one vector for each input."""

    x: Tensor  # (B, d)

    def __len__(self) -> int:
        return len(self.x)

    def select(self, inputs: Sequence[int]) -> Vectors:
        return Vectors(self.x[list(inputs)])

    @classmethod
    def join(cls, parts: Sequence[Vectors]) -> Vectors:
        return cls(torch.cat([part.x for part in parts]))


@dataclass(frozen=True)
class FirstState:
    """The recurrent state before the first token."""

    h: Tensor  # (B, d)

    def detach(self) -> FirstState:
        return FirstState(self.h.detach())

    def select(self, inputs: Sequence[int]) -> FirstState:
        return FirstState(self.h[list(inputs)])

    @classmethod
    def join(cls, parts: Sequence[FirstState]) -> FirstState:
        return cls(torch.cat([part.h for part in parts]))


@dataclass(frozen=True)
class Level:
    """A search in progress."""

    h: Tensor  # (B, n, d)
    hidden: Tensor  # (B, n, d), after the decoder's norm


class EnumerablePolicy:
    """A recurrent model in float64 with one encoder and one decoder norm, as a `method.policy.Policy`.

    h_0 = tanh(A norm(x)),  h_t = tanh(W h_{t-1} + E[y_t]),  pi(. | y_<t) = softmax(U norm(h_{t-1})); token 0 is EOS.
    """

    def __init__(
        self,
        vocabulary: int = 4,
        d: int = 5,
        seed: int = 0,
        forbidden: Sequence[int] = (),  # tokens removed from pi at every step
        forbidden_first: Sequence[int] = (),  # and at the first step alone
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        self.A, self.W = torch.randn(2, d, d, generator=g, dtype=torch.float64)
        self.E = torch.randn(vocabulary, d, generator=g, dtype=torch.float64)
        self.vocabulary = torch.randn(vocabulary, d, generator=g, dtype=torch.float64)
        self.inputs = Vectors(torch.randn(3, d, generator=g, dtype=torch.float64))
        affines = torch.randn(4, d, generator=g, dtype=torch.float64)  # all ones and zeros would hide a mix-up
        self._norms = {
            "encoder": Norm("encoder", "encoder", "layer", 1e-5, 1 + 0.3 * affines[0], 0.3 * affines[1]),
            "decoder": Norm("decoder", "decoder", "layer", 1e-5, 1 + 0.3 * affines[2], 0.3 * affines[3]),
        }
        self._own: Mapping[str, Affine] = {}
        self.eos = EOS
        self.forbidden = torch.zeros(2, vocabulary, dtype=torch.bool)  # row 0: later steps, row 1: the first step
        self.forbidden[:, list(forbidden)] = True
        self.forbidden[1, list(forbidden_first)] = True

    def project(self, hidden: Tensor) -> Tensor:
        return hidden @ self.vocabulary.T

    def mask(self, depths: Tensor) -> Tensor:
        return (depths == 0).long()

    def norms(self) -> list[Norm]:
        return list(self._norms.values())

    def adapted(self, norms: Mapping[str, Affine]) -> EnumerablePolicy:
        view = copy.copy(self)
        view._own = {**self._own, **norms}
        return view

    def ahead(self, prepared: Vectors, norms: Collection[str]) -> Vectors:
        return prepared  # the encoder's norm comes first

    def encode(self, prepared: Vectors) -> FirstState:
        return FirstState(torch.tanh(self._norm("encoder", prepared.x[:, None])[:, 0] @ self.A.T))

    def capacity(self, encoded: FirstState) -> list[int]:
        return [1000] * len(encoded.h)

    def begin(self, encoded: FirstState) -> Level:
        return self._state(encoded.h[:, None])

    def extend(self, state: Level, parents: Tensor, tokens: Tensor) -> Level:
        rows = torch.arange(len(parents))[:, None]
        return self._state(torch.tanh(state.h[rows, parents.clamp(min=0)] @ self.W.T + self.E[tokens]))

    def score(self, encoded: FirstState, trees: PackedTrees) -> Tensor:
        rows = torch.arange(len(trees.tokens))[:, None]
        h = encoded.h[:, None].expand(-1, trees.tokens.shape[1], -1)
        for depth in range(1, int(trees.depths.max()) + 1):
            deeper = torch.tanh(h[rows, trees.parents] @ self.W.T + self.E[trees.tokens])
            h = torch.where((trees.depths == depth)[..., None], deeper, h)
        return self._norm("decoder", h)

    def outputs(self, limit: int) -> list[tuple[int, ...]]:
        """Every y that pi allows: ending with EOS, or cut at L tokens."""
        later, first = ([t for t, no in enumerate(row) if not no] for row in self.forbidden.tolist())
        complete: list[tuple[int, ...]] = []
        prefixes: list[tuple[int, ...]] = [()]
        for length in range(1, limit + 1):
            longer = [(*prefix, token) for prefix in prefixes for token in (later if prefix else first)]
            prefixes = [y for y in longer if y[-1] != EOS and length < limit]
            complete += [y for y in longer if y[-1] == EOS or length == limit]
        return complete

    def _state(self, h: Tensor) -> Level:
        return Level(h, self._norm("decoder", h))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return self._norms[name].apply(x, self._own.get(name))
