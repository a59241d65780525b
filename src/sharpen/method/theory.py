"""The theory, run: bias and variance of every objective on models small enough to enumerate.

    g* = grad H(pi),  H(pi) = -sum_y pi(y) log pi(y)        exact, over every output of at most L tokens
    E[g] and Var[g] over every G-tuple of outputs, each weighted with its probability

Each tuple goes through what adapts real models: the hypothesis tree, `gather`, the objective and `weigh`. A loss is
linear in the edges' log pi and the nodes' Ent; their Jacobian, taken once with autograd on the tree of every output,
turns what each of them weighs in a tuple's loss into that tuple's gradient.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method import ctc, search
from sharpen.method.entropy import node_entropies_and_edge_logprobs
from sharpen.method.enumerable import EOS, EnumerablePolicy
from sharpen.method.gradient import gather, weigh
from sharpen.method.norms import Norm, affine, initial
from sharpen.method.objectives import METHODS, Array, Charges, Group, Normalise, em_tok
from sharpen.method.tree import Edges, HypothesisTree, edges, pack

SEED = 6  # of the model that is shown, picked among the first twelve; docs/theory.md has the range over all of them
UNBIASED = 1e-10  # relative bias below which an estimator counts as exact in float64
NORMALISERS: tuple[Normalise, ...] = ("group", "tokens")
WITHOUT_EOS = "em-tok, EOS left out"


@dataclass(frozen=True)
class Row:
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


class _Baselined(Protocol):
    def __call__(self, group: Group, baseline: bool = True) -> Charges: ...


@dataclass(frozen=True)
class Enumeration:
    """Every output of one input, scored together on one tree, and what any tuple of them needs."""

    outputs: list[tuple[int, ...]]  # K of them
    p: Tensor  # (K,) pi(y)
    paths: Edges
    entropies: Tensor  # (M,)
    logprobs: Tensor  # (E,)
    jacobian: Tensor  # (E + M, P): of logprobs, then of entropies, in the norms' parameters
    exact: Tensor  # (P,) g*

    @classmethod
    def of(cls, policy: EnumerablePolicy, limit: int, b: int = 0) -> Enumeration:
        """All outputs of the policy's input b of at most `limit` tokens."""
        outputs = policy.outputs(limit)
        theta = initial(policy.norms(), 1).requires_grad_()  # (1, P)
        view = policy.adapted(affine(policy.norms(), theta))
        trees = [HypothesisTree.of(outputs, EOS)]
        packed, paths = pack(trees), edges(trees)
        hidden = view.score(view.encode(policy.inputs.select([b])), packed)[packed.valid]  # (M, d)
        mask = view.mask(packed.depths[packed.valid])
        entropies, logprobs = node_entropies_and_edge_logprobs(
            hidden, view.vocabulary, view.forbidden, mask, paths.node, paths.token
        )
        log_pi = torch.stack([logprobs[path].sum() for path in paths.edge_paths[0]])  # (K,)
        (exact,) = torch.autograd.grad(-(log_pi.exp() * log_pi).sum(), theta, retain_graph=True)
        jacobian = _jacobian(torch.cat([logprobs, entropies]), theta)
        return cls(
            outputs=outputs,
            p=log_pi.detach().exp(),
            paths=paths,
            entropies=entropies.detach(),
            logprobs=logprobs.detach(),
            jacobian=jacobian,
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
        self, tuples: Sequence[Sequence[int]], objective: Callable[[Group], Charges], normalise: Normalise
    ) -> Tensor:
        """The gradient of the production loss for each tuple of output numbers: (n, P)."""
        weights = [np.concatenate(self._weigh(numbers, objective, normalise)) for numbers in tuples]
        return torch.from_numpy(np.stack(weights)) @ self.jacobian

    def _weigh(
        self, numbers: Sequence[int], objective: Callable[[Group], Charges], normalise: Normalise
    ) -> tuple[Array, Array]:
        paths = replace(
            self.paths,
            node_paths=[[self.paths.node_paths[0][i] for i in numbers]],
            edge_paths=[[self.paths.edge_paths[0][i] for i in numbers]],
        )
        entropies, logprobs = self.entropies.numpy(), self.logprobs.numpy()
        (group,) = gather(paths, entropies, logprobs)
        return weigh(paths, 0, group, objective, normalise, (len(logprobs), len(entropies)))


