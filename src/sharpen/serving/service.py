"""What the server does with a request, whatever the framework: read it, understand it, queue it, tell what happens."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sharpen.errors import SharpenError
from sharpen.models.languages import LANGUAGES
from sharpen.models.speech import SpeechModel
from sharpen.serving.batch import EpisodeBatch
from sharpen.serving.contract import Ask, parse
from sharpen.serving.errors import ApiError, bad_field, stopping
from sharpen.serving.events import Failed, Finished, Told
from sharpen.serving.form import Form
from sharpen.serving.keys import Keys
from sharpen.serving.limits import ServerLimits
from sharpen.serving.media import MediaReader
from sharpen.serving.metrics import Metrics
from sharpen.serving.ticket import Ticket
from sharpen.speech.efforts import DEFAULT
from sharpen.speech.transcribe import Model

VANISHED = "client_vanished"


@dataclass
class RequestOutcome:
    """How a request ended, in a word for the metrics."""

    word: str = "ok"


class Following:
    """What happens to a recording that was queued."""

    def __init__(self, ticket: Ticket, told: asyncio.Queue[Told], received: float, metrics: Metrics) -> None:
        self._ticket, self._told, self._received, self._metrics = ticket, told, received, metrics
        self._ended = False

    async def next(self, seconds: float | None = None) -> Told | None:
        """What happens next, up to `Finished`; None after so many seconds without anything."""
        try:
            async with asyncio.timeout(seconds):
                event = await self._told.get()
        except TimeoutError:
            return None
        self._ended = isinstance(event, Failed | Finished)
        if isinstance(event, Failed):
            raise event.error
        if self._ended:
            self._metrics.observe(time.monotonic() - self._received)
        return event

    def leave(self) -> None:
        """Nobody follows any more: a recording that is not done is dropped."""
        if not self._ended:
            self._ended = self._ticket.vanished = True
            self._metrics.add("vanished_total")


class Service:
    """One model and its batch, and the state of the server."""

    def __init__(
        self,
        model: Model,
        names: tuple[str, ...],
        limits: ServerLimits,
        keys: Keys = Keys(),  # noqa: B008, it is frozen
        effort: str = DEFAULT,
    ) -> None:
        self.model, self.names, self.limits, self.keys, self.effort = model, names, limits, keys, effort
        self.metrics = Metrics()
        self.batch = EpisodeBatch(model.speech, limits, self.metrics)
        self.media = MediaReader(limits, self.metrics, model.speech.sampling_rate)
        self.started = int(time.time())
        self.ready = self.draining = False
        self._uploads = self._answering = 0

    @property
    def speech(self) -> SpeechModel:
        return self.model.speech

    @property
    def languages(self) -> list[str]:
        """The codes of the languages that a request may name."""
        return [code for code in LANGUAGES if self._knows(code)]

    def _knows(self, language: str) -> bool:
        try:
            self.speech.check(language, "transcribe")
        except SharpenError:
            return False
        return True

    async def start(self) -> None:
        await self.media.start()
        await asyncio.to_thread(self.batch.start)
        self.ready = True

    async def stop(self) -> None:
        self.ready = False
        await asyncio.to_thread(self.batch.stop)
        await self.media.stop()

    @property
    def idle(self) -> bool:
        return not self._answering and not self.batch.size

    def admit(self) -> None:
        """Raises, before anything is read, where a request cannot be taken."""
        if self.draining or not self.ready:
            raise stopping(self.limits.drain)
        if self._uploads >= self.limits.max_uploads:
            raise ApiError(
                429, f"{self._uploads} uploads are being received; try again later", None, "too_many_uploads", 1.0
            )
        self.batch.check_room()

    @contextmanager
    def uploading(self) -> Iterator[None]:
        with self._counted("uploads"), self._staged("upload"):
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
            with self._counted("in_flight"):
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

    def understand(self, form: Form, task: str) -> tuple[Ask, bytes]:
        """The request in a form, checked against this model, and its file."""
        ask = parse(form.fields, task, self.names, self.effort, self.limits)
        if form.file is None:
            raise bad_field("file", "missing; send the recording as a file", "missing_parameter")
        if not form.file:
            raise bad_field("file", "empty", "invalid_file")
        try:
            self.model.check(ask.options)
        except SharpenError as error:
            raise bad_field("language" if task == "transcribe" else "model", str(error)) from error
        return ask, form.file

    async def follow(self, data: bytes, ask: Ask) -> Following:
        """Decodes a file and queues the recording; what happens to it can be followed."""
        received = time.monotonic()
        with self._staged("media"):
            audio = await self.media.read(data)
            job = await asyncio.to_thread(self.model.job, audio, ask.options)
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Told]()

        def send(event: Told) -> None:
            with suppress(RuntimeError):  # the loop has ended: nobody is there
                loop.call_soon_threadsafe(told.put_nowait, event)

        until = math.inf if ask.deadline is None else received + ask.deadline
        ticket = Ticket(secrets.token_hex(8), job, send, ask.explain, until)
        self.batch.submit(ticket)
        return Following(ticket, told, received, self.metrics)

    @contextmanager
    def _counted(self, gauge: str) -> Iterator[None]:
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
