"""Whether a policy does what `method.policy.Policy` says.

Most mistakes in one do not show: a model that is searched in one way and scored in another, or whose head is no matrix,
still adapts, along a wrong gradient. `check_policy` compares the calls with one another, on inputs and small trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method import norms as norm_room
from sharpen.method.entropy import entropy, log_softmax
from sharpen.method.gradient import Charged, charge, require_gradients, score
from sharpen.method.objectives import em_tok
from sharpen.method.policy import E, P, Policy, S, generator
from sharpen.method.search import sample

SAMPLES = 4  # hypotheses for each input
DEPTH = 6  # tokens in each of them at most
NUDGE = 0.1  # by how much norms are changed to see what depends on them
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # of the largest number compared; half precision 5e-2
STEP = {torch.float64: 1e-5, torch.float32: 1e-2}  # of finite differences, which half precision is too coarse for
SLOPE = 0.05  # relative difference between slope and gradient


def check_policy(policy: Policy[P, E, S], prepared: P) -> None:
    """Raises, naming everything that is wrong; two inputs or more show more than one."""
    if len(prepared) < 1:
        raise SharpenError("no inputs to check the policy with; give one or more")
    require_gradients()
    found = list(_Check(policy, prepared).faults())
    if found:
        raise SharpenError("this policy cannot be adapted as it is:\n" + "\n".join(f"- {fault}" for fault in found))


class _Check(Generic[P, E, S]):
    """The policy, its norms nudged away from the model's (each input's differently), and trees drawn from that."""

    def __init__(self, policy: Policy[P, E, S], prepared: P) -> None:
        self.policy, self.prepared, self.B = policy, prepared, len(prepared)
        self.norms = norm_room.choose(policy.norms(), "encoder+decoder")
        self.source = norm_room.initial(self.norms, self.B)
        g = torch.Generator().manual_seed(0)
        nudge = NUDGE * torch.randn(self.source.shape, generator=g, dtype=torch.float64)
        self.theta = self.source + nudge.to(self.source)
        self.tolerance = TOLERANCE.get(policy.vocabulary.dtype, 5e-2)
        with torch.no_grad():
            view, encoded = self.seen(self.theta)
            draws = [generator(0, str(b)) for b in range(self.B)]
            self.trees = sample(view, encoded, [DEPTH] * self.B, SAMPLES, draws, entropies=True, keep=1 << 62)

    def seen(self, theta: Tensor) -> tuple[Policy[P, E, S], E]:
        view = self.policy.adapted(norm_room.affine(self.norms, theta))
        return view, view.encode(self.prepared)

    def hidden(self, theta: Tensor, encoded: E | None = None) -> Tensor:
        """Of all nodes: (M, d)."""
        view, own = self.seen(theta)
        return score(view, own if encoded is None else encoded, self.trees, theta.device).hidden

    @torch.no_grad()
    def faults(self) -> Iterator[str]:
        hidden = self.hidden(self.theta)
        if not torch.isfinite(hidden).all():
            yield "score gives numbers that are not finite"
            return
        if self.differ(self.hidden(self.theta), hidden):
            yield "score gives another answer when it is asked again: is there dropout? set the model to eval mode"
            return
        yield from self.head(hidden)
        yield from self.search_and_score(hidden)
        yield from self.rows(hidden)
        yield from self.sides()
        yield from self.gradient()

    def differ(self, a: Tensor, b: Tensor) -> bool:
        a, b = (x.double().clamp(min=-1e4) for x in (a, b))  # what is forbidden is -inf in both
        return not bool(((a - b).abs() <= self.tolerance * max(1.0, float(b.abs().max()))).all())

    def head(self, hidden: Tensor) -> Iterator[str]:
        """The logits are a matrix product, and log pi is their softmax."""
        p = self.policy
        logits = p.project(hidden)
        apart = 0.5 * hidden  # one node alone would not tell a bias from a curve
        if self.differ(logits - p.project(hidden - apart), apart @ p.vocabulary.T):
            yield "project is not h W^T with W = vocabulary, or that and a constant: the gradient assumes that it is"
        depths = torch.tensor(self.depths(), device=hidden.device)
        for depth in range(min(2, int(depths.max()) + 1)):
            at = depths == depth
            expected = log_softmax(logits[at].clone(), p.forbidden[p.mask(depths[at])])
            if self.differ(p.log_pi(hidden[at], depth), expected):
                yield f"log_pi at depth {depth} is not the log-softmax of project, less what forbidden and mask remove"

    def search_and_score(self, hidden: Tensor) -> Iterator[str]:
        """begin and extend see the model that score sees."""
        kept = [row for tree in self.trees for row in tree.log_pi or ()]
        depths = self.depths()
        for depth in range(max(depths) + 1):
            at = [i for i, d in enumerate(depths) if d == depth]
            if self.differ(torch.stack([kept[i] for i in at]), self.policy.log_pi(hidden[at], depth)):
                call = "begin" if depth == 0 else "extend"
                yield f"{call} and score disagree about log pi after {depth} tokens"
                return

    def rows(self, hidden: Tensor) -> Iterator[str]:
        """An input's hidden states are its own business."""
        parts = torch.split(hidden, [len(tree) for tree in self.trees])
        for b, (part, tree) in enumerate(zip(parts, self.trees, strict=True)):
            own = self.theta[b : b + 1]
            view = self.policy.adapted(norm_room.affine(self.norms, own))
            encoded = view.encode(self.prepared.select([b]))
            if self.differ(score(view, encoded, [tree], own.device).hidden, part):
                yield f"input {b} has other hidden states alone than beside the others: batch rows must not meet"
                return

    def sides(self) -> Iterator[str]:
        """Every norm is used, and encode applies none of the decoder's where an encoder has some of its own."""
        base = self.hidden(self.source)
        for norm in self.norms:
            if not bool((self.hidden(self._moved({norm.name})) != base).any()):
                yield f"norm {norm.name!r} changes nothing: is it applied with what adapted was given?"
        decoder = {norm.name for norm in self.norms if norm.side == "decoder"}
        if len(decoder) < len(self.norms):
            moved = self._moved(decoder)
            fixed = self.policy.encode(self.prepared)
            if self.differ(self.hidden(moved, fixed), self.hidden(moved)):
                yield "encode depends on norms whose side is 'decoder'; call those 'encoder', or apply them later"

    def _moved(self, names: set[str]) -> Tensor:
        """The model's own parameters, but for the norms of these names."""
        tensors = [(norm.name in names, t) for norm in self.norms for t in (norm.weight, norm.bias) if t is not None]
        chosen = torch.cat([torch.full(t.shape, yes, device=t.device) for yes, t in tensors])  # (parameters,)
        return torch.where(chosen, self.theta, self.source)

    def gradient(self) -> Iterator[str]:
        """The gradient reaches every norm, and is the slope of the loss, measured by finite differences along it."""
        charged = charge(self.trees, em_tok, "tokens")
        with torch.enable_grad():
            leaf = self.theta.clone().requires_grad_()
            view, encoded = self.seen(leaf)
            gradient = score(view, encoded, self.trees, leaf.device).gradient(view, charged, leaf)
        for name, own in norm_room.affine(self.norms, gradient).items():
            if not bool(own.weight.any()):
                yield f"no gradient reaches norm {name!r}: something between it and score is cut off from autograd"
                return
        step = STEP.get(self.policy.vocabulary.dtype)
        if step is None:
            return
        direction = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)  # 0 where an input is certain
        ahead, behind = (self.loss(self.theta + sign * step * direction, charged) for sign in (1, -1))
        slope, expected = (ahead - behind) / (2 * step), float(gradient.norm(dim=1).sum())
        if not abs(slope - expected) <= SLOPE * expected:
            yield f"the loss rises by {slope:.4g} along its gradient, not by {expected:.4g}: score's gradient is wrong"

    def loss(self, theta: Tensor, charged: Charged) -> float:
        """sum a log pi + sum c Ent of the same trees with the same weights."""
        hidden, paths = self.hidden(theta), charged.paths
        rows = [self.policy.log_pi(hidden[i : i + 1], depth) for i, depth in enumerate(self.depths())]
        log_pi = torch.cat(rows).double()
        a, c = (torch.from_numpy(x).to(hidden.device) for x in (charged.a, charged.c))
        at = log_pi[paths.node.to(hidden.device), paths.token.to(hidden.device)]
        return float(a @ at + c @ entropy(log_pi))

    def depths(self) -> list[int]:
        return [depth for tree in self.trees for depth in tree.depths]
