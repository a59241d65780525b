"""Transcripts as files: txt, srt, vtt, tsv and json, in the layouts of Whisper's own tools.

Segments are written as they come, to a temporary file beside the target. It takes the target's name when the transcript
is complete: an error or an interrupt leaves an earlier transcript as it was, and nothing half-written.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from sharpen.errors import SharpenError

if TYPE_CHECKING:
    from sharpen.speech.longform import Segment  # only the type: stems and formats are checked before torch is loaded

STDIN = "-"  # the name of standard input among the inputs
STDIN_STEM = "stdin"
_DESCRIPTOR = re.compile(r"/dev/(?:(stdout)|(stderr)|fd/(\d{1,9}))")
_ARROW = re.compile("-{2,}>")


class Writer:
    """Plain text, one segment per line; other formats override what comes before, in and after the lines."""

    def start(self, file: IO[str]) -> None:
        """Write what comes before the first segment."""

    def add(self, file: IO[str], number: int, segment: Segment) -> None:
        """Write a segment; `number` counts from 1."""
        file.write(_one_line(segment.text) + "\n")

    def finish(self, file: IO[str], text: str, meta: Mapping[str, Any]) -> None:
        """Write what comes after the last segment; `text` is the whole transcript."""


class SrtWriter(Writer):
    def add(self, file: IO[str], number: int, segment: Segment) -> None:
        start, end = clock(segment.start, hours=True, point=","), clock(segment.end, hours=True, point=",")
        text = _ARROW.sub("->", _one_line(segment.text))  # players take a line with "-->" for a cue's times
        file.write(f"{number}\n{start} --> {end}\n{text}\n\n")


class VttWriter(Writer):
    def start(self, file: IO[str]) -> None:
        file.write("WEBVTT\n\n")

    def add(self, file: IO[str], number: int, segment: Segment) -> None:
        text = escape(_one_line(segment.text), quote=False)  # "<" would begin a tag, and "-->" is not allowed
        file.write(f"{clock(segment.start)} --> {clock(segment.end)}\n{text}\n\n")


class TsvWriter(Writer):
    def start(self, file: IO[str]) -> None:
        file.write("start\tend\ttext\n")

    def add(self, file: IO[str], number: int, segment: Segment) -> None:
        text = _one_line(segment.text).replace("\t", " ")
        file.write(f"{_milliseconds(segment.start)}\t{_milliseconds(segment.end)}\t{text}\n")


class JsonWriter(Writer):
    """`segments` come first: they are written before the whole text is known."""

    def start(self, file: IO[str]) -> None:
        file.write('{"segments": [')

    def add(self, file: IO[str], number: int, segment: Segment) -> None:
        file.write((",\n" if number > 1 else "\n") + json.dumps(as_dict(segment), ensure_ascii=False, allow_nan=False))

    def finish(self, file: IO[str], text: str, meta: Mapping[str, Any]) -> None:
        rest = {"text": text, "language": None, **meta}
        file.write("\n], " + json.dumps(rest, ensure_ascii=False, allow_nan=False)[1:] + "\n")


WRITERS: dict[str, Writer] = {
    "txt": Writer(),
    "srt": SrtWriter(),
    "vtt": VttWriter(),
    "tsv": TsvWriter(),
    "json": JsonWriter(),
}


class TranscriptFiles:
    """The output files of one input.

    with TranscriptFiles(directory, stem, ["srt", "json"]) as files:
        for segment in segments:
            files.add(segment)
        files.finish({"language": "en"})
    """

    def __init__(self, output_dir: str | Path, stem: str, formats: Iterable[str]) -> None:
        self.formats = parse_formats(formats)
        self.paths = {name: Path(output_dir) / f"{stem}.{name}" for name in self.formats}
        self._open: dict[str, IO[str]] = {}
        self._texts: list[str] = []

    def __enter__(self) -> TranscriptFiles:
        try:
            for name, path in self.paths.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = _aside(_behind_links(path))
                self._open[name] = aside.open("x", encoding="utf-8", newline="\n")
                WRITERS[name].start(self._open[name])
        except OSError as error:
            self.discard()
            raise _unwritable(path, error) from error
        return self

    def add(self, segment: Segment) -> None:
        """Write one more segment to every file."""
        self._texts.append(segment.text)
        for name, file in self._open.items():
            WRITERS[name].add(file, len(self._texts), segment)
            file.flush()

    def finish(self, meta: Mapping[str, Any] | None = None) -> list[Path]:
        """Complete the files and give them their names. `meta` has JSON's keys besides text and segments."""
        if set(self._open) != set(self.paths):
            raise SharpenError("finish() was called outside of `with TranscriptFiles(...)`, or twice")
        text = "".join(self._texts).strip()
        for name, file in self._open.items():
            WRITERS[name].finish(file, text, meta or {})
            file.close()
        # All files are complete before the first takes its name.
        for name in list(self._open):
            os.replace(self._open[name].name, _behind_links(self.paths[name]))
            del self._open[name]
        return list(self.paths.values())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()

    def discard(self) -> None:
        """Removes files that are not complete, even if closing them fails because the disk is full."""
        for file in self._open.values():
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                os.unlink(file.name)
        self._open.clear()


