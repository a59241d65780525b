"""From the trees that a search found to the gradient of their loss.

The search has met every distribution of its trees under the very parameters that the gradient is taken at, and left
behind each node's entropy, each edge's log-probability, and, as far as memory allows, the distributions themselves. So
what every node and edge weighs in the loss is known before anything is scored; scoring only has to lead the gradient
back: one pass over all nodes with autograd, entered at the hidden states with the closed form of `head_gradient`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method import objectives
from sharpen.method.entropy import head_gradient, log_softmax
from sharpen.method.objectives import Array, Group, Normalise, Objective
from sharpen.method.policy import E, P, Policy, S
from sharpen.method.tree import Edges, HypothesisTree, PackedTrees, edges, pack


@dataclass(frozen=True)
class Charged:
    """B trees, what their hypotheses are charged, and hence what every edge and node weighs in the loss."""

    trees: Sequence[HypothesisTree]
    paths: Edges
    groups: list[Group]
    losses: list[float]
    a: Array  # (E,) what multiplies an edge's log pi
    c: Array  # (M,) what multiplies a node's Ent


def charge(trees: Sequence[HypothesisTree], objective: Objective, normalise: Normalise) -> Charged:
    """The loss of searched trees, each tree's for itself."""
    paths = edges(trees)
    entropies = np.array([value for tree in trees for value in tree.entropies])
    logprobs = np.zeros(len(paths.node))
    for tree, edge_paths in zip(trees, paths.edge_paths, strict=True):
        for y, steps in zip(tree.hypotheses, edge_paths, strict=True):
            logprobs[steps] = y.logprobs
    groups = gather(paths, entropies, logprobs)
    losses, a, c = [], np.zeros_like(logprobs), np.zeros_like(entropies)
    for b, group in enumerate(groups):
        own_a, own_c = weigh(paths, b, group, objective, normalise, (len(a), len(c)))
        at, inside = own_a != 0, own_c != 0  # what another input could not compute stays its own
        losses.append(float(own_a[at] @ logprobs[at] + own_c[inside] @ entropies[inside]))
        a, c = a + own_a, c + own_c  # no two trees share an edge or a node
    return Charged(trees, paths, groups, losses, a, c)


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


def weigh(
    paths: Edges, b: int, group: Group, objective: Objective, normalise: Normalise, sizes: tuple[int, int]
) -> tuple[Array, Array]:
    """What input b's hypotheses are charged, summed on the edges (E,) and nodes (M,) they share and divided by Z."""
    charges = objective(group)
    Z = objectives.normaliser(group, normalise)
    a, c = np.zeros(sizes[0]), np.zeros(sizes[1])
    for i, (nodes, steps) in enumerate(zip(paths.node_paths[b], paths.edge_paths[b], strict=True)):
        a[steps] += charges.edges[i, : len(steps)] / Z  # a path meets an edge once
        c[nodes] += charges.nodes[i, : len(nodes)] / Z
    return a, c


def require_gradients() -> None:
    """Raises where autograd cannot be switched on."""
    if torch.is_inference_mode_enabled():
        raise SharpenError("adapting needs gradients, and torch.inference_mode() has none: call it outside of that")


def score(view: Policy[P, E, S], encoded: E, trees: Sequence[HypothesisTree], device: torch.device) -> Scored:
    """One pass over all nodes, with its graph."""
    packed = pack(trees, device)
    return Scored(packed, view.score(encoded, packed)[packed.valid])


@dataclass(frozen=True)
class Scored:
    """The nodes of B trees on their way to the loss."""

    packed: PackedTrees
    hidden: Tensor  # (M, d), with gradient

    def gradient(self, view: Policy[P, E, S], charged: Charged, theta: Tensor) -> Tensor:
        """Of the sum of the losses in theta, which `view` was made from; rows are independent: (B, parameters).

        The trees' distributions are spent.
        """
        nodes, device = self.hidden.detach(), self.hidden.device
        rows = [row for tree in charged.trees for row in tree.log_pi or ()]
        masks = view.mask(self.packed.depths)[self.packed.valid]

        def log_pi(some: slice) -> Tensor:
            if len(rows) == len(nodes):
                return torch.stack(rows[some])
            return log_softmax(view.project(nodes[some]), view.forbidden[masks[some]])

        wide = torch.promote_types(nodes.dtype, torch.float32)
        c, a = (torch.from_numpy(x).to(device, wide) for x in (charged.c, charged.a))
        node, token = charged.paths.node.to(device), charged.paths.token.to(device)
        with torch.no_grad():
            of_hidden = head_gradient(log_pi, view.vocabulary, c, a, node, token)
        for tree in charged.trees:
            tree.log_pi = None
        (gradient,) = torch.autograd.grad(self.hidden, theta, of_hidden)
        return gradient
