"""How long things take here, learnt while they are done: what a deadline is measured by."""

from __future__ import annotations

RECENT = 0.3  # weight of the last measurement
MARGIN = 1.25  # expected times are multiplied by this: being late is worse than a step less
LONGEST_WAIT = 60.0  # seconds that a client is told to wait at most


class Costs:
    """Seconds of each kind of work, per second of audio where it has audio."""

    def __init__(self) -> None:
        self._per_second: dict[str, float] = {}

    def saw(self, what: str, took: float, seconds: float = 1.0) -> None:
        """So many seconds of audio took so long."""
        if seconds <= 0:
            return
        new = took / seconds
        old = self._per_second.get(what, new)
        self._per_second[what] = (1 - RECENT) * old + RECENT * new

    def expected(self, what: str, seconds: float = 1.0) -> float:
        """How long so many seconds of audio will take; 0 as long as nothing is known."""
        return MARGIN * self._per_second.get(what, 0.0) * seconds

    def wait(self, seconds: float) -> float:
        """How long to wait until so many seconds of audio are done, for a client that was refused."""
        return min(LONGEST_WAIT, max(1.0, self._per_second.get("beam", 0.0) * seconds))
