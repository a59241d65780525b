"""The routes that every server has, and what all answers have in common: names, errors, bounds on headers."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sharpen import __version__
from sharpen.serving import metrics
from sharpen.serving.contract import unknown_model
from sharpen.serving.errors import ApiError, broken, request_name
from sharpen.serving.form import Form, discard, read_form
from sharpen.serving.page import Page, wants_page
from sharpen.serving.reception import VANISHED, Reception

T = TypeVar("T")


def application(routes: Routes, origins: tuple[str, ...] = ()) -> ASGIApp:
    """The application; `origins` are the web pages of other hosts that may use it."""
    reception = routes.reception

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await reception.start()
        yield
        await reception.stop()

    cors = [Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"],
                       expose_headers=["x-request-id", "retry-after", "x-sharpen"])]  # fmt: skip
    app = Starlette(
        routes=[
            Route("/v1/audio/transcriptions", routes.transcribe, methods=["POST"]),
            Route("/v1/audio/translations", routes.translate, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.one_model),
            Route("/health", routes.health),
            Route("/health/live", routes.live),
            Route("/health/ready", routes.health),
            Route("/metrics", routes.metrics),
            Route("/", routes.index),
            Route("/assets/{name}", routes.page.asset),
        ],
        middleware=cors if origins else [],
        exception_handlers={ApiError: _refused, HTTPException: _no_route, ClientDisconnect: _gone, Exception: _broke},
        lifespan=lifespan,
    )
    return _NamedRequests(app, reception.limits.max_header)


class _NamedRequests:
    """Gives every answer a name, by which a log and a client can speak about it; refuses headers that are too long."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = request_name()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif sum(len(key) + len(value) for key, value in scope["headers"]) + len(scope["raw_path"]) > self.most:
            error = ApiError(431, f"the headers are longer than {self.most} bytes", None, "headers_too_long")
            await json_response(error.body, error.status)(scope, receive, named)
        else:
            await self.app(scope, receive, named)


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(text, status, headers, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return json_response(error.body, error.status, error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return json_response(ApiError(error.status_code, message, None, "not_found").body, error.status_code)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


async def _broke(request: Request, error: Exception) -> Response:
    return json_response(broken().body, 500)


class Routes(ABC):
    """What is asked for; how a recording is answered is left to those that can."""

    def __init__(self, reception: Reception) -> None:
        self.reception, self.page = reception, Page()

    @abstractmethod
    async def answer(self, request: Request, task: str) -> Response:
        """The transcript or translation of the recording in the request."""

    async def transcribe(self, request: Request) -> Response:
        return await self.answer(request, "transcribe")

    async def translate(self, request: Request) -> Response:
        return await self.answer(request, "translate")

    async def models(self, request: Request) -> Response:
        self._check_key(request)
        return json_response({"object": "list", "data": [self._model(name) for name in self.reception.names]})

    async def one_model(self, request: Request) -> Response:
        self._check_key(request)
        name = request.path_params["name"]
        if name not in self.reception.names:
            raise unknown_model(name, self.reception.names)
        return json_response(self._model(name))

    async def live(self, request: Request) -> Response:
        alive = self.reception.alive or not self.reception.ready
        return json_response({"live": alive}, 200 if alive else 503)

    async def health(self, request: Request) -> Response:
        said = await self.reception.health()
        return json_response(said) if said["ready"] else json_response(said, 503, {"retry-after": "1"})

    async def metrics(self, request: Request) -> Response:
        self._check_key(request)
        return PlainTextResponse(await self.reception.metrics_text(), media_type=metrics.CONTENT_TYPE)

    async def index(self, request: Request) -> Response:
        if wants_page(request):
            return self.page.index(request)
        paths = ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/models", "/health", "/metrics"]
        return json_response({"name": "sharpen", "version": __version__, "paths": paths}, headers={"vary": "accept"})

    def _check_key(self, request: Request) -> None:
        self.reception.keys.check(request.headers.get("authorization", ""))

    def _model(self, name: str) -> dict[str, Any]:
        own, created = self.reception.card, self.reception.started
        return {"id": name, "object": "model", "created": created, "owned_by": "sharpen", "sharpen": own}

    async def form(self, request: Request) -> Form:
        """What the client sends, once it is let in."""
        body = aiter(request.stream())
        try:
            self._check_key(request)
            self.reception.admit()
        except ApiError:
            await discard(body, self.reception.limits)
            raise
        with self.reception.uploading():
            kind, length = request.headers.get("content-type", ""), request.headers.get("content-length")
            return await read_form(kind, length, body, self.reception.limits)


class EventResponse(StreamingResponse):
    """Server-sent events; what they hold is given back also where the client leaves before the first one."""

    def __init__(self, chunks: AsyncIterator[bytes], stack: ExitStack) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self.stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.stack:
            await super().__call__(scope, receive, send)


async def unless_gone(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """What is waited for, unless the client leaves first: then it is cancelled."""
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(400, "the client left before the answer", None, VANISHED)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
