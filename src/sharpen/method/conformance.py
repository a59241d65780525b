"""Whether a policy does what `method.policy.Policy` says.

Most mistakes in one do not show: a model that is searched in one way and scored in another, or whose head is no matrix,
still adapts, along a wrong gradient. `check_policy` compares the calls with one another, on inputs and small trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
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
COARSE = 0.5  # between two gradients in half precision
NEVER = -1e4  # a log-probability below it stands for a token that is forbidden


def check_policy(policy: Policy[P, E, S], prepared: P) -> None:
    """Raises, naming everything that is wrong; two inputs or more show more than one."""
    if len(prepared) < 1:
        raise SharpenError("no inputs to check the policy with; give one or more")
    require_gradients()
    found = list(_at_sight(policy)) or list(_Check(policy, prepared).faults())
    if found:
        raise SharpenError("this policy cannot be adapted as it is:\n" + "\n".join(f"- {fault}" for fault in found))


def _at_sight(policy: Policy[P, E, S]) -> Iterator[str]:
    """What no search could be run with."""
    V, d = policy.vocabulary.shape
    if not (isinstance(policy.eos, Integral) and 0 <= policy.eos < V):
        yield f"eos is {policy.eos!r}: expected one token of the {V} that vocabulary has"
    dtype = policy.log_pi(policy.vocabulary.new_zeros(1, d), 0).dtype
    if dtype not in TOLERANCE:
        yield f"log_pi is {dtype}: expected float32 or better, whatever the model's own type is"


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
        parts = [(norm.name, part, getattr(norm, part)) for norm in self.norms for part in ("weight", "bias")]
        self.parts = [(name, part, len(t)) for name, part, t in parts if t is not None]  # as theta has them
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
        return self.scored(view, own if encoded is None else encoded)

    def scored(self, view: Policy[P, E, S], encoded: E) -> Tensor:
        return score(view, encoded, self.trees, self.theta.device).hidden

    @torch.no_grad()
    def faults(self) -> Iterator[str]:
        hidden = self.hidden(self.theta)
        if not torch.isfinite(hidden).all():
            yield "score gives numbers that are not finite"
            return
        if self.differ(self.hidden(self.theta), hidden):
            yield "score gives another answer when it is asked again: is there dropout? set the model to eval mode"
            return
        yield from self.views(hidden)
        yield from self.head(hidden)
        yield from self.search_and_score(hidden)
        yield from self.rows(hidden)
        yield from self.sides()
        yield from self.gradient()

    def differ(self, a: Tensor, b: Tensor) -> bool:
        a, b = a.double(), b.double()
        counts = ~((a < NEVER) & (b < NEVER))  # what is forbidden in both would outweigh all else
        a, b = a[counts], b[counts]
        largest = float(b[b.isfinite()].abs().max())
        return not bool(((a - b).abs() <= self.tolerance * max(1.0, largest)).all())

    def views(self, hidden: Tensor) -> Iterator[str]:
        """`adapted` makes views, which do not know of each other, and writes nothing."""
        view, encoded = self.seen(self.theta)
        plain = self.hidden(self.source)
        if self.differ(self.scored(view, encoded), hidden):
            yield "a view that adapted gave has changed with the next one: adapted must return a view of its own"
        own = norm_room.affine(self.norms, self.theta)
        view = self.policy
        for name in own:
            view = view.adapted({name: own[name]})
        if self.differ(self.scored(view, view.encode(self.prepared)), hidden):
            yield "norms that adapted was not given do not stay as they are: a view of a view must keep both"
        if self.differ(norm_room.initial(self.policy.norms(), self.B), self.source):
            yield "adapted has written the model's norms: nothing may be written"
        elif self.differ(self.scored(self.policy, self.policy.encode(self.prepared)), plain):
            yield "the policy itself answers otherwise than adapted to its own norms: does adapted write the policy?"

    def head(self, hidden: Tensor) -> Iterator[str]:
        """The logits are a matrix product, and log pi is their softmax."""
        p = self.policy
        logits = p.project(hidden)
        apart = 0.5 * hidden  # one node alone would not tell a bias from a curve
        if self.differ(logits - p.project(hidden - apart), apart @ p.vocabulary.T):
            yield "project is not h W^T with W = vocabulary, or that and a constant: the gradient assumes that it is"
        depths = torch.tensor(self.depths(), device=hidden.device)
        for depth in range(int(depths.max()) + 1):
            at = depths == depth
            expected = log_softmax(logits[at].clone(), p.forbidden[p.mask(depths[at])])
            if self.differ(p.log_pi(hidden[at], depth), expected):
                yield f"log_pi at depth {depth} is not the log-softmax of project, less what forbidden and mask remove"
                return

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
        back = list(reversed(range(self.B)))
        view = self.policy.adapted(norm_room.affine(self.norms, self.theta[back]))
        encoded = view.encode(self.prepared.select(back))
        chosen = self.seen(self.theta)[1].select(back)
        trees = [self.trees[b] for b in back]
        found, expected = (score(view, e, trees, self.theta.device).hidden for e in (chosen, encoded))
        if self.differ(found, expected):
            yield "select of what encode gave is not what encode gives for those inputs"

    def sides(self) -> Iterator[str]:
        """encode applies none of the decoder's norms where an encoder has some of its own."""
        decoder = {norm.name for norm in self.norms if norm.side == "decoder"}
        if len(decoder) < len(self.norms):
            moved = self._moved([name in decoder for name, _, _ in self.parts])
            fixed = self.policy.encode(self.prepared)
            if self.differ(self.hidden(moved, fixed), self.hidden(moved)):
                yield "encode depends on norms whose side is 'decoder'; call those 'encoder', or apply them later"

    def _moved(self, chosen: Sequence[bool]) -> Tensor:
        """The model's own parameters, but for the chosen `parts`."""
        mask = torch.cat([torch.full((size,), yes) for yes, (_, _, size) in zip(chosen, self.parts, strict=True)])
        return torch.where(mask.to(self.theta.device), self.theta, self.source)

    def gradient(self) -> Iterator[str]:
        """It reaches every norm of every input, and is the slope of the loss: finite differences along it tell."""
        charged = charge(self.trees, em_tok, "tokens")
        gradient = self.gradient_of(list(range(self.B)), charged)
        step = STEP.get(self.policy.vocabulary.dtype)
        for i, part in enumerate(torch.split(gradient, [size for _, _, size in self.parts], dim=1)):
            felt = part.any(1) | ~gradient.any(1) & gradient.any()  # an input that is certain has no gradient at all
            if not bool(felt.all()):
                yield self.lost(i)
                return
        for b in range(self.B) if self.B > 1 else ():
            alone = self.gradient_of([b], charge([self.trees[b]], em_tok, "tokens"))[0]
            if not float((gradient[b] - alone).norm()) <= (SLOPE if step else COARSE) * float(alone.norm()):
                yield f"input {b} has another gradient alone than beside the others: batch rows must not meet"
                return
        if step is None:
            return
        direction = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)  # 0 where an input is certain
        ahead, behind = (self.loss(self.theta + sign * step * direction, charged) for sign in (1, -1))
        slope, expected = (ahead - behind) / (2 * step), float(gradient.norm(dim=1).sum())
        if not abs(slope - expected) <= SLOPE * expected:
            yield f"the loss rises by {slope:.4g} along its gradient, not by {expected:.4g}: score's gradient is wrong"

    def gradient_of(self, inputs: list[int], charged: Charged) -> Tensor:
        """Of some inputs' loss, in their own rows of theta: (inputs, parameters)."""
        with torch.enable_grad():
            leaf = self.theta[inputs].requires_grad_()
            view = self.policy.adapted(norm_room.affine(self.norms, leaf))
            encoded = view.encode(self.prepared.select(inputs))
            trees = [self.trees[b] for b in inputs]
            return score(view, encoded, trees, leaf.device).gradient(view, charged, leaf)

    def lost(self, i: int) -> str:
        """Why a weight or bias has no gradient."""
        name, part, _ = self.parts[i]
        moved = self._moved([j == i for j in range(len(self.parts))])
        if bool((self.hidden(moved) != self.hidden(self.source)).any()):
            return f"no gradient reaches the {part} of norm {name!r}: something up to score is cut off from autograd"
        return f"the {part} of norm {name!r} changes nothing: is it applied as adapted was given it?"

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