def parse_formats(formats: str | Iterable[str]) -> list[str]:
    """Names of formats, from a list or from "srt,json"; "all" stands for all of them."""
    names = [n.strip() for n in formats.split(",")] if isinstance(formats, str) else list(formats)
    unknown = [n for n in names if n not in WRITERS and n != "all"]
    if unknown or not names:
        given = ", ".join(unknown) or "(none)"
        raise SharpenError(f"unknown output format {given}; choose from {', '.join(WRITERS)} or all")
    return list(WRITERS) if "all" in names else list(dict.fromkeys(names))


def plan_outputs(inputs: Iterable[str | Path]) -> dict[str, str]:
    """Input -> the stem of its output files, all different, so that no input overwrites another's transcript.

    A stem that no other input has is used as it is. Inputs with the same stem are told apart by the suffix (`x.wav`,
    `x.flac`), else by the nearest folders that differ (`x.a`, `x.b`), in any order. Upper and lower case count as
    equal, as on some file systems. An input given twice appears once. A symbolic link keeps its own name.
    """
    files = {STDIN if str(i) == STDIN else os.path.abspath(i): str(i) for i in reversed(list(inputs))}
    names = {given: _stems(path) for path, given in reversed(files.items())}
    level = dict.fromkeys(names, 0)
    while True:
        stems = {given: names[given][level[given]] for given in names}
        taken = Counter(stem.casefold() for stem in stems.values())
        clashing = [g for g in names if taken[stems[g].casefold()] > 1 and level[g] + 1 < len(names[g])]
        if not clashing:
            return _numbered(stems)
        for given in clashing:
            level[given] += 1


def _stems(path: str) -> list[str]:
    """Stems for one input, from the shortest to the one that names all its folders."""
    if path == STDIN:
        return [STDIN_STEM]
    file = Path(path)
    folders = [p.name for p in file.parents if p.name]
    return [".".join([base, *folders[:depth]]) for depth in range(len(folders) + 1) for base in (file.stem, file.name)]


def _numbered(stems: Mapping[str, str]) -> dict[str, str]:
    """Numbers the stems that are still equal: they differ only by case, or in where their dots are."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for given, stem in stems.items():
        free = stem
        number = 1
        while free.casefold() in taken:
            number += 1
            free = f"{stem}-{number}"
        taken.add(free.casefold())
        result[given] = free
    return result


def as_dict(segment: Segment) -> dict[str, Any]:
    """A segment with the keys of Whisper's JSON, then ours; NaN and infinity become None."""
    return {
        "id": int(segment.id),
        "seek": int(segment.seek),
        "start": round(float(segment.start), 3),
        "end": round(float(segment.end), 3),
        "text": segment.text,
        "tokens": [int(t) for t in segment.tokens],
        "temperature": number(segment.temperature),
        "avg_logprob": number(segment.avg_logprob),
        "compression_ratio": number(segment.compression_ratio),
        "no_speech_prob": number(segment.no_speech_prob),
        "logprobs": [number(x) for x in segment.logprobs],
        "entropies": [number(x) for x in segment.entropies],
    }


def clock(seconds: float, hours: bool = False, point: str = ".") -> str:
    """hh:mm:ss.mmm; without `hours`, mm:ss.mmm in the first hour."""
    whole, milliseconds = divmod(_milliseconds(seconds), 1000)
    minutes, s = divmod(whole, 60)
    h, m = divmod(minutes, 60)
    return (f"{h:02d}:" if hours or h else "") + f"{m:02d}:{s:02d}{point}{milliseconds:03d}"


def _milliseconds(seconds: float) -> int:
    return max(0, round(1000 * seconds))


def number(x: float, digits: int = 6) -> float | None:
    """Rounded for JSON, which has no NaN and no infinity: they become None."""
    return round(float(x), digits) if math.isfinite(x) else None


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()).strip()


def _behind_links(path: Path) -> Path:
    """The file that a symbolic link leads to: it is written, and the link stays."""
    return Path(os.path.realpath(path))


def _aside(path: Path) -> Path:
    """A free name in the same folder; short, since the path's own name may be as long as the file system allows."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


def write_text(path: str | Path, text: str) -> Path:
    """Writes a whole file and returns its path.

    An ordinary file is replaced at once: an interrupt leaves what was there before. Symbolic links are followed. Pipes
    and devices are written to; /dev/stdout and /dev/fd/N continue after what was written to that descriptor.
    """
    path = Path(path)
    try:
        if (descriptor := _descriptor(path)) is not None:
            _write_to(os.dup(descriptor), text)
        elif path.exists() and not path.is_file():
            _write_to(path, text)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(_behind_links(path), text)
    except BrokenPipeError:
        raise  # the reader stopped reading, as in `| head`
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def check_writable(path: str | Path) -> None:
    """Raises now if `write_text` could not write to the path later; makes missing folders and leaves no file."""
    path = Path(path)
    if _DESCRIPTOR.fullmatch(str(path)):
        return
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.exists() or path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = _aside(_behind_links(path))
            aside.touch()
            aside.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> SharpenError:
    folder_is_file = isinstance(error, FileExistsError | NotADirectoryError)
    why = "a part of its path is a file" if folder_is_file else error.strerror or error
    return SharpenError(f"{path} cannot be written: {why}; choose another path")


def _descriptor(path: Path) -> int | None:
    match = _DESCRIPTOR.fullmatch(str(path))
    if match is None:
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    return 1 if match[1] else 2 if match[2] else int(match[3])


def _write_to(target: int | Path, text: str) -> None:
    with open(target, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    aside = _aside(path)
    try:
        aside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
