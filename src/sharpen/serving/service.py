"""What the server does with a request, whatever the framework: read it, understand it, queue it, tell what happens."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sharpen.errors import SharpenError
from sharpen.models.languages import LANGUAGES
from sharpen.models.silero import load_silero
from sharpen.models.speech import SpeechModel
from sharpen.serving.batch import EpisodeBatch
from sharpen.serving.contract import OWN_FIELDS, Ask, parse
from sharpen.serving.errors import bad_field
from sharpen.serving.events import Failed, Finished, Told
from sharpen.serving.form import Form
from sharpen.serving.keys import Keys
from sharpen.serving.limits import ServerLimits
from sharpen.serving.media import MediaReader
from sharpen.serving.metrics import Metrics
from sharpen.serving.reception import Reception
from sharpen.serving.ticket import Ticket
from sharpen.speech.efforts import DEFAULT
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model


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


class Service(Reception):
    """One model and its batch."""

    def __init__(
        self,
        model: Model,
        names: tuple[str, ...],
        limits: ServerLimits,
        keys: Keys = Keys(),  # noqa: B008, it is frozen
        effort: str = DEFAULT,
    ) -> None:
        super().__init__(names, limits, keys)
        self.model, self.effort = model, effort
        self.batch = EpisodeBatch(model.speech, limits, self.metrics)
        self.media = MediaReader(limits, self.metrics, model.speech.sampling_rate)

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

    @property
    def card(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "model": self.names[0],
            "fields": OWN_FIELDS,
            "effort": self.effort,
            "languages": self.languages,
            "max_steps": limits.max_steps,
            "max_samples": limits.max_samples,
            "max_n_best": limits.max_n_best,
            "max_deadline": limits.max_deadline,
            "max_seconds": limits.max_seconds,
            "max_upload": limits.max_upload,
        }

    @property
    def alive(self) -> bool:
        return self.batch.alive

    async def start(self) -> None:
        await self.media.start()
        await asyncio.to_thread(self.batch.start)
        with suppress(SharpenError):  # where it is not installed, requests that need it are refused
            await asyncio.to_thread(load_silero)
        self.ready = True

    async def stop(self) -> None:
        self.ready = False
        await asyncio.to_thread(self.batch.stop)
        await self.media.stop()

    async def end_rest(self) -> None:
        await asyncio.to_thread(self.batch.stop)

    @property
    def idle(self) -> bool:
        return super().idle and not self.batch.size

    def admit(self) -> None:
        super().admit()
        self.batch.check_room()

    def understand(self, form: Form, task: str) -> tuple[Ask, bytes]:
        """The request in a form, checked against this model, and its file."""
        ask = parse(form.fields, task, self.names, self.effort, self.limits)
        if form.file is None:
            raise bad_field("file", "missing; send the recording as a file", "missing_parameter")
        if not form.file:
            raise bad_field("file", "empty", "invalid_file")
        if ask.options.needs_voice:
            try:
                load_silero()
            except SharpenError as error:
                raise bad_field("chunking_strategy", f"server_vad: {error}", "unsupported_parameter") from error
        self._check(ask.options)
        return ask, form.file

    def _check(self, options: Options) -> None:
        """Raises for what this model cannot do, with the name of the field that asks for it."""
        timeless = replace(options, word_timestamps=False)
        for field, some in (
            ("language" if options.task == "transcribe" else "model", replace(timeless, initial_prompt="")),
            ("prompt", timeless),
            ("timestamp_granularities", options),
        ):
            try:
                self.model.check(some)
            except SharpenError as error:
                raise bad_field(field, str(error)) from error

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
