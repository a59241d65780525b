"""The line in front of the batch: recordings that were accepted, and those whose next window waits for its turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable

from sharpen.serving.costs import Costs
from sharpen.serving.errors import ApiError, stopping
from sharpen.serving.limits import ServerLimits
from sharpen.serving.ticket import Ticket, source_key
from sharpen.speech.options import Options

Taken = tuple[Ticket, Options, str]  # with which options its window is decoded, and why with less than it asked for
HELD = 4  # times the longest recording: seconds of audio that all recordings may have together


class WaitingLine:
    """Recordings in the order of their turns. Any thread may add to it; the lanes take from it."""

    def __init__(self, limits: ServerLimits, costs: Costs) -> None:
        self.limits, self.costs = limits, costs
        self._ready: deque[Ticket] = deque()
        self._all: set[Ticket] = set()
        self._changed = threading.Condition()
        self.ended = False

    def __len__(self) -> int:
        """Recordings accepted and not yet done."""
        return len(self._all)

    @property
    def waiting(self) -> int:
        """Windows that wait for their turn."""
        return len(self._ready)

    def check_room(self, seconds: float = 0.0) -> None:
        """Raises where one more recording is too many."""
        with self._changed:
            held = sum(ticket.seconds for ticket in self._all)
            if len(self._all) >= self.limits.queue or (held and held + seconds > HELD * self.limits.max_seconds):
                wait = self.costs.wait(sum(ticket.seconds - ticket.job.done for ticket in self._all))
                message = f"{len(self._all)} recordings are waiting; try again later"
                raise ApiError(429, message, None, "queue_full", wait)

    def add(self, ticket: Ticket) -> None:
        """Accepts a recording."""
        with self._changed:
            if self.ended:
                raise stopping(1.0)
            self.check_room(ticket.seconds)
            self._all.add(ticket)
            self.put_back(ticket)

    def put_back(self, ticket: Ticket) -> None:
        """Its next window waits behind those of the others."""
        with self._changed:
            self._ready.append(ticket)
            self._changed.notify()

    def remove(self, ticket: Ticket) -> None:
        """It is done, or failed."""
        with self._changed:
            self._all.discard(ticket)
            if ticket in self._ready:
                self._ready.remove(ticket)

    def end(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def rest(self) -> list[Ticket]:
        with self._changed:
            return list(self._all)

    def wait(self) -> None:
        """Returns when there is a window to work on, or the end has come."""
        with self._changed:
            while not (self.ended or self._ready):
                self._changed.wait()

    def drop_vanished(self) -> None:
        with self._changed:
            for ticket in [ticket for ticket in self._all if ticket.vanished]:
                self.remove(ticket)

    def take(self, chosen: Callable[[Ticket], tuple[Options, str]], rows: int, most: int) -> list[Taken]:
        """The windows to decode now: those whose turn it is and which can be decoded together, `most` of them.

        `rows` are free for windows that adapt; those that do not adapt need none, and pass the others by.
        """
        taken: list[Taken] = []
        key: Hashable = None
        with self._changed:
            for ticket in list(self._ready):
                options, why = chosen(ticket)
                if (options.adapt is not None and rows <= 0) or len(taken) >= most:
                    continue
                key = source_key(options) if key is None else key
                if source_key(options) == key:
                    taken.append((ticket, options, why))
                    rows -= options.adapt is not None
                    self._ready.remove(ticket)
        return taken
