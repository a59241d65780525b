"""The process that decodes files: what it refuses, what it survives, what it can reach."""

import asyncio
import io
import os
import signal
import struct
import wave

import av
import numpy as np
import pytest
from speechlike import EXAMPLES

from sharpen.serving.errors import ApiError
from sharpen.serving.limits import ServerLimits
from sharpen.serving.media import MediaReader
from sharpen.serving.metrics import Metrics
from sharpen.speech.audio import read_audio

FERRY = (EXAMPLES / "ferry.flac").read_bytes()
LIMITS = ServerLimits(max_seconds=60, max_decoded=4_000_000, media_processes=1, media_seconds=10, media_memory=256)


def reading(work, limits=LIMITS):
    """Runs `work` with a reader that has one process."""

    async def run():
        reader = MediaReader(limits, Metrics(), 16_000)
        await reader.start()
        try:
            return await work(reader)
        finally:
            await reader.stop()

    return asyncio.run(run())


def refusals(*files, limits=LIMITS):
    """The error for each file, or None, from one process."""

    async def work(reader):
        found = []
        for file in files:
            try:
                await reader.read(file)
                found.append(None)
            except ApiError as error:
                found.append(error)
        return found, reader.metrics.value("media_restarts_total")

    return reading(work, limits)


def wav(samples, channels=1, rate=16_000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.asarray(samples, np.int16).tobytes())
    return file.getvalue()


def flac(seconds):
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as out:
        stream = out.add_stream("flac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.int16), format="s16", layout="mono")
        frame.sample_rate = 16_000
        for _ in range(seconds):
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize("name", ["ferry.flac", "market.mp3", "glacier.m4a", "harbour.ogg"])
def test_the_samples_are_those_that_the_library_reads(name):
    data = (EXAMPLES / name).read_bytes()
    audio = reading(lambda reader: reader.read(data))
    assert np.array_equal(audio.samples, read_audio(data).samples)


def test_a_hundred_channels_are_mixed():
    audio = reading(lambda reader: reader.read(wav(np.full(100 * 8000, 1000), channels=100)))
    assert len(audio.samples) == 8000


def test_bad_files_cost_one_request_each_and_no_process():
    errors, restarts = refusals(b"", b"not audio", FERRY[:50], flac(61), wav(np.zeros(8 * 600_000), channels=8), FERRY)
    codes = [error and (error.status, error.code) for error in errors]
    bad, long = (400, "invalid_file"), (413, "audio_too_long")
    assert codes == [bad, bad, bad, long, long, None]
    assert restarts == 0


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def full(kind: bytes, *parts: bytes) -> bytes:
    return box(kind, bytes(4), *parts)


def alias(target: str) -> bytes:
    """A Macintosh alias record with an absolute path, the kind of reference that FFmpeg can follow."""
    path = target.encode() + bytes(len(target) % 2)
    levels, end = struct.pack(">HH", 1, 1), struct.pack(">HH", 0xFFFF, 0)
    return full(b"alis", bytes(130), levels, bytes(16), struct.pack(">HH", 2, len(path)), path, end)


def reference_movie(reference: bytes) -> bytes:
    """A movie whose 8000 samples are said to lie in another file, from byte 44 on."""
    entry = struct.pack(">6xHHHIHHHHI", 1, 0, 0, 0, 1, 16, 0, 0, 16_000 << 16)
    table = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", 1), box(b"sowt", entry)),
        full(b"stts", struct.pack(">III", 1, 8000, 1)),
        full(b"stsc", struct.pack(">IIII", 1, 1, 8000, 1)),
        full(b"stsz", struct.pack(">II", 2, 8000)),
        full(b"stco", struct.pack(">II", 1, 44)),
    )
    where = box(b"dinf", full(b"dref", struct.pack(">I", 1), reference))
    header = full(b"mdhd", struct.pack(">IIIII", 0, 0, 16_000, 8000, 0))
    handler = full(b"hdlr", bytes(4), b"soun", bytes(13))
    media = box(b"mdia", header, handler, box(b"minf", full(b"smhd", bytes(4)), where, table))
    movie = full(b"mvhd", struct.pack(">IIII", 0, 0, 16_000, 8000), bytes(80))
    return box(b"ftyp", b"qt  ", bytes(4)) + box(b"moov", movie, box(b"trak", full(b"tkhd", bytes(80)), media))


