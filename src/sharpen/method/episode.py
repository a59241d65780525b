"""The episode: search, score, step, again; then forget.

`adapt` minimises the entropy of pi(. | q) for each input q of a batch on that input's own copy of the norms. Rows of
the batch never meet: each has its hypotheses, its loss, its normaliser, its random draws and its row of every optimiser
state, and one elementwise AdamW step serves them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method import norms as norm_room
from sharpen.method import search
from sharpen.method.adaptation import Adaptation, StopRule
from sharpen.method.gradient import charge, require_gradients, score
from sharpen.method.norms import Affine, Norm
from sharpen.method.objectives import Group, Objective, Search
from sharpen.method.policy import LONGEST, E, P, Policy, S, generator
from sharpen.method.tree import HypothesisTree

CERTAIN = 0.99  # probability of the best hypothesis at which "certain" stops
KEPT = 1 << 26  # numbers of distributions that a search keeps for its gradient: 256 MB in float32
SETTLED = 0.01  # relative change of mean H_tok between two steps at which "settled" stops
NOT_FINITE = "step {}: the loss or its gradient is not finite; the norms of the step before are kept"


@dataclass(frozen=True)
class Step:
    """What one step saw of one input, before its update."""

    loss: float
    H_tok: float  # mean over the hypotheses, in nats
    H_seq: float  # mean over the hypotheses, in nats
    hypotheses: int
    distinct: int  # different token sequences
    distinct_texts: int  # different texts after normalisation; as `distinct` where no text function was given
    nodes: int  # of the tree
    tokens: int  # of all hypotheses: what G separate rows would compute
    truncated: int  # hypotheses that the length limit ended
    best_probability: float  # of the most probable hypothesis
    gradient_norm: float
    seconds: dict[str, float]  # encode, search, score, backward, optimiser: of the whole batch
    tree: HypothesisTree | None = field(repr=False)  # the hypotheses; None where they were let go
    greedy: tuple[int, ...] | None = None  # with `explain` or `greedy_at`: the greedy output before this step's update


@dataclass
class Trace:
    """One input's way through its episode."""

    steps: list[Step] = field(default_factory=list)
    stopped: str = ""  # the rule that ended it, or what was not finite


StepListener = Callable[[int, Mapping[int, Step]], None]
"""Hears the number of a step, from 1, and what it saw of each input that still adapts, by the input's number."""


@dataclass(frozen=True)
class Episode:
    """The outcome for a batch: each input's own norms, and how they came about.

    `policy.adapted(episode.norms)` is the model as those norms make it; the model itself is as it was.
    """

    theta: Tensor  # (B, parameters)
    norms: Mapping[str, Affine]  # the same by name; none where nothing was to adapt
    traces: list[Trace]


@torch.enable_grad()
def adapt(
    policy: Policy[P, E, S],
    prepared: P,
    options: Adaptation,
    *,
    ids: Sequence[str] | None = None,
    limits: Sequence[int] | None = None,
    text: Callable[[Sequence[int]], str] | None = None,
    on_step: StepListener | None = None,
) -> Episode:
    """Adapts each of B inputs for itself.

    `ids` name the inputs' random draws (their numbers, unless given), `limits` are their length limits, `text` turns
    tokens into what makes two hypotheses the same to a reader, and `on_step` hears of every step. An episode begins at
    the model's own norms (`Policy.norms`), whatever a view of it was adapted to before. To decode with the outcome, and
    to heed `options.guard` and the method's `decode`, is the caller's part.
    """
    require_gradients()
    B, method = len(prepared), options.row
    ids = [str(b) for b in range(B)] if ids is None else ids
    limits = [LONGEST] * B if limits is None else limits
    if not len(ids) == len(limits) == B:
        raise SharpenError(f"{B} inputs, {len(ids)} ids and {len(limits)} limits: give one of each for every input")
    traces = [Trace() for _ in range(B)]
    if method.search is None or method.objective is None or options.steps == 0 or B == 0:
        return Episode(torch.empty(B, 0), {}, traces)
    norms = policy.norms()
    chosen = norm_room.choose(norms, options.norms)
    theta = norm_room.initial(chosen, B)
    worker = _Worker(policy, chosen, options, method.search, method.objective, text)
    moments = torch.zeros_like(theta), torch.zeros_like(theta)
    before = theta.clone()  # the norms that the step before was finite under
    draws = [generator(options.seed, i) for i in ids]
    fixed: E | None = None
    if len(chosen) < len(norms) and all(norm.side == "decoder" for norm in chosen):
        with torch.no_grad():
            fixed = policy.encode(prepared)  # the encoder's norms stay as they are, and none of the decoder's is in it
    rows = list(range(B))  # inputs still adapting
    for number in range(1, options.steps + 1):
        leaf = theta[rows].requires_grad_()
        view = policy.adapted(norm_room.affine(chosen, leaf))
        start = time.perf_counter()
        encoded = view.encode(prepared.select(rows)) if fixed is None else fixed.select(rows)
        seconds = {"encode": time.perf_counter() - start}
        speak = options.explain or number - 1 in options.greedy_at
        some = [draws[b] for b in rows], [limits[b] for b in rows]
        steps, gradient = worker.step(view, encoded, leaf, *some, seconds, speak)
        finite = [
            ok and math.isfinite(step.loss)
            for ok, step in zip(torch.isfinite(gradient).all(1).tolist(), steps, strict=True)
        ]
        alive = [b for b, ok in zip(rows, finite, strict=True) if ok]
        with _timed(seconds, "optimiser"):
            for b in set(rows) - set(alive):
                theta[b] = before[b]
            before[alive] = theta[alive]
            adamw(theta, moments, gradient[finite], alive, number, options.lr, options.weight_decay)
        for b, step, ok in zip(rows, steps, finite, strict=True):
            traces[b].steps.append(step)
            traces[b].stopped = _stop_reason(traces[b].steps, options.stop) if ok else NOT_FINITE.format(number)
        if on_step is not None:
            on_step(number, dict(zip(rows, steps, strict=True)))
        rows = [b for b in alive if not traces[b].stopped]
        if not rows:
            break
    for b in (~torch.isfinite(theta).all(1)).nonzero()[:, 0].tolist():
        theta[b], traces[b].stopped = before[b], NOT_FINITE.format(len(traces[b].steps))
    return Episode(theta, norm_room.affine(chosen, theta), traces)


