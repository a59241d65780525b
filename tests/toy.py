"""A policy small enough to enumerate: every output, its probability and every distribution are known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sharpen.method.tree import PackedTrees

EOS = 0


@dataclass(frozen=True)
class ToyState:
    hidden: Tensor  # (B, n, d)


class ToyPolicy:
    """A recurrent model: hidden' = tanh(W hidden + E[token]), logits = U hidden; token 0 ends an output."""

    def __init__(self, vocabulary: int = 4, d: int = 5, seed: int = 0, forbidden: tuple[int, ...] = ()) -> None:
        g = torch.Generator().manual_seed(seed)
        self.W = torch.randn(d, d, generator=g, dtype=torch.float64)
        self.E = torch.randn(vocabulary, d, generator=g, dtype=torch.float64)
        self.U = torch.randn(vocabulary, d, generator=g, dtype=torch.float64)
        self.inputs = torch.randn(3, d, generator=g, dtype=torch.float64)
        self.eos = EOS
        self.forbidden = list(forbidden)

    def capacity(self, encoded: Tensor) -> list[int]:
        return [1000] * len(encoded)

    def begin(self, encoded: Tensor) -> ToyState:
        return ToyState(encoded[:, None])

    def extend(self, state: ToyState, parents: Tensor, tokens: Tensor) -> ToyState:
        rows = torch.arange(len(parents))[:, None]
        return ToyState(torch.tanh(state.hidden[rows, parents.clamp(min=0)] @ self.W.T + self.E[tokens]))

    def score(self, encoded: Tensor, trees: PackedTrees) -> Tensor:
        raise AssertionError("no test of the searches scores the toy model")

    def log_pi(self, hidden: Tensor, depth: int) -> Tensor:
        logits = hidden @ self.U.T
        logits[..., self.forbidden] = -torch.inf
        return logits.log_softmax(-1)

    def enumerate(self, hidden: Tensor, limit: int) -> dict[tuple[int, ...], float]:
        """Every output of at most `limit` tokens with its log-probability, straight from the definition."""
        found: dict[tuple[int, ...], float] = {}
        open_prefixes = [((), hidden, 0.0)]
        while open_prefixes:
            prefix, h, total = open_prefixes.pop()
            for token, logp in enumerate(self.log_pi(h, len(prefix)).tolist()):
                if logp == -torch.inf:
                    continue
                y = (*prefix, token)
                if token == EOS or len(y) == limit:
                    found[y] = total + logp
                else:
                    open_prefixes.append((y, torch.tanh(self.W @ h + self.E[token]), total + logp))
        return found
