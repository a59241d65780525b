"""A replica on Ray Serve: one model with its batch and its media processes, which answers forms."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from starlette.requests import Request
from starlette.types import Message

from sharpen.errors import SharpenError
from sharpen.serving.app import Answers
from sharpen.serving.errors import ApiError, broken
from sharpen.serving.form import Form
from sharpen.serving.limits import ServerLimits
from sharpen.serving.metrics import Counted
from sharpen.serving.reception import RequestOutcome
from sharpen.serving.service import Service
from sharpen.speech.presets import Dtype
from sharpen.speech.transcribe import load

SCOPE = {"type": "http", "asgi": {"spec_version": "2.4"}, "headers": []}  # of a request that has been read already


@dataclass(frozen=True)
class ReplicaSetup:
    """What every replica is made from."""

    model: str
    aliases: tuple[str, ...]
    effort: str
    limits: ServerLimits
    device: str = "auto"
    dtype: Dtype = "float32"
    threads: int | None = None


@dataclass(frozen=True)
class Head:
    """The beginning of an answer; its bytes follow."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class ReplicaState:
    """How a replica is doing."""

    name: str  # another after a restart
    counted: Counted


Item = ApiError | Head | bytes | RequestOutcome  # an error, or a head, bytes and how it ended
TELLS = 1.0  # seconds without an item after which a replica says how it is doing


class Replica:
    """What an actor of Ray Serve holds. Its methods run in one event loop, the batch in its own thread."""

    async def __init__(self, setup: ReplicaSetup) -> None:  # type: ignore[misc]  # Serve awaits it
        if setup.threads:
            torch.set_num_threads(setup.threads)
        model = load(setup.model, device=setup.device, dtype=setup.dtype)
        names = tuple(dict.fromkeys([model.speech.name, *setup.aliases]))
        self.service = Service(model, names, setup.limits, effort=setup.effort)
        self.answers = Answers(self.service)
        self.name = f"{os.getpid()}-{self.service.started}"
        await self.service.start()

    def check_health(self) -> None:
        """Ray starts another replica in place of one that raises here."""
        if not self.service.alive:
            raise SharpenError("the batch has ended")

    async def card(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The names of the model, and what is said about it."""
        return self.service.names, self.service.card

    @property
    def state(self) -> ReplicaState:
        return ReplicaState(self.name, self.service.metrics.counted())

    async def answer(self, form: Form, task: str) -> AsyncIterator[Item | ReplicaState]:
        """The answer to a form, piece by piece, and now and then how the replica is doing: Serve has no way to ask one
        that is busy. Where the caller cancels, the client has left.
        """
        made: asyncio.Queue[Item | None] = asyncio.Queue()
        working = asyncio.create_task(self._work(form, task, made))
        del form
        try:
            while True:
                try:
                    async with asyncio.timeout(TELLS):
                        item = await made.get()
                except TimeoutError:
                    yield self.state
                    continue
                if item is None:
                    return
                if isinstance(item, ApiError | RequestOutcome):
                    yield self.state
                yield item
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _work(self, form: Form, task: str, made: asyncio.Queue[Item | None]) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                made.put_nowait(Head(message["status"], tuple(message["headers"])))
            elif message.get("body"):
                made.put_nowait(bytes(message["body"]))

        try:
            with ExitStack() as stack:
                outcome = stack.enter_context(self.service.answering())
                response = await self.answers.reply(Request(SCOPE, _nothing_more), form, task, outcome, stack)
            del form
            await response(SCOPE, _nothing_more, send)
            made.put_nowait(outcome)
        except ApiError as error:
            made.put_nowait(error)
        except Exception:
            traceback.print_exc()
            made.put_nowait(broken())
        finally:
            made.put_nowait(None)


async def _nothing_more() -> Message:
    """A client that sends nothing more, and does not leave: of that its caller tells by cancelling."""
    await asyncio.Event().wait()
    raise AssertionError
