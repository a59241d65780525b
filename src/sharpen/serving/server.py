"""The process: a socket, signals, and an end that loses no answer."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import sys
import time
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sharpen.errors import SharpenError
from sharpen.serving.errors import ApiError, request_name
from sharpen.serving.limits import ServerLimits
from sharpen.serving.reception import Reception

HEADER_SECONDS = 10.0  # that a client has to send the headers of a request
KEEP_ALIVE = 5  # seconds
LAST_WORDS = 1.0  # seconds to tell those whose requests are not done in time


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, on so many connections, none of which may stay silent."""

    most = 256
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(_refusal(b"503 Service Unavailable", "too many connections", "too_many_connections"))
            transport.close()
            return
        self._watch(True)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch(self.conn.their_state is h11.IDLE and (self.cycle is None or bool(self.conn.trailing_data[0])))

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(False)
        super().connection_lost(exc)

    def _watch(self, waiting: bool) -> None:
        """Closes the connection if it waits too long for the rest of a request's headers."""
        if waiting and self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        elif not waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send_400_response(self, msg: str) -> None:
        """As an object, like every other error."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # otherwise an answer has begun
            self.transport.write(_refusal(b"400 Bad Request", "not HTTP, or its headers are too long", "invalid_http"))
        self.transport.close()


def _refusal(status: bytes, message: str, code: str) -> bytes:
    """A whole answer, for clients that do not get as far as the application."""
    error = ApiError(int(status[:3]), message, None, code)
    body = json.dumps(error.body).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_name()}\r\n"
    head += "retry-after: 1\r\n" if error.status == 503 else ""
    return b"HTTP/1.1 " + status + b"\r\nconnection: close\r\n" + head.encode() + b"\r\n" + body


class DrainingServer(uvicorn.Server):
    """A first signal stops new work and lets the old one finish; a second one ends at once."""

    def __init__(self, config: uvicorn.Config, service: Reception) -> None:
        super().__init__(config)
        self.service = service
        self._end = math.inf  # of the drain, on the clock of time.monotonic

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            shown, names = f"[{host}]" if ":" in host else host, ", ".join(self.service.names)
            print(f"sharpen: http://{shown}:{port} serves {names}", file=sys.stderr, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.draining or not self.started:
            os._exit(1)  # threads and processes end with this one; nothing is being written
        self._end = time.monotonic() + self.service.limits.drain
        self.service.draining = True
        print(f"sharpen: finishing what is in flight, for at most {self.service.limits.drain:g} s", file=sys.stderr)

    async def on_tick(self, counter: int) -> bool:
        if self.service.draining and (self.service.idle or time.monotonic() > self._end):
            if not self.service.idle:
                await self.service.end_rest()  # what is left is told so
                await asyncio.sleep(LAST_WORDS)
            self.should_exit = True
        return await super().on_tick(counter)


def serve(app: ASGIApp, service: Reception, host: str, port: int) -> None:
    """Serves until a signal; returns after the drain."""
    limits: ServerLimits = service.limits
    logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # it reports every broken form
    protocol = type("BoundedProtocol", (BoundedProtocol,), {"most": limits.max_connections})
    config = uvicorn.Config(
        app,
        http=protocol,
        loop="asyncio",  # whatever else is installed
        ws="none",
        lifespan="on",
        log_level="error",  # whatever strangers send is no reason to write
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(LAST_WORDS)),
        h11_max_incomplete_event_size=limits.max_header,
    )
    with _bound(host, port) as listener:
        DrainingServer(config, service).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise SharpenError(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from error
    return listener
