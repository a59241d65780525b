"""What a server knows at its door, whatever works behind it: who may come in, how many are here, when it closes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sharpen.serving.errors import ApiError, stopping
from sharpen.serving.keys import Keys
from sharpen.serving.limits import ServerLimits
from sharpen.serving.metrics import Metrics

VANISHED = "client_vanished"


@dataclass
class RequestOutcome:
    """How a request ended, in a word for the metrics."""

    word: str = "ok"


class Reception(ABC):
    """The state of a server, and its limits."""

    def __init__(self, names: tuple[str, ...], limits: ServerLimits, keys: Keys) -> None:
        self.names, self.limits, self.keys = names, limits, keys
        self.metrics = Metrics()
        self.started = int(time.time())
        self.ready = self.draining = False
        self._uploads = self._answering = 0

    @property
    @abstractmethod
    def card(self) -> dict[str, Any]:
        """What `/v1/models` says about the model beyond OpenAI's fields."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether what works behind the door still works."""

    @abstractmethod
    async def start(self) -> None:
        """Gets ready."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends what was started."""

    @abstractmethod
    async def end_rest(self) -> None:
        """The drain is over: what is unfinished is told so."""

    async def health(self) -> dict[str, Any]:
        ready = self.ready and self.alive and not self.draining
        return {"live": self.alive, "ready": ready, "draining": self.draining, "model": self.names[0]}

    async def metrics_text(self) -> str:
        return self.metrics.text()

    @property
    def idle(self) -> bool:
        return not self._answering

    def admit(self) -> None:
        """Raises, before anything is read, where a request cannot be taken."""
        if self.draining or not self.ready:
            raise stopping(self.limits.drain)
        if self._uploads >= self.limits.max_uploads:
            raise ApiError(
                429, f"{self._uploads} uploads are being received; try again later", None, "too_many_uploads", 1.0
            )

    @contextmanager
    def uploading(self) -> Iterator[None]:
        with self._gauged("uploads"), self._staged("upload"):
            self._uploads += 1
            try:
                yield
            finally:
                self._uploads -= 1

    @contextmanager
    def answering(self) -> Iterator[RequestOutcome]:
        """Around a whole request: counts it, and its outcome."""
        outcome = RequestOutcome()
        self._answering += 1
        try:
            with self._gauged("in_flight"):
                yield outcome
        except ApiError as error:
            outcome.word = error.code or str(error.status)
            raise
        except BaseException as error:
            outcome.word = VANISHED if isinstance(error, asyncio.CancelledError) else "failed"
            raise
        finally:
            self._answering -= 1
            self.metrics.add("requests_total", label=outcome.word)

    @contextmanager
    def _gauged(self, gauge: str) -> Iterator[None]:
        self.metrics.change(gauge, 1)
        try:
            yield
        finally:
            self.metrics.change(gauge, -1)

    @contextmanager
    def _staged(self, stage: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.metrics.add("stage_seconds_total", time.monotonic() - begin, stage)
