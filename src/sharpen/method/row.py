"""One input of an episode: its options, its norms, its moments, and its update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

import torch
from torch import Tensor

from sharpen.method.adaptation import Adaptation
from sharpen.method.norms import Norm
from sharpen.method.optimiser import Moments, adamw
from sharpen.method.policy import P
from sharpen.method.trace import NOT_FINITE, Trace
from sharpen.method.tree import HypothesisTree


@dataclass(frozen=True)
class Sharing:
    """What inputs must have in common to be computed together."""

    search: str
    samples: int
    norms: str


@dataclass(eq=False)
class EpisodeRow(Generic[P]):
    """One input of an episode."""

    id: str
    source: P  # the batch it joined with
    index: int  # its place in that batch
    limit: int
    options: Adaptation
    chosen: list[Norm]  # what adapts; empty for a method that does not adapt
    draws: torch.Generator
    theta: Tensor  # (parameters,)
    before: Tensor  # theta one update earlier, under which loss and gradient were finite
    moments: Moments  # (parameters,) each
    until: float = math.inf  # on the clock of time.monotonic: no step that would end later
    tree: HypothesisTree | None = None  # the hypotheses of the step before, or those that it joined with
    anew: bool = False  # those that it joined with are for the gate alone: the first step searches
    trace: Trace = field(default_factory=Trace)

    @property
    def live(self) -> bool:
        return bool(self.chosen) and not self.trace.stopped and len(self.trace.steps) < self.options.steps

    @property
    def sharing(self) -> Sharing:
        kind = self.options.row.search or ""
        return Sharing(kind, 1 if kind == "greedy" else self.options.samples, self.options.norms)

    @property
    def searches(self) -> bool:
        """Whether the next step searches its hypotheses, or scores those of the step before anew."""
        done = len(self.trace.steps)
        return self.tree is None or (done % self.options.search_every == 0 if done else self.anew)

    @property
    def wants_greedy(self) -> bool:
        """Whether the greedy output before the next update is wanted."""
        return self.options.explain or len(self.trace.steps) in self.options.greedy_at


def update_rows(rows: Sequence[EpisodeRow[P]], gradient: Tensor, losses: Sequence[float]) -> list[str]:
    """Moves the rows whose loss, gradient and update are finite; returns why each other row stops."""
    finite = [ok and math.isfinite(loss) for ok, loss in zip(_finite(gradient), losses, strict=True)]
    moving = [b for b, ok in enumerate(finite) if ok]
    good = [rows[b] for b in moving]
    if good:
        theta, moments = adamw(
            torch.stack([row.theta for row in good]),
            Moments(torch.stack([row.moments.m for row in good]), torch.stack([row.moments.v for row in good])),
            gradient[moving],
            [len(row.trace.steps) + 1 for row in good],
            [row.options.lr_at(len(row.trace.steps)) for row in good],
            [row.options.weight_decay for row in good],
        )
        for n, (b, ok) in enumerate(zip(moving, _finite(theta), strict=True)):
            row, finite[b] = rows[b], ok
            row.before = row.theta
            if ok:
                # Copies: a view would keep the whole batch alive as long as the row.
                row.theta, row.moments = theta[n].clone(), Moments(moments.m[n].clone(), moments.v[n].clone())
    for row, ok in zip(rows, finite, strict=True):
        if not ok:
            row.theta = row.before
    return ["" if ok else NOT_FINITE.format(len(row.trace.steps) + 1) for row, ok in zip(rows, finite, strict=True)]


def _finite(matrix: Tensor) -> list[bool]:
    values: list[bool] = torch.isfinite(matrix).all(1).tolist()
    return values
