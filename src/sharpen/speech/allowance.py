"""How long adapting may take: a budget per second of audio or of plain decoding, or a deadline for a recording.

Every window earns, whether it adapts or not, and what it does not spend is left for later windows: so confident windows
pay for doubtful ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sharpen.speech.options import Options


@dataclass
class Allowance:
    """The seconds of computing that one recording has earned and spent."""

    per_audio: float | None = None  # seconds earned by a second of audio
    per_plain: float | None = None  # seconds earned by a second of decoding with the source model
    earned: float = 0.0
    spent: float = 0.0

    @classmethod
    def of(cls, options: Options, duration: float) -> Allowance | None:
        """What the options allow a recording of that many seconds; None: there is no limit."""
        rates = [] if options.deadline is None else [options.deadline / max(duration, 1e-3)]
        if options.budget is not None and options.budget.endswith("x"):
            return cls(min(rates, default=None), float(options.budget[:-1]))
        if options.budget is not None:
            rates.append(float(options.budget))
        return cls(min(rates)) if rates else None

    def earn(self, audio: float, plain: float) -> None:
        """Adds a window of so many seconds, which the source model took `plain` seconds to decode."""
        gains = [rate * x for rate, x in ((self.per_audio, audio), (self.per_plain, plain)) if rate is not None]
        self.earned += min(gains)

    @property
    def left(self) -> float:
        return self.earned - self.spent


@dataclass(frozen=True)
class Pool:
    """The allowances of windows that are decoded together: one's savings may be spent on another."""

    allowances: Sequence[Allowance | None]

    def earn(self, audio: Sequence[float], plain: float) -> None:
        """Each window's seconds of audio, and the seconds that the source model took for all of them."""
        for one, seconds in zip(self.allowances, audio, strict=True):
            if one is not None:
                one.earn(seconds, plain / len(self.allowances))

    @property
    def left(self) -> float | None:
        """Seconds; None where some window has no limit. Windows of one recording share one allowance."""
        known = {id(one): one.left for one in self.allowances if one is not None}
        return sum(known.values()) if known and None not in self.allowances else None

    def spend(self, seconds: float) -> None:
        for one in self.allowances:
            if one is not None:
                one.spent += seconds / len(self.allowances)
