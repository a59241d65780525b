"""From searched trees to the gradient of their loss.

The search has already met every distribution of its trees, under the very parameters at which the gradient is taken.
It leaves behind each node's entropy, each edge's log-probability and, as far as memory allows, the distributions
themselves. So the coefficients a(e) and c(n) are known before anything is scored, and scoring only has to carry the
gradient back: one pass over all nodes with autograd, entered at the hidden states with the closed form of
`head_gradient`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.entropy import LOGITS_AT_ONCE, chunks, entropy, head_gradient, log_softmax
from sharpen.method.objectives import Array, Group, Normalise, Objective, normaliser
from sharpen.method.policy import E, P, Policy, S
from sharpen.method.tree import Edges, HypothesisTree, PackedTrees, edges, pack


@dataclass(frozen=True)
class TreeLoss:
    """L = sum_e a(e) log pi(e) + sum_n c(n) Ent(n) over B trees, no two of which share an edge or a node."""

    trees: Sequence[HypothesisTree]
    paths: Edges
    groups: list[Group]
    values: list[float]  # L of each tree
    a: Array  # (E,) coefficient of an edge's log pi
    c: Array  # (M,) coefficient of a node's Ent


def tree_loss(
    trees: Sequence[HypothesisTree], objectives: Sequence[Objective], normalise: Sequence[Normalise]
) -> TreeLoss:
    """The loss of searched trees, each under its own objective and normaliser."""
    paths = edges(trees)
    entropies = np.array([value for tree in trees for value in tree.entropies])
    logprobs = np.zeros(len(paths.node))
    for tree, edge_paths in zip(trees, paths.edge_paths, strict=True):
        for y, steps in zip(tree.hypotheses, edge_paths, strict=True):
            logprobs[steps] = y.logprobs
    groups = gather(paths, entropies, logprobs)
    values, a, c = [], np.zeros_like(logprobs), np.zeros_like(entropies)
    for b, (group, objective, how) in enumerate(zip(groups, objectives, normalise, strict=True)):
        own_a, own_c = coefficients(paths, b, group, objective, how, (len(a), len(c)))
        at, inside = own_a != 0, own_c != 0  # a NaN of one input must not reach another's sum
        values.append(float(own_a[at] @ logprobs[at] + own_c[inside] @ entropies[inside]))
        a, c = a + own_a, c + own_c
    return TreeLoss(trees, paths, groups, values, a, c)


def gather(paths: Edges, entropies: Array, logprobs: Array) -> list[Group]:
    """Every input's hypotheses position by position, from the nodes' entropies (M,) and the edges' log pi (E,)."""
    groups = []
    for node_paths, edge_paths in zip(paths.node_paths, paths.edge_paths, strict=True):
        shape = len(node_paths), max(len(path) for path in node_paths)
        group = Group(np.zeros(shape), np.zeros(shape), np.zeros(shape))
        for i, (nodes, steps) in enumerate(zip(node_paths, edge_paths, strict=True)):
            group.entropies[i, : len(nodes)] = entropies[nodes]
            group.logprobs[i, : len(nodes)] = logprobs[steps]
            group.inside[i, : len(nodes)] = 1.0
        groups.append(group)
    return groups


def coefficients(
    paths: Edges,
    b: int,
    group: Group,
    objective: Objective,
    normalise: Normalise,
    sizes: tuple[int, int],
    baseline: bool = True,
) -> tuple[Array, Array]:
    """a (E,) and c (M,) of input b: its hypotheses' coefficients, summed on shared edges and nodes, over Z."""
    own = objective(group, baseline)
    Z = normaliser(group, normalise)
    a, c = np.zeros(sizes[0]), np.zeros(sizes[1])
    for i, (nodes, steps) in enumerate(zip(paths.node_paths[b], paths.edge_paths[b], strict=True)):
        a[steps] += own.edges[i, : len(steps)] / Z  # a path meets an edge once
        c[nodes] += own.nodes[i, : len(nodes)] / Z
    return a, c


