"""The theory, run: bias and variance of every objective on models small enough to enumerate.

    g* = grad H(pi),  H(pi) = -sum_y pi(y) log pi(y)        exact, over every output of at most L tokens
    E[g] and Var[g] over every G-tuple of outputs, each weighted with its probability

Each tuple goes through the code that adapts real models: the hypothesis tree, the objective, its coefficients on edges
and nodes, and the closed form of `head_gradient`. The gradient is linear in the coefficients, so production's gradient
of each single edge and node, taken once on the tree of every output, gives that of any tuple. g* alone comes from
autograd through a plain log-softmax.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sharpen.method import ctc, search
from sharpen.method.entropy import entropy, log_softmax
from sharpen.method.enumerable import EOS, EnumerablePolicy
from sharpen.method.gradient import TreeLoss, coefficients, gather, score
from sharpen.method.norms import Norm, affine, initial
from sharpen.method.objectives import METHODS, Array, Normalise, Objective, em_tok
from sharpen.method.tree import Edges, HypothesisTree, edges

SEED = 6  # of the model that is shown, picked among the first twelve; docs/theory.md has the range over all of them
UNBIASED = 1e-10  # relative bias below which an estimator counts as exact in float64
NORMALISERS: tuple[Normalise, ...] = ("group", "tokens")
WITHOUT_EOS = "em-tok, EOS left out"


@dataclass(frozen=True)
class Estimate:
    """One estimator of grad H, measured. Biases and `relative_variance` are relative to the exact gradient g*."""

    objective: str
    search: str  # sample, greedy, beam; "none" for an objective without hypotheses
    baseline: bool
    normalise: str  # "group", "tokens"; "frames" for a mean over frames
    samples: int  # G
    bias: float  # |E[g] - g*| / |g*|
    rescaled_bias: float  # the same for s E[g], with the best s >= 0: what is wrong with the direction
    variance: float  # trace of the covariance of g
    relative_variance: float  # per |g*|^2


@dataclass(frozen=True)
class Enumeration:
    """Every output of one input, scored together on one tree."""

    outputs: list[tuple[int, ...]]  # K of them
    p: Tensor  # (K,) pi(y)
    paths: Edges
    entropies: Tensor  # (M,)
    logprobs: Tensor  # (E,)
    jacobian: Tensor  # (E + M, P): production's gradient of each log pi(e), then of each Ent(n)
    exact: Tensor  # (P,) g*

    @classmethod
    def of(cls, policy: EnumerablePolicy, limit: int, b: int = 0) -> Enumeration:
        """All outputs of the policy's input b of at most `limit` tokens."""
        outputs = policy.outputs(limit)
        theta = initial(policy.norms(), 1).requires_grad_()  # (1, P)
        view = policy.adapted(affine(policy.norms(), theta))
        trees = [HypothesisTree.of(outputs, EOS)]
        paths = edges(trees)
        scored = score(view, view.encode(policy.inputs.select([b])), trees, theta.device)
        mask = view.mask(scored.packed.depths[scored.packed.valid])
        logits = scored.hidden @ view.vocabulary.T  # (M, V), with gradient
        plain = logits.masked_fill(view.forbidden[mask], -torch.inf).log_softmax(-1)
        log_pi = torch.stack([plain[paths.node[path], paths.token[path]].sum() for path in paths.edge_paths[0]])  # (K,)
        (exact,) = torch.autograd.grad(-(log_pi.exp() * log_pi).sum(), theta, retain_graph=True)
        E, M = len(paths.node), len(scored.hidden)
        jacobian = []
        for one in np.eye(E + M):
            loss = TreeLoss(trees, paths, [], [], a=one[:E], c=one[E:])
            of_hidden = scored.head_gradient(view, loss)
            jacobian.append(torch.autograd.grad(scored.hidden, theta, of_hidden, retain_graph=True)[0][0])
        distributions = log_softmax(logits.detach(), view.forbidden[mask])
        return cls(
            outputs=outputs,
            p=log_pi.detach().exp(),
            paths=paths,
            entropies=entropy(distributions),
            logprobs=distributions[paths.node, paths.token],
            jacobian=torch.stack(jacobian),
            exact=exact[0],
        )

    def without_eos(self) -> Enumeration:
        """The common mistake: outputs without their EOS step, in log-probability, entropy and length."""
        lengths = [len(y) - (y[-1] == EOS) for y in self.outputs]
        nodes, steps = (
            [path[:n] for path, n in zip(paths[0], lengths, strict=True)]
            for paths in (self.paths.node_paths, self.paths.edge_paths)
        )
        return replace(self, paths=replace(self.paths, node_paths=[nodes], edge_paths=[steps]))

    def gradients(
        self, tuples: Sequence[Sequence[int]], objective: Objective, normalise: Normalise, baseline: bool = True
    ) -> Tensor:
        """The gradient of the production loss for each tuple of output numbers: (n, P)."""
        weights = [np.concatenate(self._coefficients(numbers, objective, normalise, baseline)) for numbers in tuples]
        return torch.from_numpy(np.stack(weights)) @ self.jacobian

    def _coefficients(
        self, numbers: Sequence[int], objective: Objective, normalise: Normalise, baseline: bool
    ) -> tuple[Array, Array]:
        paths = replace(
            self.paths,
            node_paths=[[self.paths.node_paths[0][i] for i in numbers]],
            edge_paths=[[self.paths.edge_paths[0][i] for i in numbers]],
        )
        entropies, logprobs = self.entropies.numpy(), self.logprobs.numpy()
        (group,) = gather(paths, entropies, logprobs)
        return coefficients(paths, 0, group, objective, normalise, (len(logprobs), len(entropies)), baseline)


