"""The application in front of replicas: the same routes and errors as with one model, the work is elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from sharpen.serving.errors import ApiError, broken
from sharpen.serving.events import sse
from sharpen.serving.reception import VANISHED, RequestOutcome
from sharpen.serving.replica import Head
from sharpen.serving.replicas import RemoteAnswer, Replicas
from sharpen.serving.routes import EventResponse, Routes, application, unless_gone

EVENTS = b"text/event-stream"


def make_gateway(replicas: Replicas, origins: tuple[str, ...] = ()) -> ASGIApp:
    """The application; `origins` are the web pages of other hosts that may use it."""
    return application(Gateway(replicas), origins)


class Gateway(Routes):
    """The routes, with replicas behind them."""

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(replicas)
        self.replicas = replicas

    async def answer(self, request: Request, task: str) -> Response:
        with ExitStack() as stack:
            outcome = stack.enter_context(self.replicas.answering())
            answer = stack.enter_context(self.replicas.asked(await self.form(request), task))
            head = await unless_gone(request, answer.next())
            if not isinstance(head, Head):
                raise broken()
            if any(name == b"content-type" and value.startswith(EVENTS) for name, value in head.headers):
                outcome.word = VANISHED  # until it is known that the client has it all
                return EventResponse(_chunks(answer, outcome), stack.pop_all())
            response = Response(await unless_gone(request, _body(answer, outcome)), head.status)
            response.raw_headers = list(head.headers)
            return response


async def _body(answer: RemoteAnswer, outcome: RequestOutcome) -> bytes:
    return b"".join([chunk async for chunk in _pieces(answer, outcome)])


async def _chunks(answer: RemoteAnswer, outcome: RequestOutcome) -> AsyncIterator[bytes]:
    """The bytes of a stream; where it breaks off, an event says why."""
    try:
        async for chunk in _pieces(answer, outcome):
            yield chunk
    except ApiError as error:
        outcome.word = error.code or str(error.status)
        yield sse(error.body)


async def _pieces(answer: RemoteAnswer, outcome: RequestOutcome) -> AsyncIterator[bytes]:
    while (item := await answer.next()) is not None:
        if isinstance(item, bytes):
            yield item
        elif isinstance(item, RequestOutcome):
            outcome.word = item.word