def require_gradients() -> None:
    """Raises inside `torch.inference_mode()`, where autograd cannot be enabled."""
    if torch.is_inference_mode_enabled():
        raise SharpenError("adaptation needs gradients, which torch.inference_mode() disables: call it outside of that")


def score(view: Policy[P, E, S], encoded: E, trees: Sequence[HypothesisTree], device: torch.device) -> Scored:
    """One pass over all nodes, with its graph."""
    packed = pack(trees, device)
    return Scored(packed, view.score(encoded, packed)[packed.valid])


@dataclass(frozen=True)
class Scored:
    """The hidden states of all nodes of B trees, with their autograd graph."""

    packed: PackedTrees
    hidden: Tensor  # (M, d), with gradient

    @torch.no_grad()
    def renewed(
        self, view: Policy[P, E, S], trees: Sequence[HypothesisTree], old: Sequence[int], keep: int
    ) -> list[HypothesisTree]:
        """The scored trees, those at `old` with the entropies and log-probabilities that they have under `view`.

        `keep` is the memory budget for their distributions, as in a search.
        """
        masks = view.mask(self.packed.depths)[self.packed.valid]
        renewed, first = list(trees), 0
        for b, tree in enumerate(trees):
            rows = slice(first, first + len(tree))
            first = rows.stop
            if b in old:
                keep -= len(tree) * len(view.vocabulary)
                renewed[b] = _renewed(view, tree, self.hidden[rows], masks[rows], keep >= 0)
        return renewed

    def gradient(self, view: Policy[P, E, S], loss: TreeLoss, theta: Tensor) -> Tensor:
        """The gradient of the sum of the losses in theta, which `view` was made from: (B, parameters).

        Rows are independent. The distributions kept in the trees are consumed.
        """
        of_hidden = self.head_gradient(view, loss)
        for tree in loss.trees:
            tree.log_pi = None
        (gradient,) = torch.autograd.grad(self.hidden, theta, of_hidden)
        return gradient

    @torch.no_grad()
    def head_gradient(self, view: Policy[P, E, S], loss: TreeLoss) -> Tensor:
        """d L / d h of every node: (M, d)."""
        nodes, device = self.hidden.detach(), self.hidden.device
        kept = [row for tree in loss.trees for row in tree.log_pi or ()]
        masks = view.mask(self.packed.depths)[self.packed.valid]

        def log_pi(rows: slice) -> Tensor:
            if len(kept) == len(nodes):
                return torch.stack(kept[rows])
            return log_softmax(view.project(nodes[rows]), view.forbidden[masks[rows]])

        wide = torch.promote_types(nodes.dtype, torch.float32)
        c, a = (torch.from_numpy(x).to(device, wide) for x in (loss.c, loss.a))
        return head_gradient(log_pi, view.vocabulary, c, a, loss.paths.node.to(device), loss.paths.token.to(device))


def _renewed(view: Policy[P, E, S], tree: HypothesisTree, hidden: Tensor, masks: Tensor, keep: bool) -> HypothesisTree:
    own, entropies, distributions = edges([tree]), list[float](), list[Tensor]()
    node, token = own.node.to(hidden.device), own.token.to(hidden.device)
    values = hidden.new_empty(len(node), dtype=torch.promote_types(hidden.dtype, torch.float32))
    for rows in chunks(0, len(tree), len(view.vocabulary), LOGITS_AT_ONCE):
        log_pi = log_softmax(view.project(hidden[rows]), view.forbidden[masks[rows]])
        inside = ((node >= rows.start) & (node < rows.stop)).nonzero()[:, 0]
        values[inside] = log_pi[node[inside] - rows.start, token[inside]]
        entropies += entropy(log_pi).tolist()
        distributions += log_pi.unbind(0) if keep else ()
    at = values.tolist()
    renewed = tree.rescored(entropies, [[at[edge] for edge in path] for path in own.edge_paths[0]])
    renewed.log_pi = distributions if keep else None
    return renewed
