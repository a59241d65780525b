"""Damaged files and malformed requests: a transcript or a 4xx, and the server goes on in the memory it had."""

import asyncio
import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving.running import LETTER, SAID, Running
from speechlike import EXAMPLES

from sharpen.serving.errors import ApiError
from sharpen.serving.limits import ServerLimits
from sharpen.serving.media import MediaReader
from sharpen.serving.metrics import Metrics

SEEDS = [(EXAMPLES / name).read_bytes() for name in ("letter.flac", "market.mp3", "glacier.m4a", "station.ogg")]
GROWTH = 300  # MB that the server may grow by


@pytest.fixture(scope="module")
def server():
    with Running("--max-seconds", "30", "--upload-seconds", "5", "--media-seconds", "10") as running:
        yield running


def mutated(rng):
    """One of the examples, damaged in one of several ways."""
    data = bytearray(rng.choice(SEEDS))
    kind = rng.randrange(6)
    if kind == 0:
        del data[rng.randrange(len(data)) :]
    elif kind == 1:
        for _ in range(rng.randrange(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:  # mostly in the headers
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(min(200, len(data)))] = rng.randrange(256)
    elif kind == 3:
        at = rng.randrange(len(data))
        data[at:at] = rng.randbytes(rng.randrange(1, 3000))
    elif kind == 4:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(1, 3000)] = b"\xff" * rng.randrange(1, 3000)
    else:  # the head of one file, the tail of another
        other = rng.choice(SEEDS)
        data = data[: rng.randrange(1, 2000)] + other[rng.randrange(len(other)) :]
    return bytes(data)


def malformed(rng):
    """Bytes that are nearly a request."""
    boundary = rng.choice([*[b"XX"] * 6, b"", b"y" * rng.randrange(1, 400), b"a b"])
    parts = [b'--XX\r\ncontent-disposition: form-data; name="model"\r\n\r\ntiny.en\r\n',
             b'--XX\r\ncontent-disposition: form-data; name="effort"\r\n\r\nplain\r\n',
             b'--XX\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + LETTER[:2000] + b"\r\n",
             b'--XX\r\ncontent-disposition: form-data; name="temperature"\r\n\r\n' + rng.randbytes(8) + b"\r\n",
             b"--XX\r\n\r\n\r\n", b"--XX\r\nx: y\r\n", b"--XX--\r\n", rng.randbytes(200)]  # fmt: skip
    body = b"".join(rng.choice(parts) for _ in range(rng.randrange(1, 8)))
    length = rng.choice([*[str(len(body))] * 12, "-1", "x", "99999999999999", ""]).encode()
    kind = rng.choice([b"multipart/form-data; boundary=" + boundary, b"multipart/form-data", b"text/plain", b""])
    method = rng.choice([*[b"POST"] * 9, b"GET", b"PUT", rng.randbytes(3)])
    path = rng.choice(
        [*[b"/v1/audio/transcriptions"] * 6, b"/v1/audio/translations", b"/v1/models/%ff%00", b"//", b"*"]
    )
    head = b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %b\r\n\r\n" % (method, path, kind, length)
    data = bytearray(head + body)
    for _ in range(rng.choice([0, 0, 1, 5])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def send(server, data):
    """The status of the answer, or 0 where the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        answer = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                answer += chunk
        except ConnectionError:
            pass
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def fuzz(server, files, requests, seed):
    rng = random.Random(seed)
    assert SAID in server.post().json()["text"]
    before = server.memory()
    with ThreadPoolExecutor(4) as pool:
        data = [mutated(rng) for _ in range(files)]
        answers = list(pool.map(lambda file: server.post(file=file, temperature="1"), data))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {200, 400, 413, 422}, statuses
        for answer in answers:
            assert "text" in answer.json() if answer.status_code == 200 else answer.json()["error"]["code"]
        assert statuses.count(200) > files / 10
        assert statuses.count(200) < files
        found = list(pool.map(lambda request: send(server, request), [malformed(rng) for _ in range(requests)]))
    assert all(status == 0 or status == 200 or 400 <= status < 500 for status in found), found
    assert sum(400 <= status < 500 for status in found) > requests / 2
    assert SAID in server.post().json()["text"]
    assert server.process.poll() is None
    assert server.memory() < before + GROWTH
    assert not [line for line in server.said if "Traceback" in line], "".join(server.said)
    return {status: (statuses + found).count(status) for status in sorted(set(statuses + found))}


def test_damaged_files_and_malformed_requests(server):
    fuzz(server, files=60, requests=60, seed=1)


def test_2000_damaged_files_and_the_process_that_reads_them():
    rng = random.Random(3)

    async def statuses():
        reader = MediaReader(ServerLimits(max_seconds=30, media_seconds=10), Metrics(), 16_000)
        await reader.start()

        async def status(data):
            try:
                return 200 if len((await reader.read(data)).samples) else 0
            except ApiError as error:
                return error.status

        found = await asyncio.gather(*(status(mutated(rng)) for _ in range(2000)))
        last = await reader.read(LETTER)
        await reader.stop()
        return found, last, reader.metrics.value("media_restarts_total")

    found, last, restarts = asyncio.run(statuses())
    assert set(found) <= {200, 400, 413, 422}
    assert found.count(200) > 500
    assert found.count(400) > 200
    assert restarts <= found.count(422)
    assert last.duration == 3.18


@pytest.mark.long
def test_many_damaged_files_and_malformed_requests(server):
    files = int(os.environ.get("SHARPEN_FUZZ", "120"))  # a full run: 2000
    print(fuzz(server, files=files, requests=500, seed=2))