def report(limit: int = 3, samples: Sequence[int] = (1, 2, 3), policy: EnumerablePolicy | None = None) -> list[Row]:
    """Every row of METHODS that adapts, the variant without EOS, and the CTC objectives."""
    policy = policy or EnumerablePolicy(vocabulary=4, seed=SEED, forbidden=(3,))
    everything = Enumeration.of(policy, limit)
    return [*_autoregressive(policy, everything, limit, samples), *_ctc(samples)]


def _autoregressive(
    policy: EnumerablePolicy, everything: Enumeration, limit: int, samples: Sequence[int]
) -> Iterator[Row]:
    names = [name for name, method in METHODS.items() if method.search]
    for name in [*names, WITHOUT_EOS]:
        how = METHODS[name].search or "" if name in METHODS else "sample"
        objective = cast(_Baselined, METHODS[name].objective if name in METHODS else em_tok)
        enumeration = everything.without_eos() if name == WITHOUT_EOS else everything
        for G in samples if how != "greedy" else (1,):
            tuples, p = _sampled(everything.p, G) if how == "sample" else _found(policy, everything, how, limit, G)
            for baseline, normalise in itertools.product((True, False), NORMALISERS):
                g = enumeration.gradients(tuples, partial(objective, baseline=baseline), normalise)
                yield _row(name, how, baseline, normalise, G, g, p, enumeration.exact)


def _sampled(p: Tensor, G: int) -> tuple[list[tuple[int, ...]], Tensor]:
    """Every G-tuple of outputs with its probability; the order is of no matter, so each multiset stands for all."""
    tuples = list(itertools.combinations_with_replacement(range(len(p)), G))
    orders = [math.factorial(G) / math.prod(map(math.factorial, Counter(i).values())) for i in tuples]
    return tuples, p[torch.tensor(tuples)].prod(1) * torch.tensor(orders, dtype=p.dtype)


def _found(
    policy: EnumerablePolicy, everything: Enumeration, how: str, limit: int, G: int
) -> tuple[list[tuple[int, ...]], Tensor]:
    """The one tuple that a deterministic search always returns."""
    encoded = policy.encode(policy.inputs.select([0]))
    found = search.greedy(policy, encoded, [limit]) if how == "greedy" else search.beam(policy, encoded, [limit], G)
    numbers = tuple(everything.outputs.index(y.tokens) for y in found[0].hypotheses)
    return [numbers], torch.ones(1, dtype=torch.float64)


def _ctc(samples: Sequence[int], T: int = 4, V: int = 3, d: int = 4, seed: int = 1) -> Iterator[Row]:
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
    pi = pi.index_add(0, torch.tensor(collapsed.drawn[0]), log_paths.exp())  # without ctc_loss, which is on trial
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


def _row(name: str, how: str, baseline: bool, normalise: str, G: int, g: Tensor, p: Tensor, exact: Tensor) -> Row:
    """The moments of gradients g (n, P) that come with probabilities p (n,)."""
    mean, size = p @ g, float(exact.norm())
    s = max(0.0, float(mean @ exact) / max(float(mean @ mean), 1e-300))  # a negative s would be a step uphill
    variance = float(p @ (g - mean).square().sum(1))
    bias, rescaled = (float((m - exact).norm()) / size for m in (mean, s * mean))
    return Row(name, how, baseline, normalise, G, bias, rescaled, variance, variance / size**2)


