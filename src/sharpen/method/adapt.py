"""A batch of inputs adapted together: one loop over an `Episode`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.episode import Episode
from sharpen.method.norms import Affine, select
from sharpen.method.policy import E, P, Policy, S
from sharpen.method.trace import Step, Text, Trace
from sharpen.method.tree import HypothesisTree

StepCallback = Callable[[int, Mapping[int, Step]], None]
"""Called after every step with its number, from 1, and what it saw of each input still adapting, by input number."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of `adapt` for a batch. `policy.adapted(outcome.norms)` is the adapted model."""

    theta: Tensor  # (B, parameters)
    norms: Mapping[str, Affine]  # the same by name; empty where nothing was to adapt
    traces: list[Trace]

    def select(self, inputs: Sequence[int]) -> Outcome:
        """The outcome for some of the inputs, in the order given."""
        rows = list(inputs)
        return Outcome(self.theta[rows], select(self.norms, rows), [self.traces[b] for b in rows])


def adapt(
    policy: Policy[P, E, S],
    prepared: P,
    options: Adaptation,
    *,
    ids: Sequence[str] | None = None,
    limits: Sequence[int] | None = None,
    trees: Sequence[HypothesisTree | None] | None = None,
    search_anew: bool = False,
    until: float = math.inf,
    text: Text | None = None,
    on_step: StepCallback | None = None,
) -> Outcome:
    """Adapts each of B inputs, starting from the model's own norms, with common options.

    `ids` name the inputs' random draws (default: their numbers), `limits` are their length limits, `trees` hypotheses
    that were searched already, `search_anew` whether they are for the gate alone, `until` the time at which to end
    (`Episode.join`). Decoding with the outcome, the guard
    (`options.guard`) and the method's `decode` are left to the caller.
    """
    names = [str(b) for b in range(len(prepared))]
    if ids is not None and len(ids) != len(names):
        raise SharpenError(f"{len(names)} inputs and {len(ids)} ids; give one per input")
    episode = Episode(policy, text)
    episode.join(prepared, names, limits, options, draws=ids, trees=trees, search_anew=search_anew, until=until)
    number = 0
    while steps := episode.step():
        number += 1
        if on_step is not None:
            on_step(number, {int(name): step for name, step in steps.items()})
    return Outcome(episode.theta(names), episode.norms(names), [episode.trace(name) for name in names])
