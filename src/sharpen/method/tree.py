"""The hypothesis tree: every output considered for one input, each prefix stored once.

A node is a prefix, and node 0 is the prompt alone; an edge is a next token. A hypothesis is a path of edges from
the root. An edge that ends a hypothesis (EOS, or the length limit) leads to no node, because nothing is predicted after
it. So the number of nodes is the number of distinct distributions `pi(. | prefix)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One output `y`; position t pairs the token y_t with the node of its prefix y_<t."""

    tokens: tuple[int, ...]  # y_1 … y_T, EOS included when finished
    nodes: tuple[int, ...]  # nodes[t] is the prefix that tokens[t] continues; nodes[0] == 0
    logprobs: tuple[float, ...]  # log pi(y_t | y_<t) as the search saw it
    finished: bool  # ended with EOS; otherwise the length limit ended it
    score: float  # what the search ranked by; the total log-probability unless the search says otherwise

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def logprob(self) -> float:
        """log pi(y)."""
        return math.fsum(self.logprobs)

    @property
    def content(self) -> tuple[int, ...]:
        """The tokens without the closing EOS."""
        return self.tokens[:-1] if self.finished else self.tokens


@dataclass
class HypothesisTree:
    """Append-only prefix tree that a search grows; `hypotheses` are the paths it returns."""

    tokens: list[int] = field(default_factory=lambda: [-1])  # the root stands for the prompt and has no token
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    logprobs: list[float] = field(default_factory=lambda: [0.0])  # of the edge that leads into the node
    entropies: list[float] = field(default_factory=lambda: [math.nan])  # of pi(. | node), where the search recorded it
    log_pi: list[Tensor] | None = field(default=None, repr=False)  # (V,) of each node, where the search kept them
    hypotheses: list[Hypothesis] = field(default_factory=list)
    _children: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def child(self, node: int, token: int, logprob: float = math.nan) -> int:
        """The node of prefix `node` followed by `token`, created on first use."""
        key = (node, token)
        if key not in self._children:
            self._children[key] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(node)
            self.depths.append(self.depths[node] + 1)
            self.logprobs.append(logprob)
            self.entropies.append(math.nan)
        return self._children[key]

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        nodes = [node]
        while (node := self.parents[node]) >= 0:
            nodes.append(node)
        return nodes[::-1]

    def prefix(self, node: int) -> list[int]:
        """The tokens y_<t that `node` stands for."""
        return [self.tokens[n] for n in self.path(node)[1:]]

    def close(self, node: int, token: int, logprob: float, *, finished: bool, score: float | None = None) -> Hypothesis:
        """The hypothesis that ends with the edge (`node`, `token`); it is not added to `hypotheses`."""
        nodes = self.path(node)
        logprobs = (*(self.logprobs[n] for n in nodes[1:]), logprob)
        return Hypothesis(
            tokens=(*(self.tokens[n] for n in nodes[1:]), token),
            nodes=tuple(nodes),
            logprobs=logprobs,
            finished=finished,
            score=math.fsum(logprobs) if score is None else score,
        )

    def pruned(self) -> HypothesisTree:
        """The same hypotheses over the nodes they use: a wide beam leaves many dead branches."""
        used = sorted({node for y in self.hypotheses for node in y.nodes})
        new = {old: i for i, old in enumerate(used)}
        tree = HypothesisTree(
            tokens=[self.tokens[n] for n in used],
            parents=[new.get(self.parents[n], -1) for n in used],
            depths=[self.depths[n] for n in used],
            logprobs=[self.logprobs[n] for n in used],
            entropies=[self.entropies[n] for n in used],
            log_pi=None if self.log_pi is None else [self.log_pi[n] for n in used],
            _children={(new[p], t): new[n] for (p, t), n in self._children.items() if n in new},
        )
        for y in self.hypotheses:
            nodes = tuple(new[n] for n in y.nodes)
            tree.hypotheses.append(Hypothesis(y.tokens, nodes, y.logprobs, y.finished, y.score))
        return tree

    def rescored(self, entropies: list[float], logprobs: list[list[float]]) -> HypothesisTree:
        """The same hypotheses under other parameters: each node's entropy, and each hypothesis' log pi of its tokens.

        `Hypothesis.score` stays what the search ranked by.
        """
        into = list(self.logprobs)
        for y, values in zip(self.hypotheses, logprobs, strict=True):
            for node, value in zip(y.nodes[1:], values, strict=False):  # the last token leads to no node
                into[node] = value
        hypotheses = [replace(y, logprobs=tuple(values)) for y, values in zip(self.hypotheses, logprobs, strict=True)]
        return replace(self, logprobs=into, entropies=entropies, log_pi=None, hypotheses=hypotheses)

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]], eos: int) -> HypothesisTree:
        """The tree of given outputs; one that does not end with `eos` was cut by the length limit."""
        tree = cls()
        for tokens in sequences:
            if not tokens or eos in tokens[:-1]:
                raise ValueError(f"a hypothesis has at least one token and eos ({eos}) only at its end, not {tokens}")
            node = 0
            for token in tokens[:-1]:
                node = tree.child(node, token)
            tree.hypotheses.append(tree.close(node, tokens[-1], math.nan, finished=tokens[-1] == eos))
        return tree


