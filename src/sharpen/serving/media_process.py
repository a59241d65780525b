"""The process that decodes audio files: `python -m sharpen.serving.media_process MEGABYTES`.

It reads requests from standard input and writes answers to standard output, each a line of JSON and so many bytes as
the line says. After its imports it may take no more memory than it was told, open no file and no socket, and write no
file: what FFmpeg is led to do by a file, it can do with that file's bytes alone. It ends with its standard input.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from sharpen.errors import AudioError, AudioTooLongError
from sharpen.speech.audio import read_audio
from sharpen.speech.samples import ReadLimits

LENGTH = struct.Struct(">Q")  # before a header: its length in bytes


def write_message(file: BinaryIO, header: dict[str, Any], payload: bytes | memoryview = b"") -> None:
    text = json.dumps({**header, "size": len(payload)}).encode()
    file.write(LENGTH.pack(len(text)) + text)
    file.write(payload)
    file.flush()


def read_message(file: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next message; None at the end."""
    begin = file.read(LENGTH.size)
    if len(begin) < LENGTH.size:
        return None
    header = json.loads(file.read(*LENGTH.unpack(begin)))
    payload = file.read(header["size"])
    return (header, payload) if len(payload) == header["size"] else None


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while (message := read_message(requests)) is not None:
        header, payload = message
        del message
        try:
            limits = ReadLimits(header["seconds"], header["samples"], header["formats"])
            audio = read_audio(payload, sampling_rate=header["rate"], limits=limits)
        except AudioTooLongError as error:
            write_message(answers, {"kind": "long", "error": str(error)})
        except AudioError as error:
            write_message(answers, {"kind": "audio", "error": str(error)})
        except MemoryError:
            write_message(answers, {"kind": "memory", "error": "decoding it takes too much memory"})
        except Exception as error:  # of a library that was given a damaged file
            write_message(answers, {"kind": "failed", "error": f"{type(error).__name__}: {error}"})
        else:
            write_message(answers, {"kind": "done", "skipped": audio.skipped}, audio.samples.data.cast("B"))
            del audio
        del payload


def confine(memory: int, handles: int) -> None:
    """Takes from this process what it does not need.

    `memory` is what it may use beyond its present size, in bytes; `handles` is how many files are open and may be.
    """
    limits = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: handles}
    if sys.platform == "linux":  # elsewhere the size of a process is not known so easily, or not limited
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        limits[resource.RLIMIT_AS] = size + memory
    for what, most in limits.items():
        resource.setrlimit(what, (most, most))


def _warm_up() -> None:
    """Loads what a first decode loads: afterwards nothing can be opened."""
    header = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + 3200, b"WAVE", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16,
                         b"data", 3200)  # fmt: skip
    read_audio(header + bytes(3200))
    with suppress(AudioError):
        read_audio(b"not audio")


def main() -> None:
    _warm_up()
    requests, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # what a library prints must not look like an answer
    os.dup2(nothing, 2)
    os.close(nothing)
    confine(int(float(sys.argv[1]) * (1 << 20)), answers.fileno() + 1)
    write_message(answers, {"kind": "ready"})
    serve(requests, answers)


if __name__ == "__main__":
    main()
