"""A multipart form, read in memory and within limits; nothing is spooled to disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sharpen.serving.errors import ApiError
from sharpen.serving.limits import MEGABYTE, ServerLimits

DISCARDED = 4  # times the largest upload: what is read of a request that is refused, so that it sees the answer


@dataclass(frozen=True)
class Form:
    """The fields of a request, each with all its values, and the file."""

    fields: Mapping[str, tuple[str, ...]]
    file: bytes | None


@dataclass
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    is_file: bool = False
    data: bytearray = field(default_factory=bytearray)


class _Collector:
    """Gathers the parts of a form as the parser finds them."""

    def __init__(self, boundary: bytes, limits: ServerLimits) -> None:
        self.limits = limits
        self.fields: dict[str, list[str]] = {}
        self.file: bytes | None = None
        self.complete = False
        self._part = _Part()
        self._key, self._value = b"", b""
        self._count = 0
        calls = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end",
                 "headers_finished", "end")  # fmt: skip
        self._parser = MultipartParser(boundary, {f"on_{name}": getattr(self, f"_{name}") for name in calls})  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise ApiError(400, f"the form cannot be read: {error}", None, "invalid_form") from error

    def _part_begin(self) -> None:
        self._part = _Part()
        self._count += 1
        if self._count > self.limits.max_fields:
            raise ApiError(400, f"more than {self.limits.max_fields} fields", None, "too_many_fields")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._key += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._part.headers[self._key.lower()] = self._value
        self._key, self._value = b"", b""

    def _headers_finished(self) -> None:
        kind, options = parse_options_header(self._part.headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"")
        if kind != b"form-data" or not name:
            raise ApiError(400, "a part of the form has no name", None, "invalid_form")
        self._part.name = name.decode("utf-8", "replace")[:200]
        self._part.is_file = self._part.name == "file"
        if self._part.is_file and self.file is not None:
            raise ApiError(400, "file: given twice; send one file", "file", "invalid_form")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._part.data += data[start:end]
        if not self._part.is_file and len(self._part.data) > self.limits.max_field:
            raise ApiError(
                400, f"{self._part.name}: longer than {self.limits.max_field} bytes", self._part.name, "field_too_long"
            )

    def _part_end(self) -> None:
        if self._part.is_file:
            self.file = bytes(self._part.data)
        else:
            try:
                text = self._part.data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ApiError(400, f"{self._part.name}: not UTF-8", self._part.name, "invalid_form") from error
            self.fields.setdefault(self._part.name, []).append(text)
        self._part = _Part()

    def _end(self) -> None:
        self.complete = True


async def read_form(content_type: str, length: str | None, body: AsyncIterator[bytes], limits: ServerLimits) -> Form:
    """The form in a request's body. A body that is refused is read to its end first, within limits: a client that is
    still sending does not look at an answer.
    """
    try:
        async with asyncio.timeout(limits.upload_seconds):
            try:
                return await _read(content_type, length, body, limits)
            except ApiError:
                await discard(body, limits)
                raise
    except TimeoutError as error:
        message = f"the upload took longer than {limits.upload_seconds:g} seconds"
        raise ApiError(408, message, None, "upload_too_slow") from error


async def discard(body: AsyncIterator[bytes], limits: ServerLimits) -> None:
    """Reads the rest of a body and keeps nothing of it."""
    left = DISCARDED * limits.upload_bytes
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.upload_seconds):
            async for chunk in body:
                left -= len(chunk)
                if left < 0:
                    return


async def _read(content_type: str, length: str | None, body: AsyncIterator[bytes], limits: ServerLimits) -> Form:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        seen = content_type.partition(";")[0] or "none"
        raise ApiError(415, f"the content type is {seen}; send multipart/form-data", None, "unsupported_media_type")
    if b"boundary" not in options:
        raise ApiError(400, "the content type multipart/form-data has no boundary", None, "invalid_form")
    most = limits.upload_bytes + limits.max_field  # the file, and the other fields beside it
    if length is not None and length.isdecimal() and int(length) > most:
        raise _too_large(limits)
    try:
        collector = _Collector(options[b"boundary"], limits)
    except FormParserError as error:
        raise ApiError(400, f"the form cannot be read: {error}", None, "invalid_form") from error
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > most:
            raise _too_large(limits)
        collector.write(chunk)
    if not collector.complete:
        raise ApiError(400, "the form is cut off: its last boundary is missing", None, "invalid_form")
    return Form({name: tuple(values) for name, values in collector.fields.items()}, collector.file)


def _too_large(limits: ServerLimits) -> ApiError:
    size = limits.upload_bytes / MEGABYTE
    return ApiError(413, f"the upload is larger than {size:g} MB, the most that is accepted", "file", "file_too_large")
