"""The enumerable model once more, straight from its definition: what its policy calls are held to."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.method.enumerable import EOS, EnumerablePolicy, FirstState
from sharpen.method.tree import HypothesisTree


class ToyPolicy(EnumerablePolicy):
    """The enumerable model with a second way to compute everything: one prefix at a time, plain softmax."""

    def encoded(self, *inputs: int) -> FirstState:
        """The given inputs, or all three."""
        return self.encode(self.inputs.select(inputs or range(3)))

    def start(self, b: int) -> Tensor:
        """h_0 of input b: (d,)."""
        return torch.tanh(self.A @ self.normed("encoder", self.inputs.x[b]))

    def next(self, h: Tensor, token: int) -> Tensor:
        return torch.tanh(self.W @ h + self.E[token])

    def distribution(self, h: Tensor, depth: int = 1) -> Tensor:
        """log pi(. | h): (d,) -> (V,)."""
        logits = self.vocabulary @ self.normed("decoder", h)
        return torch.where(self.forbidden[int(depth == 0)], -torch.inf, logits).log_softmax(-1)

    def normed(self, name: str, x: Tensor) -> Tensor:
        (norm,) = (norm for norm in self.norms() if norm.name == name)
        own = self._own.get(name)
        weight, bias = (norm.weight, norm.bias) if own is None else (own.weight[0], own.bias[0])
        return F.layer_norm(x, x.shape, weight, bias, norm.eps)

    def noted(self, tree: HypothesisTree, b: int) -> HypothesisTree:
        """A tree of given outputs with the values that a search would have noted."""
        hidden = [self.start(b)]
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            hidden.append(self.next(hidden[parent], token))
        log_pi = [self.distribution(h, depth) for h, depth in zip(hidden, tree.depths, strict=True)]
        tree.entropies = [-sum(p * p.log() for p in lp.exp() if p > 0).item() for lp in log_pi]
        tree.hypotheses = [
            replace(y, logprobs=tuple(log_pi[n][t].item() for n, t in zip(y.nodes, y.tokens, strict=True)))
            for y in tree.hypotheses
        ]
        return tree

    def log_probabilities(self, b: int, limit: int) -> dict[tuple[int, ...], Tensor]:
        """Every output of at most `limit` tokens with its log-probability, differentiable."""
        found: dict[tuple[int, ...], Tensor] = {}
        open_prefixes: list[tuple[tuple[int, ...], Tensor, Tensor]] = [((), self.start(b), torch.tensor(0.0).double())]
        while open_prefixes:
            prefix, h, total = open_prefixes.pop()
            log_pi = self.distribution(h, len(prefix))
            for token in (log_pi > -torch.inf).nonzero()[:, 0].tolist():
                y = (*prefix, token)
                if token == EOS or len(y) == limit:
                    found[y] = total + log_pi[token]
                else:
                    open_prefixes.append((y, self.next(h, token), total + log_pi[token]))
        return found

    def enumerate(self, b: int, limit: int) -> dict[tuple[int, ...], float]:
        """The same as numbers."""
        return {y: lp.item() for y, lp in self.log_probabilities(b, limit).items()}
