"""Audio files from strangers, decoded in processes of their own: a crash or a bomb there costs one request."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from typing import Any

import numpy as np

from sharpen.serving.errors import ApiError
from sharpen.serving.limits import ServerLimits
from sharpen.serving.media_process import LENGTH
from sharpen.serving.metrics import Metrics
from sharpen.speech.audio import Audio

START_SECONDS = 60.0  # that a new process has to get ready


class MediaReader:
    """A few processes, each of which decodes one file at a time."""

    def __init__(self, limits: ServerLimits, metrics: Metrics, sampling_rate: int) -> None:
        self.limits, self.metrics, self.rate = limits, metrics, sampling_rate
        self._idle: asyncio.Queue[Process | None] = asyncio.Queue()  # None: to be started
        self._running: set[Process] = set()

    async def start(self) -> None:
        for process in await asyncio.gather(*(self._started() for _ in range(self.limits.media_processes))):
            self._idle.put_nowait(process)

    async def stop(self) -> None:
        for process in list(self._running):
            await self._end(process)

    async def read(self, data: bytes) -> Audio:
        """The audio in the bytes of a file."""
        process = await self._idle.get()
        keep: Process | None = None
        try:
            if process is None or process.returncode is not None:
                if process is not None:
                    await self._end(process)
                    self.metrics.add("media_restarts_total")
                process = await self._started()
            header, payload = await self._ask(process, data)
            keep = process
        finally:
            if keep is None and process is not None:  # it broke, took too long, or the client left while it worked
                await self._end(process)
                self.metrics.add("media_restarts_total")
            self._idle.put_nowait(keep)
        return self._audio(header, payload)

    def _audio(self, header: dict[str, Any], payload: bytes) -> Audio:
        kind, message = header["kind"], header.get("error", "")
        if kind == "done":
            return Audio(np.frombuffer(payload, np.float32), self.rate, skipped=header["skipped"])
        if kind == "long":
            raise ApiError(413, f"file: {message}", "file", "audio_too_long")
        if kind == "audio":
            raise ApiError(400, f"file: {message}", "file", "invalid_file")
        raise ApiError(422, f"file: it could not be decoded ({message})", "file", "media_failed")

    async def _ask(self, process: Process, data: bytes) -> tuple[dict[str, Any], bytes]:
        limits = self.limits.reading
        request = {"seconds": limits.seconds, "samples": limits.samples, "formats": limits.formats, "rate": self.rate}
        try:
            async with asyncio.timeout(self.limits.media_seconds):
                await _write(process, request, data)
                return await _read(process)
        except TimeoutError as error:
            message = f"file: decoding it took longer than {self.limits.media_seconds:g} seconds"
            raise ApiError(422, message, "file", "media_failed") from error
        except (OSError, EOFError, ValueError) as error:
            await self._end(process)
            message = f"file: the media decoder ended while it read this file (code {process.returncode})"
            raise ApiError(422, message, "file", "media_failed") from error

    async def _started(self) -> Process:
        command = [sys.executable, "-P", "-m", "sharpen.serving.media_process", str(self.limits.media_memory)]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
        )  # a session of its own: Ctrl-C is for the server, which still needs it
        self._running.add(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await _read(process)  # it is ready
        except (OSError, EOFError, TimeoutError) as error:
            await self._end(process)
            raise ApiError(503, "the media decoder does not start", None, "media_unavailable", 5.0) from error
        return process

    async def _end(self, process: Process) -> None:
        assert process.stdout is not None
        if process.stdout.at_eof():  # it ends by itself: killing it now would lose its exit code
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 1.0)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._running.discard(process)


async def _write(process: Process, header: dict[str, Any], payload: bytes) -> None:
    assert process.stdin is not None
    text = json.dumps({**header, "size": len(payload)}).encode()
    process.stdin.write(LENGTH.pack(len(text)) + text)
    process.stdin.write(payload)
    await process.stdin.drain()


async def _read(process: Process) -> tuple[dict[str, Any], bytes]:
    assert process.stdout is not None
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    header = json.loads(await process.stdout.readexactly(length))
    return header, await process.stdout.readexactly(header["size"])