@dataclass(frozen=True)
class PackedTrees:
    """B trees as one padded batch for a single forward pass, N = nodes of the largest."""

    tokens: Tensor  # (B, N) int64; the root's and the padding's entries are 0 and never read
    parents: Tensor  # (B, N) int64; the root's and the padding's entries are 0
    depths: Tensor  # (B, N) int64; a node's position is the prompt's last position plus its depth
    valid: Tensor  # (B, N) bool; false for padding
    ancestors: Tensor  # (B, N, N) bool; row n sees its ancestors and itself (padding sees itself, to stay finite)

    def alone(self, b: int) -> PackedTrees:
        """Tree b without padding."""
        n = int(self.valid[b].sum())
        fields = self.tokens, self.parents, self.depths, self.valid
        tokens, parents, depths, valid = (x[b : b + 1, :n] for x in fields)
        return PackedTrees(tokens, parents, depths, valid, self.ancestors[b : b + 1, :n, :n])


def pack(trees: Sequence[HypothesisTree], device: torch.device | str = "cpu") -> PackedTrees:
    """Lays B trees side by side with their tree masks."""
    B, N = len(trees), max(len(tree) for tree in trees)
    tokens, parents, depths = np.zeros((3, B, N), dtype=np.int64)
    valid = np.zeros((B, N), dtype=bool)
    ancestors = np.zeros((B, N, N), dtype=bool)
    ancestors[:, np.arange(N), np.arange(N)] = True
    for b, tree in enumerate(trees):
        n = len(tree)
        tokens[b, 1:n], parents[b, 1:n] = tree.tokens[1:], tree.parents[1:]
        depths[b, :n] = tree.depths
        valid[b, :n] = True
        for node in range(1, n):  # parents come before their children, so one pass in order is enough
            ancestors[b, node] |= ancestors[b, tree.parents[node]]
    return PackedTrees(*(torch.from_numpy(a).to(device) for a in (tokens, parents, depths, valid, ancestors)))


@dataclass(frozen=True)
class Edges:
    """The distinct edges of B trees, and every hypothesis as a path over nodes and edges.

    Nodes are numbered through the batch, tree after tree: the order in which `PackedTrees.valid` picks them.
    """

    node: Tensor  # (E,) int64
    token: Tensor  # (E,) int64
    node_paths: list[list[list[int]]]  # for each tree and hypothesis, the node before every token
    edge_paths: list[list[list[int]]]  # and the edge of every token


def edges(trees: Sequence[HypothesisTree]) -> Edges:
    """Numbers the distinct (node, token) pairs that the hypotheses use."""
    number: dict[tuple[int, int], int] = {}
    node_paths: list[list[list[int]]] = []
    edge_paths: list[list[list[int]]] = []
    first = 0
    for tree in trees:
        node_paths.append([[first + node for node in y.nodes] for y in tree.hypotheses])
        edge_paths.append(
            [
                [number.setdefault(edge, len(number)) for edge in zip(nodes, y.tokens, strict=True)]
                for nodes, y in zip(node_paths[-1], tree.hypotheses, strict=True)
            ]
        )
        first += len(tree)
    node, token = zip(*number, strict=True)
    return Edges(torch.tensor(node), torch.tensor(token), node_paths, edge_paths)
