"""Damaged files and malformed requests: a transcript or a 4xx, and the server goes on in the memory it had."""

import asyncio
import io
import os
import random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import av
import pytest
from serving.running import LETTER, SAID, Running
from speechlike import EXAMPLES

from sharpen.serving.errors import ApiError
from sharpen.serving.limits import ServerLimits
from sharpen.serving.media import MediaReader
from sharpen.serving.metrics import Metrics
from sharpen.speech.audio import read_audio

SEEDS = [(EXAMPLES / name).read_bytes() for name in ("letter.flac", "market.mp3", "glacier.m4a", "station.ogg")]
GROWTH = 300  # MB that the server may grow by
FILES = int(os.environ.get("SHARPEN_FUZZ", "2000"))  # of the long test


@pytest.fixture(scope="module")
def server():
    limits = ["--max-seconds", "30", "--upload-seconds", "5", "--media-seconds", "10"]
    with Running(*limits, "--threads", "2") as running:
        yield running


@pytest.fixture(scope="module")
def short():
    """A second of speech in six containers: little work for the model, and more of each file is header."""
    samples = read_audio(LETTER, sampling_rate=48_000).samples[:48_000]
    frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
    frame.sample_rate = 48_000

    def encoded(container, codec):
        file = io.BytesIO()
        with av.open(file, "w", format=container) as out:
            stream = out.add_stream(codec, rate=48_000, layout="mono")
            for part in (frame, None):
                out.mux(stream.encode(part))
        return file.getvalue()

    kinds = {"wav": "pcm_f32le", "flac": "flac", "mp3": "libmp3lame", "mp4": "aac", "ogg": "libopus", "webm": "libopus"}
    return [encoded(container, codec) for container, codec in kinds.items()]


def mutated(rng, seeds):
    """One of the files, damaged in one of several ways."""
    data = bytearray(rng.choice(seeds))
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
        other = rng.choice(seeds)
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


@dataclass(frozen=True)
class FuzzResult:
    """How many got which status, 0 where the connection was closed without one, and the server's memory in MB."""

    files: Counter
    requests: Counter
    memory: tuple[float, ...]  # before, after each quarter of the files, at the end
    most: float

    def __str__(self):
        def counts(found):
            return ", ".join(f"{count} x {status}" for status, count in sorted(found.items()))

        memory = ", ".join(f"{megabytes:.0f}" for megabytes in self.memory)
        return (
            f"files: {counts(self.files)}; requests: {counts(self.requests)}; "
            f"memory before, by quarters and at the end: {memory} MB, at most {self.most:.0f} MB"
        )


def fuzz(server, seeds, files, requests, seed):
    rng = random.Random(seed)
    assert SAID in server.post().json()["text"]
    memory, damaged = [server.memory()], Counter()

    def status(data):
        answer = server.post(file=data, temperature="0.1")  # one sample, no fallback
        assert "text" in answer.json() if answer.status_code == 200 else answer.json()["error"]["code"]
        return answer.status_code

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            damaged.update(pool.map(status, [mutated(rng, seeds) for _ in range(files // 4)]))
            memory.append(server.memory())
        broken = Counter(pool.map(lambda data: send(server, data), [malformed(rng) for _ in range(requests)]))
    found = FuzzResult(damaged, broken, (*memory, server.memory()), server.memory("VmHWM"))
    assert set(damaged) <= {200, 400, 413, 422}, found
    assert files / 10 < damaged[200] < files
    assert all(status == 0 or status == 200 or 400 <= status < 500 for status in broken), found
    assert sum(count for status, count in broken.items() if 400 <= status < 500) > requests / 2
    assert SAID in server.post().json()["text"]
    assert server.process.poll() is None
    assert found.most < memory[0] + GROWTH, found
    assert not [line for line in server.said if "Traceback" in line], "".join(server.said)
    return found


def test_damaged_files_and_malformed_requests(server, short):
    fuzz(server, SEEDS + short, files=60, requests=60, seed=1)


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

        found = await asyncio.gather(*(status(mutated(rng, SEEDS)) for _ in range(2000)))
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
def test_2000_damaged_files_and_500_malformed_requests(server, short):
    begin = time.monotonic()
    found = fuzz(server, short, files=FILES, requests=500, seed=2)
    print(f"{found}; {time.monotonic() - begin:.0f} s")
