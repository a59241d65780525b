"""What an episode records: one `Step` per update, and the rules that stop it early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sharpen.method.adaptation import StopRule
from sharpen.method.objectives import Group
from sharpen.method.tree import HypothesisTree

CERTAIN = 0.99  # probability of the best hypothesis at which "certain" stops
SETTLED = 0.01  # relative change of mean H_tok between two steps at which "settled" stops
OUT_OF_TIME = "deadline: no time for another step"
NOT_FINITE = "step {}: the loss, its gradient or the update is not finite; the norms of the step before are kept"

Text = Callable[[Sequence[int]], str]
"""Turns tokens into a normalised text: two hypotheses with the same text are the same to a reader."""


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
    seconds: Mapping[str, float]  # this input's share of encode, search, score, backward, optimiser (and greedy)
    batch_seconds: Mapping[str, float]  # the same stages for all inputs that were computed together
    tree: HypothesisTree | None = field(repr=False)  # the hypotheses; None where they were dropped
    greedy: tuple[int, ...] | None = None  # with `explain` or `greedy_at`: the greedy output before this step's update


@dataclass
class Trace:
    """The steps of one input, and why it stopped early."""

    steps: list[Step] = field(default_factory=list)
    stopped: str = ""  # the rule that ended it, or what was not finite


def summary(
    tree: HypothesisTree,
    group: Group,
    loss: float,
    gradient_norm: float,
    batch_seconds: Mapping[str, float],
    inputs: Mapping[str, int],
    text: Text | None,
    greedy: tuple[int, ...] | None,
) -> Step:
    """The step of one input; `inputs` says how many shared each stage."""
    distinct = {y.tokens for y in tree.hypotheses}
    texts = distinct if text is None else {text(y.content) for y in tree.hypotheses}
    return Step(
        loss=loss,
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
        seconds={
            stage: seconds / inputs[stage]
            for stage, seconds in batch_seconds.items()
            if stage != "greedy" or greedy is not None
        },
        batch_seconds=batch_seconds,
        tree=tree,
        greedy=greedy,
    )


def confident(tree: HypothesisTree, gate: float) -> str:
    """Why an input with these hypotheses is left alone, or nothing."""
    if gate <= 0:
        return ""
    mean = math.fsum(tree.entropies[node] for y in tree.hypotheses for node in y.nodes) / sum(map(len, tree.hypotheses))
    return f"confident: {mean:.2f} nats a token" if mean < gate else ""


def stop_reason(steps: Sequence[Step], rules: Sequence[StopRule]) -> str:
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