@dataclass(frozen=True)
class _Worker(Generic[P, E, S]):
    """What stays the same over the steps of an episode."""

    policy: Policy[P, E, S]
    norms: list[Norm]
    options: Adaptation
    search: Search
    objective: Objective
    text: Callable[[Sequence[int]], str] | None

    def step(
        self,
        view: Policy[P, E, S],
        encoded: E,
        theta: Tensor,
        draws: list[torch.Generator],
        limits: list[int],
        seconds: dict[str, float],
        speak: bool,
    ) -> tuple[list[Step], Tensor]:
        """Hypotheses under theta, their loss, its gradient: what each input's trace keeps, and (B, parameters).

        The encoder has run once, with its gradient: the search sees the same values without it. With `speak` the greedy
        output is kept as well.
        """
        with torch.no_grad():
            frozen = self.policy.adapted(norm_room.affine(self.norms, theta.detach()))
            with _timed(seconds, "search"):
                trees = self._find(frozen, encoded.detach(), draws, limits)
            spoken = search.greedy(frozen, encoded.detach(), limits) if speak else None
        with _timed(seconds, "score"):
            charged = charge(trees, self.objective, self.options.normalise)
            scored = score(view, encoded, trees, theta.device)
        with _timed(seconds, "backward"):
            gradient = scored.gradient(view, charged, theta)
        sizes = gradient.norm(dim=1).tolist()
        steps = []
        for b, (tree, group) in enumerate(zip(trees, charged.groups, strict=True)):
            greedy = spoken[b].hypotheses[0].tokens if spoken else None
            steps.append(_summary(tree, group, charged.losses[b], sizes[b], seconds, self.text, greedy))
        return steps, gradient

    def _find(
        self, policy: Policy[P, E, S], encoded: E, draws: list[torch.Generator], limits: list[int]
    ) -> list[HypothesisTree]:
        G = self.options.samples
        if self.search == "greedy":
            return search.greedy(policy, encoded, limits, entropies=True, keep=KEPT)
        if self.search == "sample":
            return search.sample(policy, encoded, limits, G, draws, entropies=True, keep=KEPT)
        return search.beam(policy, encoded, limits, G, entropies=True, keep=KEPT)


def adamw(
    theta: Tensor,  # (B, parameters)
    moments: tuple[Tensor, Tensor],
    gradient: Tensor,  # (rows, parameters)
    rows: list[int],
    t: int,  # the step, from 1
    lr: float,
    weight_decay: float,
) -> None:
    """AdamW with torch's other defaults on some rows of theta, in place; an episode's rows all count the same steps."""
    b1, b2, eps = 0.9, 0.999, 1e-8
    m = moments[0][rows] * b1 + gradient * (1 - b1)
    v = moments[1][rows] * b2 + gradient.square() * (1 - b2)
    moments[0][rows], moments[1][rows] = m, v
    step = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
    theta[rows] = theta[rows] * (1 - lr * weight_decay) - lr * step


def _summary(
    tree: HypothesisTree,
    group: Group,
    value: float,
    gradient_norm: float,
    seconds: dict[str, float],
    text: Callable[[Sequence[int]], str] | None,
    greedy: tuple[int, ...] | None,
) -> Step:
    distinct = {y.tokens for y in tree.hypotheses}
    texts = distinct if text is None else {text(y.content) for y in tree.hypotheses}
    return Step(
        loss=value,
        H_tok=float(group.H_tok.mean()),
        H_seq=float(group.H_seq.mean()),
        hypotheses=len(tree.hypotheses),
        distinct=len(distinct),
        distinct_texts=len(texts),
        nodes=len(tree),
        tokens=sum(len(y) for y in tree.hypotheses),
        truncated=sum(not y.finished for y in tree.hypotheses),
        best_probability=math.exp(-float(group.H_seq.min())),
        gradient_norm=gradient_norm,
        seconds=seconds,
        tree=tree,
        greedy=greedy,
    )


def _stop_reason(steps: list[Step], rules: tuple[StopRule, ...]) -> str:
    """Why to stop after these steps, or nothing."""
    last = steps[-1]
    if "certain" in rules and last.best_probability >= CERTAIN:
        return f"certain: the best hypothesis has probability {last.best_probability:.3f}"
    if "agreed" in rules and last.hypotheses > 1 and last.distinct_texts == 1:
        return "agreed: all hypotheses are the same text"
    if "settled" in rules and len(steps) > 1:
        before = steps[-2].H_tok
        if abs(last.H_tok - before) <= SETTLED * abs(before):
            return f"settled: entropy {before:.3f} -> {last.H_tok:.3f}"
    return ""


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
