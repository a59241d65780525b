"""The application of one model: a recording in, its transcript out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from sharpen.serving.contract import Ask
from sharpen.serving.errors import ApiError
from sharpen.serving.events import Finished, Told, sse
from sharpen.serving.form import Form
from sharpen.serving.reception import VANISHED, RequestOutcome
from sharpen.serving.responses import MEDIA_TYPES, Stream, summary_header, transcript
from sharpen.serving.routes import EventResponse, Routes, application, json_response, unless_gone
from sharpen.serving.service import Following, Service
from sharpen.speech.decoding import initial_context

PING = 15.0  # seconds without an event after which a stream sends a comment, so that no proxy closes it


def make_app(service: Service, origins: tuple[str, ...] = ()) -> ASGIApp:
    """The application; `origins` are the web pages of other hosts that may use it."""
    return application(Answers(service), origins)


class Answers(Routes):
    """The routes, with the model behind them."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.service = service

    async def answer(self, request: Request, task: str) -> Response:
        with ExitStack() as stack:
            outcome = stack.enter_context(self.service.answering())
            return await self.reply(request, await self.form(request), task, outcome, stack)

    async def reply(
        self, request: Request, form: Form, task: str, outcome: RequestOutcome, stack: ExitStack
    ) -> Response:
        """The answer to a form. A stream takes over what the stack holds."""
        ask, data = self.service.understand(form, task)
        following = await unless_gone(request, self.service.follow(data, ask))
        del data, form  # recordings wait as samples; their files need not
        stack.callback(following.leave)
        if ask.stream:
            return self._stream(following, ask, outcome, stack.pop_all())
        result = await unless_gone(request, _result(following))
        headers = {"x-sharpen": summary_header(result, ask)}
        content = transcript(result, ask, self.service.speech.tokenizer)
        if isinstance(content, str):
            return PlainTextResponse(content, headers=headers, media_type=MEDIA_TYPES[ask.response_format])
        return json_response(content, headers=headers)

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

        return EventResponse(chunks(), stack)


async def _result(following: Following) -> Finished:
    while not isinstance(event := await following.next(), Finished):
        pass
    return event
