"""What transcripts look like as txt, srt, vtt, tsv and json, in the layouts of Whisper's own tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import IO, TYPE_CHECKING, Any

from sharpen.errors import SharpenError
from sharpen.speech.subtitles import Cue, CueLayout, Subtitles

if TYPE_CHECKING:  # only the types: formats are checked before torch is loaded
    from sharpen.method.network import Alternative
    from sharpen.speech.confidence import Trust, WindowReadings
    from sharpen.speech.longform import Segment
    from sharpen.speech.words import Word

_ARROW = re.compile("-{2,}>")


class Writer:
    """Plain text, one segment per line; other formats override what comes before, in and after the lines.

    A writer serves one file.
    """

    def __init__(self, style: Subtitles) -> None:
        """`style` is for subtitles."""

    def start(self, file: IO[str]) -> None:
        """Write what comes before the first segment."""

    def add(self, file: IO[str], segment: Segment) -> None:
        """Write a segment."""
        file.write(_one_line(segment.text) + "\n")

    def finish(self, file: IO[str], text: str, meta: Mapping[str, Any]) -> None:
        """Write what comes after the last segment; `text` is the whole transcript."""


class SubtitleWriter(Writer):
    """A segment is a cue, unless the style asks for cues made of words."""

    def __init__(self, style: Subtitles) -> None:
        self.layout = CueLayout(style, self.clean)
        self.cues = 0  # written so far

    def add(self, file: IO[str], segment: Segment) -> None:
        if self.layout.style.given and segment.words:
            self._write(file, self.layout.add(segment.words))
        else:
            whole = Cue(segment.start, segment.end, self.clean(_one_line(segment.text)))
            self._write(file, [*self.layout.finish(), whole])  # what is left of the segments before it comes first

    def finish(self, file: IO[str], text: str, meta: Mapping[str, Any]) -> None:
        self._write(file, self.layout.finish())

    def clean(self, text: str) -> str:
        """The text without what the format takes for its own."""
        raise NotImplementedError

    def times(self, cue: Cue) -> str:
        """The lines before the text of a cue."""
        raise NotImplementedError

    def _write(self, file: IO[str], cues: Iterable[Cue]) -> None:
        for cue in cues:
            self.cues += 1
            file.write(f"{self.times(cue)}\n{cue.text}\n\n")


class SrtWriter(SubtitleWriter):
    def clean(self, text: str) -> str:
        return _ARROW.sub("->", text)  # players take a line with "-->" for a cue's times

    def times(self, cue: Cue) -> str:
        start, end = clock(cue.start, hours=True, point=","), clock(cue.end, hours=True, point=",")
        return f"{self.cues}\n{start} --> {end}"


class VttWriter(SubtitleWriter):
    def start(self, file: IO[str]) -> None:
        file.write("WEBVTT\n\n")

    def clean(self, text: str) -> str:
        return escape(text, quote=False)  # "<" would begin a tag, and "-->" is not allowed

    def times(self, cue: Cue) -> str:
        return f"{clock(cue.start)} --> {clock(cue.end)}"


class TsvWriter(Writer):
    def start(self, file: IO[str]) -> None:
        file.write("start\tend\ttext\n")

    def add(self, file: IO[str], segment: Segment) -> None:
        text = _one_line(segment.text).replace("\t", " ")
        file.write(f"{_milliseconds(segment.start)}\t{_milliseconds(segment.end)}\t{text}\n")


class JsonWriter(Writer):
    """`segments` come first: they are written before the whole text is known."""

    def __init__(self, style: Subtitles) -> None:
        self.separator = "\n"

    def start(self, file: IO[str]) -> None:
        file.write('{"segments": [')

    def add(self, file: IO[str], segment: Segment) -> None:
        file.write(self.separator + json.dumps(as_dict(segment), ensure_ascii=False, allow_nan=False))
        self.separator = ",\n"

    def finish(self, file: IO[str], text: str, meta: Mapping[str, Any]) -> None:
        rest = {"text": text, "language": None, **meta}
        file.write("\n], " + json.dumps(rest, ensure_ascii=False, allow_nan=False)[1:] + "\n")


WRITERS: dict[str, type[Writer]] = {
    "txt": Writer,
    "srt": SrtWriter,
    "vtt": VttWriter,
    "tsv": TsvWriter,
    "json": JsonWriter,
}


def parse_formats(formats: str | Iterable[str]) -> list[str]:
    """Names of formats, from a list or from "srt,json"; "all" stands for all of them."""
    names = [n.strip() for n in formats.split(",")] if isinstance(formats, str) else list(formats)
    unknown = [n for n in names if n not in WRITERS and n != "all"]
    if unknown or not names:
        given = ", ".join(unknown) or "(none)"
        raise SharpenError(f"unknown output format {given}; choose from {', '.join(WRITERS)} or all")
    return list(WRITERS) if "all" in names else list(dict.fromkeys(names))


def as_dict(segment: Segment) -> dict[str, Any]:
    """A segment with the keys of Whisper's JSON, then ours; NaN and infinity become None.

    Words are there only where they were asked for, as in Whisper's, and have times only where these were.
    """
    words = [_word(word) for word in segment.words]
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
        **as_trust(segment),
        **({"words": words} if words else {}),
    }


def as_trust(judged: Segment | Trust) -> dict[str, Any]:
    """How far to trust a segment or a recording, for JSON."""
    return {
        "confidence": number(judged.confidence, 4),
        "expected_wer": number(judged.expected_wer, 4),
        "unreliable": judged.unreliable,
    }


def as_readings(window: WindowReadings) -> dict[str, Any]:
    """The best texts of a window, for JSON."""
    texts = [{"text": one.text, "probability": number(one.probability, 4)} for one in window.readings]
    return {"start": window.start, "end": window.end, "alternatives": texts}


def _word(word: Word) -> dict[str, Any]:
    """Whisper's keys, then ours; what was not asked for is left out."""
    found: dict[str, Any] = {"word": word.word}
    if not math.isnan(word.start):
        found |= {"start": word.start, "end": word.end}
    found["probability"] = number(word.probability)
    if not math.isnan(word.confidence):
        found |= {"confidence": number(word.confidence, 4), "alternatives": as_alternatives(word.alternatives)}
        beside = {"before": word.before, "after": word.after}
        found |= {name: as_alternatives(some) for name, some in beside.items() if some}
    return found


def as_alternatives(some: Iterable[Alternative]) -> list[dict[str, Any]]:
    return [{"word": a.word, "probability": number(a.probability, 4)} for a in some]


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