@pytest.fixture
def secret(tmp_path):
    """A file with a loud tone, which nobody has uploaded."""
    path = tmp_path / "secret.wav"
    path.write_bytes(wav(20_000 * np.sin(np.arange(16_000))))
    return path


def test_lists_of_other_files_are_not_opened(secret):
    data = "data:audio/wav;base64,UklGRiQAAABXQVZFZm10IA=="
    lists = [
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{url}\n#EXT-X-ENDLIST\n"
        for url in (f"file://{secret}", str(secret), data, "http://127.0.0.1:9/a.wav", f"concat:{secret}|{secret}")
    ]
    lists += [f"ffconcat version 1.0\nfile '{secret}'\n", f"ffconcat version 1.0\nfile 'file://{secret}'\n"]
    lists += [f"concat:{secret}", f"file '{secret}'\n", f"<?xml version='1.0'?><MPD><BaseURL>{secret}</BaseURL></MPD>"]
    lists += [f"v=0\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\na=x:{secret}\n", f"[playlist]\nFile1={secret}\n"]
    errors, _ = refusals(*(text.encode() for text in lists))
    assert [error and (error.status, error.code) for error in errors] == [(400, "invalid_file")] * len(lists)


def test_a_movie_that_refers_to_another_file_has_no_sound(secret, tmp_path):
    movie = reference_movie(alias(str(secret)))
    (tmp_path / "movie.mov").write_bytes(movie)
    with av.open(str(tmp_path / "movie.mov"), options={"enable_drefs": "1", "use_absolute_path": "1"}) as container:
        heard = next(container.decode(audio=0)).to_ndarray()
    assert np.abs(heard).max() > 10_000, "told to, FFmpeg follows the reference: this is a file to be afraid of"
    errors, _ = refusals(movie)
    assert (errors[0].status, errors[0].code) == (400, "invalid_file")
    for url in (f"file://{secret}", "data:audio/wav;base64,UklGR", secret):
        data = reference_movie(full(b"url ", f"{url}\0".encode()))
        audio = reading(lambda reader, data=data: reader.read(data))
        own = np.frombuffer(data, "<i2", offset=44, count=len(audio.samples))  # such a reference is ignored
        assert np.array_equal(audio.samples * 32768, own)


def test_the_process_can_open_nothing():
    """Beyond what FFmpeg is told: the process has no free handle for a file or a socket."""

    async def work(reader):
        await reader.read(FERRY)
        (process,) = reader._running
        with open(f"/proc/{process.pid}/limits", encoding="ascii") as file:
            rows = {line[:26].strip(): line[26:].split()[:2] for line in file}
        open_now = [int(name) for name in os.listdir(f"/proc/{process.pid}/fd")]
        return rows, open_now

    rows, open_now = reading(work)
    assert rows["Max open files"] == [str(max(open_now) + 1)] * 2
    assert sorted(open_now) == list(range(max(open_now) + 1))  # and all of those are taken
    assert rows["Max file size"] == ["0", "0"]
    assert rows["Max address space"][0] != "unlimited"


def test_too_much_memory_is_an_error_and_not_the_end():
    limits = ServerLimits(max_seconds=3600, media_processes=1, media_memory=64)
    errors, _ = refusals(flac(1800), FERRY, limits=limits)
    assert (errors[0].status, errors[0].code) == (422, "media_failed")
    assert errors[1] is None


def test_too_much_time_is_an_error_and_the_process_is_replaced():
    limits = ServerLimits(max_seconds=7200, media_processes=1, media_seconds=0.2)
    errors, restarts = refusals(flac(3000), limits=limits)
    assert "longer than 0.2 seconds" in errors[0].message
    assert restarts == 1


def test_a_killed_process_costs_the_file_it_was_reading():
    limits = ServerLimits(max_seconds=7200, media_processes=1)
    long = flac(3000)

    async def work(reader):
        (process,) = reader._running
        waiting = [asyncio.create_task(reader.read(data)) for data in (long, FERRY, FERRY)]
        await asyncio.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        (new,) = reader._running
        os.kill(new.pid, signal.SIGKILL)  # also one that is idle: nobody notices
        await asyncio.sleep(0.1)
        return results, await reader.read(FERRY)

    (first, second, third), last = reading(work, limits)
    assert (first.status, first.code) == (422, "media_failed")
    assert "-9" in first.message
    assert second.duration == third.duration == last.duration == 3.58