def _jacobian(values: Tensor, theta: Tensor) -> Tensor:
    """(n,) in theta (1, P) -> (n, P)."""
    return torch.cat([torch.autograd.grad(value, theta, retain_graph=True)[0] for value in values])


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def as_table(rows: Sequence[Row]) -> str:
    """For people: a line for each estimator, its G side by side; variances per |g*|^2."""
    counts = sorted({row.samples for row in rows})
    lines: dict[tuple[str, str, str, str], dict[int, str]] = {}
    for row in rows:
        key = (row.objective, row.search, "yes" if row.baseline else "no", row.normalise)
        cell = f"{_number(row.bias):>8} {_number(row.rescaled_bias):>8} {row.relative_variance:>8.3g}"
        lines.setdefault(key, {})[row.samples] = cell
    head = f"{'objective':<29} {'search':<7} {'baseline':<9} {'Z':<7}"
    cells = " |".join(f"{'bias':>8} {'rescaled':>8} {'variance':>8}" for _ in counts)
    groups = " |".join(f"{f'G = {G}':^26}" for G in counts)
    out = [f"{'':<{len(head)}}{groups}", f"{head}{cells}"]
    for (name, how, baseline, normalise), by_count in lines.items():
        text = " |".join(by_count.get(G, " " * 26) for G in counts)
        out.append(f"{name:<29} {how:<7} {baseline:<9} {normalise:<7}{text}".rstrip())
    return "\n".join(out)


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


def link_rows(rows: Sequence[Row] | None = None) -> list[Link]:
    """The paper's table of prior methods, its Correctness column measured: the largest bias over all G, with 1/G."""
    rows = report() if rows is None else rows

    def bias(name: str) -> float:
        return max(row.bias for row in rows if row.objective == name and row.normalise == "group")

    return [
        Link(work, called, bias(name), bias("greedy-em") if greedy else None, bias(name) < UNBIASED)
        for work, called, name, greedy in PRIOR
    ]


def link_table(rows: Sequence[Row] | None = None) -> str:
    """`link_rows` for people."""
    out = [f"{'work':<15} {'objective':<32} {'bias':>8} {'on greedy':>10}  correct"]
    for link in link_rows(rows):
        greedy = "" if link.greedy_bias is None else _number(link.greedy_bias)
        verdict = "yes" if link.correct else "no"
        out.append(f"{link.work:<15} {link.objective:<32} {_number(link.bias):>8} {greedy:>10}  {verdict}")
    return "\n".join(out)


def plot(rows: Sequence[Row], path: str | Path) -> None:
    """Bias and variance of every estimator at the largest G, with 1/G and baseline; the suffix says the format."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, 5.5), layout="constrained")
    except ImportError as error:
        raise SharpenError("the plot needs matplotlib, which is not here: pip install 'sharpen[report]'") from error
    G = max(row.samples for row in rows)
    shown = [
        row
        for row in rows
        if (row.search == "none" or (row.baseline and row.normalise == "group"))
        and (row.samples == G or row.search in ("greedy", "none"))
    ]
    left, right = figure.subplots(1, 2, sharey=True)
    colours = ["C2" if row.rescaled_bias < UNBIASED else "C3" for row in shown]
    for axes, values, label in (
        (left, [row.rescaled_bias for row in shown], "bias of the direction: min over s of |s E[g] - g*| / |g*|"),
        (right, [row.relative_variance for row in shown], "variance: trace Cov[g] / |g*|²"),
    ):
        exact = [value < UNBIASED for value in values]
        bars = axes.barh([row.objective for row in shown], values, color=colours)
        axes.bar_label(bars, ["0" if zero else f"{v:.2g}" for zero, v in zip(exact, values, strict=True)], padding=3)
        axes.set_xlabel(label)
        axes.margins(x=0.1)
        axes.spines[["top", "right"]].set_visible(False)
    left.invert_yaxis()
    figure.suptitle(f"Estimators g of g* = grad H on a model that can be enumerated (G = {G}, Z = G, with baseline)")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise SharpenError(f"cannot write the plot to {path}: {error}") from error


def _number(value: float) -> str:
    return f"{value:.1e}" if value < 1e-3 else f"{value:.3f}"
