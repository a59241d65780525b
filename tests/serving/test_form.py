"""Multipart bodies, whole and broken."""

import asyncio

import pytest

from sharpen.serving.errors import ApiError
from sharpen.serving.form import read_form
from sharpen.serving.limits import ServerLimits

LIMITS = ServerLimits(max_upload=0.01, max_fields=4, max_field=100, upload_seconds=0.3)


def part(name, data, file=False):
    name = f'name="{name}"' + ('; filename="a.wav"' if file else "")
    return b"--XX\r\nContent-Disposition: form-data; " + name.encode() + b"\r\n\r\n" + data + b"\r\n"


def read(body, kind="multipart/form-data; boundary=XX", size=7, length=None, pause=0.0):
    read_bytes = 0

    async def chunks():
        nonlocal read_bytes
        for i in range(0, len(body), size):
            await asyncio.sleep(pause)
            read_bytes = min(len(body), i + size)
            yield body[i : i + size]

    try:
        return asyncio.run(read_form(kind, length, chunks(), LIMITS))
    except ApiError as error:
        error.read = read_bytes
        raise


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_fields_and_the_file(size):
    body = (
        part("model", b"tiny") + part("include[]", b"a") + part("include[]", b"b") + part("file", b"\x00\r\n--X", True)
    )
    form = read(body + b"--XX--\r\n", size=size)
    assert form.fields == {"model": ("tiny",), "include[]": ("a", "b")}
    assert form.file == b"\x00\r\n--X"


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{}", "application/json", 415, "unsupported_media_type"),
        (b"", "", 415, "unsupported_media_type"),
        (b"", "multipart/form-data", 400, "invalid_form"),
        (b"x", "multipart/form-data; boundary=" + "y" * 500, 400, "invalid_form"),
        (part("model", b"x"), None, 400, "invalid_form"),
        (b"garbage" * 10, None, 400, "invalid_form"),
        (b'--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XX--\r\n', None, 400, "invalid_form"),
        (part("a", b"\xff\xfe") + b"--XX--\r\n", None, 400, "invalid_form"),
        (part("a", b"x" * 101) + b"--XX--\r\n", None, 400, "field_too_long"),
        (part("a", b"x") * 5 + b"--XX--\r\n", None, 400, "too_many_fields"),
        (part("file", b"x", True) * 2 + b"--XX--\r\n", None, 400, "invalid_form"),
        (part("file", b"x" * 11_000, True) + b"--XX--\r\n", None, 413, "file_too_large"),
    ],
)  # fmt: skip
def test_broken_bodies(body, kind, status, code):
    with pytest.raises(ApiError) as caught:
        read(body, kind if kind is not None else "multipart/form-data; boundary=XX", size=500)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert caught.value.read == len(body)  # a client that is still sending would not see the answer


def test_a_length_that_is_too_large_is_refused_by_its_header():
    with pytest.raises(ApiError) as caught:
        read(part("file", b"x", True), length="999999999")
    assert caught.value.status == 413


def test_a_slow_upload_ends():
    body = part("file", b"x" * 1000, True) + b"--XX--\r\n"
    with pytest.raises(ApiError) as caught:
        read(body, size=10, pause=0.05)
    assert (caught.value.status, caught.value.code) == (408, "upload_too_slow")
