"""How to adapt: the options of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sharpen.errors import SharpenError
from sharpen.method.objectives import EVERY_METHOD, Method, Normalise
from sharpen.options import declared, option, validate

StopRule = Literal["certain", "agreed", "settled"]
Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class Adaptation:
    """How to adapt; the defaults are the paper's. What follows from an option's line is in sharpen.options."""

    method: str | Method = option(
        "em-tok-b",
        "source and beam only decode, the others adapt first; ctc-… are for CTC models",
        choices=EVERY_METHOD,
    )  # or a row of your own
    steps: int = option(10, "updates of the norms", least=0, label="{} steps")
    samples: int = option(16, "G: hypotheses at each step; the width of the method beam", least=1, label="G {}")
    search_every: int = option(
        1, "search hypotheses anew at every n-th step; in between the same ones are scored anew", least=1
    )
    lr: float = option(1e-3, "learning rate of AdamW", above=0, always=True)
    schedule: Schedule = option(
        "constant", "learning rate over the steps: constant, or linear: in equal steps down to lr / steps at the last"
    )
    weight_decay: float = option(0.0, "weight decay of AdamW; the paper does not state one", least=0, always=True)
    norms: str = option(
        "encoder+decoder",
        "the side whose norms adapt; encoder:3 is its layers from 3 on, encoder:half its upper half: the layers below "
        "are computed once",
        pattern=r"(encoder|decoder)(:(\d+|half))?(\+(encoder|decoder)(:(\d+|half))?)?",
        example="encoder+decoder, encoder or decoder, each with :LAYER or :half where only its upper layers adapt",
        flag="--adapt-norms",
        always=True,
    )
    normalise: Normalise = option(
        "tokens", "what the loss is divided by: the group's tokens (the paper) or G (exactly unbiased)", always=True
    )
    gate: float = option(
        0.0,
        "leave an input alone whose first hypotheses (the beams of the answer before adapting, where it has some) have "
        "less entropy than this, in nats a token; 0: adapt to every input",
        least=0,
    )
    stop: tuple[StopRule, ...] = option(
        (),
        "end the episode early: certain (one hypothesis has nearly all probability), agreed (all hypotheses are one "
        "text), settled (the entropy no longer changes)",
    )
    guard: bool = option(True, "return the source's text where the adapted one looks broken", always=True)
    explain: bool = option(
        False,
        "decode greedily before every step, and explain on a page what adaptation changed (transcribe: STEM.html, "
        "generate: --page)",
        role="output",
    )
    greedy_at: tuple[int, ...] = option((), "decode greedily after these updates, too", role="output", flag=None)
    seed: int = option(0, "seed of every random draw")

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "greedy_at", tuple(self.greedy_at))
        rules = declared(type(self))["stop"].choices
        object.__setattr__(self, "stop", tuple(rule for rule in rules if rule in self.stop))  # one order, no repeats
        beyond = [k for k in self.greedy_at if not 0 <= k <= self.steps]
        if beyond:
            raise SharpenError(f"greedy_at names {beyond[0]} updates; expected 0 to {self.steps}, the episode's steps")

    def lr_at(self, done: int) -> float:
        """The learning rate after so many updates."""
        return self.lr * (1 - done / self.steps) if self.schedule == "linear" else self.lr

    @property
    def row(self) -> Method:
        """The method's row."""
        return EVERY_METHOD[self.method] if isinstance(self.method, str) else self.method


def applies(name: str, method: Method) -> bool:
    """Whether an option of `Adaptation` makes a difference to a method."""
    if name == "samples":
        return method.search in ("sample", "beam") or (method.search is None and method.decode == "beam")
    if name == "seed":
        return method.search == "sample"
    return name == "method" or method.search is not None
