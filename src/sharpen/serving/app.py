"""The routes: HTTP in, HTTP out."""

from __future__ import annotations

import asyncio
import json
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
from sharpen.serving.contract import OWN_FIELDS, Ask, unknown_model
from sharpen.serving.errors import ApiError, request_name
from sharpen.serving.events import Finished, Told, sse
from sharpen.serving.form import discard, read_form
from sharpen.serving.page import Page, wants_page
from sharpen.serving.responses import MEDIA_TYPES, Stream, summary_header, transcript
from sharpen.serving.service import VANISHED, Following, RequestOutcome, Service
from sharpen.speech.decoding import initial_context

T = TypeVar("T")
PING = 15.0  # seconds without an event after which a stream sends a comment, so that no proxy closes it


def make_app(service: Service, origins: tuple[str, ...] = ()) -> ASGIApp:
    """The application; `origins` are the web pages of other hosts that may use it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    routes = _Routes(service)
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
    return _NamedRequests(app, service.limits.max_header)


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
    return json_response(ApiError(500, "the server made a mistake; it is in its log", None, "internal").body, 500)


class _Routes:
    def __init__(self, service: Service) -> None:
        self.service, self.page = service, Page()

    async def transcribe(self, request: Request) -> Response:
        return await self._answer(request, "transcribe")

    async def translate(self, request: Request) -> Response:
        return await self._answer(request, "translate")

    async def models(self, request: Request) -> Response:
        self._check_key(request)
        return json_response({"object": "list", "data": [self._model(name) for name in self.service.names]})

    async def one_model(self, request: Request) -> Response:
        self._check_key(request)
        name = request.path_params["name"]
        if name not in self.service.names:
            raise unknown_model(name, self.service.names)
        return json_response(self._model(name))

    async def live(self, request: Request) -> Response:
        alive = self.service.batch.alive or not self.service.ready
        return json_response({"live": alive}, 200 if alive else 503)

    async def health(self, request: Request) -> Response:
        alive = self.service.batch.alive
        ready = self.service.ready and alive and not self.service.draining
        return json_response(
            {"live": alive, "ready": ready, "draining": self.service.draining, "model": self.service.names[0]},
            200 if ready else 503,
            None if ready else {"retry-after": "1"},
        )

    async def metrics(self, request: Request) -> Response:
        self._check_key(request)
        return PlainTextResponse(self.service.metrics.text(), media_type=metrics.CONTENT_TYPE)

    async def index(self, request: Request) -> Response:
        if wants_page(request):
            return self.page.index(request)
        paths = ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/models", "/health", "/metrics"]
        return json_response({"name": "sharpen", "version": __version__, "paths": paths}, headers={"vary": "accept"})

    def _check_key(self, request: Request) -> None:
        self.service.keys.check(request.headers.get("authorization", ""))

    def _model(self, name: str) -> dict[str, Any]:
        service = self.service
        own = {
            "model": service.names[0],
            "fields": OWN_FIELDS,
            "effort": service.effort,
            "languages": service.languages,
            "max_steps": service.limits.max_steps,
            "max_samples": service.limits.max_samples,
            "max_deadline": service.limits.max_deadline,
            "max_seconds": service.limits.max_seconds,
            "max_upload": service.limits.max_upload,
        }
        return {"id": name, "object": "model", "created": service.started, "owned_by": "sharpen", "sharpen": own}

    async def _answer(self, request: Request, task: str) -> Response:
        with ExitStack() as stack:
            outcome = stack.enter_context(self.service.answering())
            ask, data = await self._form(request, task)
            following = await _unless_gone(request, self.service.follow(data, ask))
            del data  # recordings wait as samples; their files need not
            stack.callback(following.leave)
            if ask.stream:
                return self._stream(following, ask, outcome, stack.pop_all())
            result = await _unless_gone(request, _result(following))
        headers = {"x-sharpen": summary_header(result, ask)}
        content = transcript(result, ask, self.service.speech.tokenizer)
        if isinstance(content, str):
            return PlainTextResponse(content, headers=headers, media_type=MEDIA_TYPES[ask.response_format])
        return json_response(content, headers=headers)

    async def _form(self, request: Request, task: str) -> tuple[Ask, bytes]:
        body = aiter(request.stream())
        try:
            self._check_key(request)
            self.service.admit()
        except ApiError:
            await discard(body, self.service.limits)
            raise
        with self.service.uploading():
            kind, length = request.headers.get("content-type", ""), request.headers.get("content-length")
            form = await read_form(kind, length, body, self.service.limits)
        return self.service.understand(form, task)

    def _stream(self, following: Following, ask: Ask, outcome: RequestOutcome, stack: ExitStack) -> Response:
        """An error before the recording is queued has its own status; from here on it is an event."""
        told = Stream(ask, self.service.speech.tokenizer, len(initial_context(self.service.speech, ask.options)))
        outcome.word = VANISHED  # until it is known that the client has it all

        async def chunks() -> AsyncIterator[bytes]:
            event: Told | None = None
            try:
                while not isinstance(event, Finished):
                    event = await following.next(PING)
                    for chunk in [b": still here\n\n"] if event is None else told.told(event):
                        yield chunk
                outcome.word = "ok"
            except ApiError as error:
                outcome.word = error.code or str(error.status)
                yield sse(error.body)

        return _EventResponse(chunks(), stack)


class _EventResponse(StreamingResponse):
    """Server-sent events; what they hold is given back also where the client leaves before the first one."""

    def __init__(self, chunks: AsyncIterator[bytes], stack: ExitStack) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self.stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.stack:
            await super().__call__(scope, receive, send)


async def _result(following: Following) -> Finished:
    while not isinstance(event := await following.next(), Finished):
        pass
    return event


async def _unless_gone(request: Request, answer: Coroutine[Any, Any, T]) -> T:
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