def report(
    limit: int = 3, samples: Sequence[int] = (1, 2, 3), policy: EnumerablePolicy | None = None
) -> list[Estimate]:
    """Every row of METHODS that adapts, the variant without EOS, and the CTC objectives."""
    policy = policy or EnumerablePolicy(vocabulary=4, seed=SEED, forbidden=(3,))
    everything = Enumeration.of(policy, limit)
    return [*_autoregressive(policy, everything, limit, samples), *_ctc(samples)]


def _autoregressive(
    policy: EnumerablePolicy, everything: Enumeration, limit: int, samples: Sequence[int]
) -> Iterator[Estimate]:
    names = [name for name, method in METHODS.items() if method.search]
    for name in [*names, WITHOUT_EOS]:
        how = METHODS[name].search or "" if name in METHODS else "sample"
        objective = METHODS[name].objective if name in METHODS else em_tok
        assert objective is not None
        enumeration = everything.without_eos() if name == WITHOUT_EOS else everything
        for G in samples if how != "greedy" else (1,):
            tuples, p = (
                _sampled(everything.p, G) if how == "sample" else _deterministic(policy, everything, how, limit, G)
            )
            for baseline, normalise in itertools.product((True, False), NORMALISERS):
                g = enumeration.gradients(tuples, objective, normalise, baseline)
                yield _row(name, how, baseline, normalise, G, g, p, enumeration.exact)


def _sampled(p: Tensor, G: int) -> tuple[list[tuple[int, ...]], Tensor]:
    """Every G-tuple of outputs with its probability; a multiset stands for all its orders."""
    tuples = list(itertools.combinations_with_replacement(range(len(p)), G))
    orders = [math.factorial(G) / math.prod(map(math.factorial, Counter(i).values())) for i in tuples]
    return tuples, p[torch.tensor(tuples)].prod(1) * torch.tensor(orders, dtype=p.dtype)


def _deterministic(
    policy: EnumerablePolicy, everything: Enumeration, how: str, limit: int, G: int
) -> tuple[list[tuple[int, ...]], Tensor]:
    """The one tuple that a deterministic search always returns."""
    encoded = policy.encode(policy.inputs.select([0]))
    trees = search.greedy(policy, encoded, [limit]) if how == "greedy" else search.beam(policy, encoded, [limit], G)
    numbers = tuple(everything.outputs.index(y.tokens) for y in trees[0].hypotheses)
    return [numbers], torch.ones(1, dtype=torch.float64)


