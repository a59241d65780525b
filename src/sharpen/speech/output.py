"""Transcripts on disk: which file an input's transcript goes to, and how it gets there.

Segments are written as they come, to a temporary file beside the target. It takes the target's name when the transcript
is complete: an error or an interrupt leaves an earlier transcript as it was, and nothing half-written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from sharpen.errors import SharpenError
from sharpen.files import aside_of, behind_links, unwritable
from sharpen.speech.subtitles import Subtitles
from sharpen.speech.writers import WRITERS, parse_formats

if TYPE_CHECKING:
    from sharpen.speech.longform import Segment  # only the type: stems are planned before torch is loaded

STDIN = "-"  # the name of standard input among the inputs
STDIN_STEM = "stdin"


class TranscriptFiles:
    """The output files of one input. `again`: what a killed run left of them is replaced; one process at a time.

    with TranscriptFiles(directory, stem, ["srt", "json"]) as files:
        for segment in segments:
            files.add(segment)
        files.finish({"language": "en"})
    """

    def __init__(
        self,
        output_dir: str | Path,
        stem: str,
        formats: Iterable[str],
        subtitles: Subtitles | None = None,
        *,
        again: bool = False,
    ) -> None:
        self.formats = parse_formats(formats)
        self._writers = {name: WRITERS[name](subtitles or Subtitles()) for name in self.formats}
        self.paths = {name: Path(output_dir) / f"{stem}.{name}" for name in self.formats}
        self._again = again
        self._open: dict[str, IO[str]] = {}
        self._texts: list[str] = []

    def __enter__(self) -> TranscriptFiles:
        try:
            for name, path in self.paths.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                aside = aside_of(behind_links(path), again=self._again)
                self._open[name] = aside.open("w" if self._again else "x", encoding="utf-8", newline="\n")
                self._writers[name].start(self._open[name])
        except OSError as error:
            self.discard()
            raise unwritable(path, error) from error
        return self

    def add(self, segment: Segment) -> None:
        """Write one more segment to every file."""
        self._texts.append(segment.text)
        for name, file in self._open.items():
            self._writers[name].add(file, segment)
            file.flush()

    def finish(self, meta: Mapping[str, Any] | None = None) -> list[Path]:
        """Complete the files and give them their names. `meta` has JSON's keys besides text and segments."""
        if set(self._open) != set(self.paths):
            raise SharpenError("finish() was called outside of `with TranscriptFiles(...)`, or twice")
        text = "".join(self._texts).strip()
        for name, file in self._open.items():
            self._writers[name].finish(file, text, meta or {})
            file.close()
        # All files are complete before the first takes its name.
        for name in list(self._open):
            os.replace(self._open[name].name, behind_links(self.paths[name]))
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


def check_resume(formats: Sequence[str], explain: bool) -> None:
    """Refuses what a resumed transcription could not write."""
    if not formats:
        raise SharpenError("--resume is for transcripts in files: add --output-dir or --output-format")
    if explain:
        raise SharpenError("--resume does not keep the hypotheses that --explain shows; leave one of them out")
