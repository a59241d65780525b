"""Checks a policy against the description in `method.policy.Policy`.

Most mistakes do not crash: a model that is searched in one way and scored in another, or whose head is not a matrix,
still adapts, along a wrong gradient. `check_policy` compares the calls with one another, on inputs and small trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Generic

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.entropy import entropy
from sharpen.method.gradient import TreeLoss, require_gradients, score, tree_loss
from sharpen.method.norms import affine, choose, initial
from sharpen.method.objectives import em_tok
from sharpen.method.policy import E, P, Policy, S, generator, log_pi
from sharpen.method.search import sample
from sharpen.method.tree import HypothesisTree

SAMPLES = 4  # hypotheses per input
DEPTH = 6  # length limit of each, in tokens
NUDGE = 0.1  # size of the change to the norms that shows what depends on them
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative to the largest value; half precision: 5e-2
STEP = {torch.float64: 1e-5, torch.float32: 1e-2}  # of finite differences; half precision is too coarse for them
SLOPE = 0.05  # relative difference between slope and gradient
COARSE = 0.5  # between two gradients in half precision
NEVER = -1e4  # a log-probability below this marks a forbidden token


def check_policy(policy: Policy[P, E, S], prepared: P) -> None:
    """Raises a SharpenError that lists everything that is wrong; two or more inputs show more than one does."""
    if len(prepared) < 1:
        raise SharpenError("no inputs to check the policy with; pass one or more")
    require_gradients()
    faults = list(_static_faults(policy)) or list(_Check(policy, prepared).faults())
    if faults:
        raise SharpenError("this policy cannot be adapted as it is:\n" + "\n".join(f"- {fault}" for fault in faults))


def _static_faults(policy: Policy[P, E, S]) -> Iterator[str]:
    """Faults that would make any search fail."""
    V = len(policy.vocabulary)
    if not (isinstance(policy.eos, Integral) and 0 <= policy.eos < V):
        yield f"eos is {policy.eos!r}: expected one of the {V} tokens of vocabulary"
    if policy.forbidden.dtype != torch.bool or policy.forbidden.dim() != 2 or policy.forbidden.shape[1] != V:
        shape = tuple(policy.forbidden.shape)
        yield f"forbidden is {policy.forbidden.dtype} of shape {shape}: expected bool of shape (masks, {V})"


class _Check(Generic[P, E, S]):
    """The policy with perturbed norms (differently for each input), and trees sampled from it."""

    def __init__(self, policy: Policy[P, E, S], prepared: P) -> None:
        self.policy, self.prepared, self.B = policy, prepared, len(prepared)
        self.norms = choose(policy.norms(), "encoder+decoder")
        self.source = initial(self.norms, self.B)
        g = torch.Generator().manual_seed(0)
        nudge = NUDGE * torch.randn(self.source.shape, generator=g, dtype=torch.float64)
        self.theta = self.source + nudge.to(self.source)
        self.tolerance = TOLERANCE.get(policy.vocabulary.dtype, 5e-2)
        parts = [(norm.name, part, getattr(norm, part)) for norm in self.norms for part in ("weight", "bias")]
        self.parts = [(name, part, len(t)) for name, part, t in parts if t is not None]  # as theta has them
        with torch.no_grad():
            view, encoded = self.view(self.theta)
            draws = [generator(0, str(b)) for b in range(self.B)]
            self.trees = sample(view, encoded, [DEPTH] * self.B, SAMPLES, draws, entropies=True, keep=1 << 62)

    def view(self, theta: Tensor) -> tuple[Policy[P, E, S], E]:
        """The policy under theta, and all inputs encoded by it."""
        view = self.policy.adapted(affine(self.norms, theta))
        return view, view.encode(self.prepared)

    def hidden(self, theta: Tensor, encoded: E | None = None) -> Tensor:
        """Of all nodes: (M, d)."""
        view, own = self.view(theta)
        return self.scored(view, own if encoded is None else encoded)

    def scored(self, view: Policy[P, E, S], encoded: E) -> Tensor:
        return score(view, encoded, self.trees, self.theta.device).hidden

    @torch.no_grad()
    def faults(self) -> Iterator[str]:
        hidden = self.hidden(self.theta)
        if not torch.isfinite(hidden).all():
            yield "score returns values that are not finite"
            return
        if self.differ(self.hidden(self.theta), hidden):
            yield "score is not deterministic: is dropout enabled? set the model to eval mode"
            return
        yield from self.views(hidden)
        yield from self.head(hidden)
        yield from self.search_and_score(hidden)
        yield from self.rows(hidden)
        yield from self.sides()
        yield from self.ahead()
        yield from self.gradient()

    def differ(self, a: Tensor, b: Tensor) -> bool:
        a, b = a.double(), b.double()
        counts = ~((a < NEVER) & (b < NEVER))  # what is forbidden in both would outweigh all else
        a, b = a[counts], b[counts]
        largest = float(b[b.isfinite()].abs().max())
        return not bool(((a - b).abs() <= self.tolerance * max(1.0, largest)).all())

    def views(self, hidden: Tensor) -> Iterator[str]:
        """`adapted` makes views, which do not know of each other, and writes nothing."""
        view, encoded = self.view(self.theta)
        plain = self.hidden(self.source)
        if self.differ(self.scored(view, encoded), hidden):
            yield "a view changed when the next one was made: adapted must return an independent view"
        own = affine(self.norms, self.theta)
        view = self.policy
        for name in own:
            view = view.adapted({name: own[name]})
        if self.differ(self.scored(view, view.encode(self.prepared)), hidden):
            yield "norms not passed to adapted do not keep their values: a view of a view must keep both"
        if self.differ(initial(self.policy.norms(), self.B), self.source):
            yield "adapted wrote the model's norms: nothing may be written"
        elif self.differ(self.scored(self.policy, self.policy.encode(self.prepared)), plain):
            yield "the policy differs from itself adapted to its own norms: does adapted write the policy?"

    def head(self, hidden: Tensor) -> Iterator[str]:
        """The logits are a matrix product."""
        p = self.policy
        apart = 0.5 * hidden  # one node alone would not tell a bias from a curve
        if self.differ(p.project(hidden) - p.project(hidden - apart), apart @ p.vocabulary.T):
            yield "project is not h W^T with W = vocabulary, plus a constant: the gradient assumes that it is"

    def search_and_score(self, hidden: Tensor) -> Iterator[str]:
        """begin and extend see the model that score sees."""
        kept = [row for tree in self.trees for row in tree.log_pi or ()]
        depths = self.depths()
        for depth in range(max(depths) + 1):
            at = [i for i, d in enumerate(depths) if d == depth]
            if self.differ(torch.stack([kept[i] for i in at]), log_pi(self.policy, hidden[at], depth)):
                call = "begin" if depth == 0 else "extend"
                yield f"{call} and score disagree about log pi after {depth} tokens"
                return

    def rows(self, hidden: Tensor) -> Iterator[str]:
        """An input's hidden states depend on that input alone; `select` and `join` keep them."""
        parts = torch.split(hidden, [len(tree) for tree in self.trees])
        for b, (part, tree) in enumerate(zip(parts, self.trees, strict=True)):
            own = self.theta[b : b + 1]
            view = self.policy.adapted(affine(self.norms, own))
            encoded = view.encode(self.prepared.select([b]))
            if self.differ(score(view, encoded, [tree], own.device).hidden, part):
                yield f"input {b} has different hidden states alone and in a batch: rows must be independent"
                return
        back = list(reversed(range(self.B)))
        view = self.policy.adapted(affine(self.norms, self.theta[back]))
        encoded = view.encode(self.prepared.select(back))
        chosen = self.view(self.theta)[1].select(back)
        trees = [self.trees[b] for b in back]
        selected, expected = (score(view, e, trees, self.theta.device).hidden for e in (chosen, encoded))
        if self.differ(selected, expected):
            yield "select of an Encoded differs from encoding the selected inputs"
        yield from self.joins(hidden)

    def joins(self, hidden: Tensor) -> Iterator[str]:
        """Inputs that join one by one are what they are in one batch."""
        alone = [self.prepared.select([b]) for b in range(self.B)]
        view = self.policy.adapted(affine(self.norms, self.theta))
        prepared = view.encode(type(self.prepared).join(alone))
        if self.differ(self.scored(view, prepared), hidden):
            yield "join of Prepared inputs differs from the batch they come from"
        views = [self.policy.adapted(affine(self.norms, self.theta[b : b + 1])) for b in range(self.B)]
        encoded = [one.encode(part) for one, part in zip(views, alone, strict=True)]
        if self.differ(self.scored(view, type(encoded[0]).join(encoded)), hidden):
            yield "join of Encoded inputs differs from encoding them in one batch"

    def sides(self) -> Iterator[str]:
        """encode applies none of the decoder's norms where an encoder has some of its own."""
        decoder = {norm.name for norm in self.norms if norm.side == "decoder"}
        if len(decoder) < len(self.norms):
            moved = self._moved([name in decoder for name, _, _ in self.parts])
            fixed = self.policy.encode(self.prepared)
            if self.differ(self.hidden(moved, fixed), self.hidden(moved)):
                yield "encode depends on norms with side 'decoder'; declare them 'encoder', or apply them later"

    def ahead(self) -> Iterator[str]:
        """What is computed ahead does not depend on the norms that adapt."""
        for first in range(len(self.norms)):
            names = {norm.name for norm in self.norms[first:]}
            moved = self._moved([name in names for name, _, _ in self.parts])
            view = self.policy.adapted(affine(self.norms, moved))
            if self.differ(self.scored(view, view.encode(self.policy.ahead(self.prepared, names))), self.hidden(moved)):
                yield f"ahead applies norm {self.norms[first].name!r}, or one after it, though it was to be adapted"
                return

    def _moved(self, chosen: Sequence[bool]) -> Tensor:
        """The model's own parameters, but for the chosen `parts`."""
        mask = torch.cat([torch.full((size,), yes) for yes, (_, _, size) in zip(chosen, self.parts, strict=True)])
        return torch.where(mask.to(self.theta.device), self.theta, self.source)

    def gradient(self) -> Iterator[str]:
        """It reaches every norm of every input, and equals the slope of the loss by finite differences."""
        loss = _em_tok(self.trees)
        gradient = self.gradient_of(list(range(self.B)), loss)
        step = STEP.get(self.policy.vocabulary.dtype)
        for i, part in enumerate(torch.split(gradient, [size for _, _, size in self.parts], dim=1)):
            reached = part.any(1) | ~gradient.any(1) & gradient.any()  # a certain input has no gradient at all
            if not bool(reached.all()):
                yield self.lost(i)
                return
        for b in range(self.B) if self.B > 1 else ():
            alone = self.gradient_of([b], _em_tok([self.trees[b]]))[0]
            if not float((gradient[b] - alone).norm()) <= (SLOPE if step else COARSE) * float(alone.norm()):
                yield f"input {b} has a different gradient alone and in a batch: rows must be independent"
                return
        if step is None:
            return
        direction = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)  # 0 where an input is certain
        ahead, behind = (self.loss(self.theta + sign * step * direction, loss) for sign in (1, -1))
        slope, expected = (ahead - behind) / (2 * step), float(gradient.norm(dim=1).sum())
        if not abs(slope - expected) <= SLOPE * expected:
            yield f"the loss rises by {slope:.4g} along its gradient, not {expected:.4g}: score's gradient is wrong"

    def gradient_of(self, inputs: list[int], loss: TreeLoss) -> Tensor:
        """Of some inputs' loss, in their own rows of theta: (inputs, parameters)."""
        with torch.enable_grad():
            leaf = self.theta[inputs].requires_grad_()
            view = self.policy.adapted(affine(self.norms, leaf))
            encoded = view.encode(self.prepared.select(inputs))
            trees = [self.trees[b] for b in inputs]
            return score(view, encoded, trees, leaf.device).gradient(view, loss, leaf)

    def lost(self, i: int) -> str:
        """Why a weight or bias has no gradient."""
        name, part, _ = self.parts[i]
        moved = self._moved([j == i for j in range(len(self.parts))])
        if bool((self.hidden(moved) != self.hidden(self.source)).any()):
            return f"no gradient reaches the {part} of norm {name!r}: part of encode or score is detached from autograd"
        return f"the {part} of norm {name!r} has no effect: does the model apply what adapted was given?"

    def loss(self, theta: Tensor, loss: TreeLoss) -> float:
        """sum a log pi + sum c Ent of the same trees with the same weights."""
        hidden, paths = self.hidden(theta), loss.paths
        rows = [log_pi(self.policy, hidden[i : i + 1], depth) for i, depth in enumerate(self.depths())]
        distributions = torch.cat(rows).double()
        a, c = (torch.from_numpy(x).to(hidden.device) for x in (loss.a, loss.c))
        at = distributions[paths.node.to(hidden.device), paths.token.to(hidden.device)]
        return float(a @ at + c @ entropy(distributions))

    def depths(self) -> list[int]:
        return [depth for tree in self.trees for depth in tree.depths]


def _em_tok(trees: Sequence[HypothesisTree]) -> TreeLoss:
    return tree_loss(trees, [em_tok] * len(trees), ["tokens"] * len(trees))