def _ctc(samples: Sequence[int], T: int = 4, V: int = 3, d: int = 4, seed: int = 1) -> Iterator[Estimate]:
    """A norm and a projection over T frames; every path is enumerated, and so pi of every collapsed output."""
    g = torch.Generator().manual_seed(seed)
    x, U = torch.randn(T, d, generator=g, dtype=torch.float64), torch.randn(V, d, generator=g, dtype=torch.float64)
    norm = Norm(
        "norm", "encoder", "layer", 1e-5, 1 + 0.3 * torch.randn(d, generator=g).double(), torch.zeros(d).double()
    )
    theta = initial([norm], 1).requires_grad_()
    logits = norm.apply(x[None], affine([norm], theta)["norm"]) @ U.T  # (1, T, V)
    log_p, lengths, blank = ctc.distributions(logits), [T], 0
    paths = list(itertools.product(range(V), repeat=T))
    collapsed = ctc.Collapsed.of([paths], blank)
    log_paths = log_p[0, torch.arange(T), torch.tensor(paths)].sum(1)  # (V^T,)
    pi = torch.zeros(len(collapsed.outputs), dtype=torch.float64)
    pi = pi.index_add(0, torch.tensor(collapsed.drawn[0]), log_paths.exp())  # independent of ctc_loss
    (exact,) = torch.autograd.grad(-(pi * pi.log()).sum(), theta, retain_graph=True)
    nll = ctc.negative_log_likelihood(log_p, lengths, collapsed, blank)  # (K,)
    jacobian, leaf = _jacobian(nll, theta), nll.detach().requires_grad_()
    for G in samples:
        tuples, p = _sampled(pi.detach(), G)
        for baseline in (True, False):
            losses = (ctc.reinforce(leaf, drawn, baseline) for drawn in tuples)
            gradients = torch.stack([torch.autograd.grad(value, leaf)[0] for value in losses]) @ jacobian
            yield _row("ctc-collapse", "sample", baseline, "group", G, gradients, p, exact[0])
    once = torch.ones(1, dtype=torch.float64)
    mean = ctc.frame_entropy(log_p, lengths, blank)
    suta = ctc.frame_entropy(ctc.distributions(logits, 2.5), lengths, blank, non_blank=True)
    for name, value in (("ctc-frames", mean), ("ctc-frames, T=2.5, non-blank", suta)):
        yield _row(name, "none", False, "frames", 1, _jacobian(value, theta), once, exact[0])


def _row(name: str, how: str, baseline: bool, normalise: str, G: int, g: Tensor, p: Tensor, exact: Tensor) -> Estimate:
    """The moments of gradients g (n, P) that come with probabilities p (n,)."""
    mean, size = p @ g, float(exact.norm())
    s = max(0.0, float(mean @ exact) / max(float(mean @ mean), 1e-300))  # a negative s would be a step uphill
    variance = float(p @ (g - mean).square().sum(1))
    bias, rescaled = (float((m - exact).norm()) / size for m in (mean, s * mean))
    return Estimate(name, how, baseline, normalise, G, bias, rescaled, variance, variance / size**2)


def _jacobian(values: Tensor, theta: Tensor) -> Tensor:
    """(n,) in theta (1, P) -> (n, P)."""
    return torch.cat([torch.autograd.grad(value, theta, retain_graph=True)[0] for value in values])


@dataclass(frozen=True)
class Link:
    """A method of the literature and what was measured of its objective."""

    work: str
    objective: str  # as the paper calls it
    bias: float  # over samples from pi
    greedy_bias: float | None  # over the greedy output, where that is what the work uses
    correct: bool


PRIOR: tuple[tuple[str, str, str, bool], ...] = (  # work, the paper's name of its objective, ours, on the greedy output
    ("One-shot EM", "L_ENT^tok", "ent-tok", True),
    ("SGEM", "L_ENT^tok", "ent-tok", True),
    ("CEA", "L_ENT^tok", "ent-tok", True),
    ("SLM-TTA", "L_ENT^tok", "ent-tok", True),
    ("EM-FT", "L_ENT^tok", "ent-tok", False),
    ("EM-RL-token", "L_PG^tok", "pg-tok", False),
    ("EM-RL-sequence", "L_EM^seq = L_PG^seq", "em-seq", False),
    ("ours", "L_EM^tok = L_PG^tok + L_ENT^tok", "em-tok", False),
)


def link_rows(rows: Sequence[Estimate] | None = None) -> list[Link]:
    """The paper's table of prior methods, its Correctness column measured: the largest bias over all G, with 1/G."""
    rows = report() if rows is None else rows

    def bias(name: str) -> float:
        return max(row.bias for row in rows if row.objective == name and row.normalise == "group")

    return [
        Link(work, called, bias(name), bias("greedy-em") if greedy else None, bias(name) < UNBIASED)
        for work, called, name, greedy in PRIOR
    ]
