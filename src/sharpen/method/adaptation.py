"""How to adapt: the options of an episode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sharpen.errors import SharpenError
from sharpen.method.objectives import METHODS, Method, Normalise

Sides = Literal["encoder+decoder", "encoder", "decoder"]
StopRule = Literal["certain", "agreed", "settled"]


@dataclass(frozen=True)
class Adaptation:
    """How to adapt; the defaults are the paper's."""

    method: str | Method = "em-tok-b"  # a name in METHODS, or a row of your own
    steps: int = 10  # updates of the norms
    samples: int = 16  # G: hypotheses at each step; one for greedy search
    lr: float = 1e-3  # AdamW's learning rate
    weight_decay: float = 0.0  # AdamW's; the paper does not state one
    norms: Sides = "encoder+decoder"  # which side's norms to adapt
    normalise: Normalise = "tokens"  # Z: the group's token count (the paper), or "group": G, exactly unbiased
    stop: tuple[StopRule, ...] = ()  # ends early: "certain", "agreed" (all hypotheses one text), "settled"
    guard: bool = True  # fall back to the source transcript where the adapted one looks broken
    explain: bool = False  # also decode greedily before every step
    greedy_at: tuple[int, ...] = ()  # or only after these numbers of updates; what comes after the last is the answer
    seed: int = 0  # of the samples

    def __post_init__(self) -> None:
        if isinstance(self.method, str) and self.method not in METHODS:
            raise SharpenError(f"unknown method {self.method!r}; choose from {', '.join(METHODS)}, or give a Method")
        for name, least in (("steps", 0), ("samples", 1)):
            if getattr(self, name) < least:
                raise SharpenError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise SharpenError(f"lr is {self.lr}; expected a positive number, such as the paper's 1e-3")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise SharpenError(f"weight_decay is {self.weight_decay}; expected 0 or more")
        allowed = {"norms": ("encoder+decoder", "encoder", "decoder"), "normalise": ("tokens", "group")}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise SharpenError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(values)}")
        beyond = [k for k in self.greedy_at if not 0 <= k <= self.steps]
        if beyond:
            raise SharpenError(f"greedy_at names {beyond[0]} updates; expected 0 to {self.steps}, the episode's steps")
        unknown = {self.stop} if isinstance(self.stop, str) else set(self.stop) - {"certain", "agreed", "settled"}
        if unknown:
            raise SharpenError(f"stop is {self.stop!r}; expected a tuple of certain, agreed and settled, or none")

    @property
    def row(self) -> Method:
        """The method's row."""
        return METHODS[self.method] if isinstance(self.method, str) else self.method
