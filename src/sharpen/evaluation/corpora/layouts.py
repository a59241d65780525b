"""How corpora lie on disk: each layout finds its lists of utterances under a folder, and reads one of them.

A reader yields an Entry for each utterance and a Skip for each one that cannot be used. It opens no audio.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol

from sharpen.errors import SharpenError
from sharpen.speech.noise import SUFFIXES

USUAL = {"snr_rule": "true", "overflow": "float"}  # how noise is mixed unless something else is asked for


class Stored(Protocol):
    """Encoded audio that is no file of its own."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class Entry:
    """An utterance as a corpus lists it; what is empty or None was not said."""

    id: str
    audio: Path | Stored
    text: str
    place: str  # where it was written, for complaints: "manifest.jsonl line 3"
    language: str = ""  # a code or an English name
    speaker: str = ""
    domain: str = ""
    duration: float | None = None  # seconds
    offset: float | None = None  # seconds into the audio at which it begins; only some manifests cut recordings so
    corpus: str = ""
    origin: str = ""  # the fingerprint of what a file that we wrote was made from
    mixed: Mapping[str, Any] = field(
        default_factory=dict, hash=False
    )  # how noise was mixed into the audio: its name, the ratio


@dataclass(frozen=True)
class Skip:
    """Why something listed is not used."""

    reason: str
    expected: bool = False  # by design, not by damage: nobody needs to repair it


@dataclass(frozen=True)
class Layout:
    find: Callable[[Path], list[Path]]  # the lists (or folders, or files) under a path that the reader takes
    read: Callable[[Path, Path], Iterator[Entry | Skip]]  # one of them, and the path it was found under
    expects: str  # for complaints


ACCENTS = {
    "Arabic": "ABA SKA YBAA ZHAA",
    "Mandarin": "BWC LXC NCC TXHC",
    "Hindi": "ASI RRBI SVBI TNI",
    "Korean": "HJK HKK YDCK YKWK",
    "Spanish": "EBVS ERMS MBMPS NJS",
    "Vietnamese": "HQTV PNV THV TLV",
}
SPEAKERS = {speaker: accent for accent, speakers in ACCENTS.items() for speaker in speakers.split()}

# L2-ARCTIC's own README: never recorded, or removed for their quality; where a file of that name is there, it is not
# the sentence. The last one before EBVS and SKA stopped reading is left out too, as others who report on L2-ARCTIC do.
KNOWN_BAD = {
    **{speaker: {"arctic_b0013"} for speaker in ("ASI", "HJK", "HKK", "LXC", "NCC", "NJS", "TNI", "YDCK", "YKWK")},
    "ABA": {"arctic_a0158", "arctic_b0013", "arctic_b0398"},
    "BWC": {"arctic_b0013", "arctic_b0345"},
    "EBVS": {"arctic_b0408"},
    "RRBI": {"arctic_a0298", "arctic_b0013"},
    "SKA": {"arctic_b0358"},
    "YBAA": {"arctic_a0094", "arctic_b0013"},
}


def _manifests(where: Path) -> list[Path]:
    if where.is_file():
        return [where] if where.suffix.lower() != ".tsv" else []
    own = where / "manifest.jsonl"
    return [own] if own.is_file() else sorted(where.glob("*/manifest.jsonl"))


def _manifest(path: Path, where: Path) -> Iterator[Entry | Skip]:
    """JSON lines with NeMo's fields or those of the leaderboards."""
    for number, row in enumerate(_json_lines(path), 1):
        place = f"{path} line {number}"
        if row is None:
            continue
        if not isinstance(row, dict):
            yield Skip(f"{place}: {row}")
        elif not _audio(row):
            yield Skip(f"{place}: no audio_filepath (or audio); it names the recording, from the manifest's folder")
        elif not isinstance(row.get("text"), str):
            yield Skip(f"{place}: no text, which an error rate needs as its reference")
        else:
            name = _named(_audio(row))
            try:
                yield Entry(
                    id=value(row, "id") or (f"{name}@{row['offset']}" if row.get("offset") else name),
                    audio=path.parent / _audio(row),
                    text=row["text"],
                    place=place,
                    language=value(row, "language", "lang"),
                    speaker=value(row, "speaker"),
                    domain=value(row, "domain", "accent", "noise"),
                    duration=None if row.get("duration") is None else float(row["duration"]),
                    offset=None if row.get("offset") is None else float(row["offset"]),
                    corpus=value(row, "corpus"),
                    origin=value(row, "origin"),
                    mixed=_mixed(row),
                )
            except (TypeError, ValueError, OverflowError):
                seen = {name: row[name] for name in ("duration", "offset", "snr") if name in row}
                yield Skip(f"{place}: {seen}, expected numbers (of seconds, of decibels)")


def value(row: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that says something; a speaker may be called 0."""
    return next((str(row[name]) for name in names if row.get(name) not in (None, "")), "")


def _mixed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The noise in the recording, as the rows of a run name it; of how it was made only what is unusual."""
    if row.get("snr") is None or not row.get("noise"):
        return {}
    unusual = {name: row[name] for name, usual in USUAL.items() if row.get(name) not in (None, usual)}
    return {"noise": str(row["noise"]), "snr": float(row["snr"]), **unusual}


def _json_lines(path: Path) -> Iterator[dict[str, Any] | str | None]:
    """For each line its object, None for an empty one, or as text what is wrong with it."""
    for line in _lines(path):
        try:
            row = json.loads(line) if line.strip() else None
            yield row if row is None or isinstance(row, dict) else f"{line[:40]!r} is not a JSON object"
        except json.JSONDecodeError as error:
            yield f"not JSON ({error.msg} at character {error.pos + 1})"
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets a thousand deep
            yield f"not JSON that can be read ({error})"


def _audio(row: dict[str, Any]) -> str:
    name = row.get("audio_filepath") or row.get("audio") or ""
    return name if isinstance(name, str) else ""


def _named(audio: str) -> str:
    """An id from the path as the manifest has it, the same whatever else the manifest lists.

    Where a corpus lies differs from machine to machine: of an absolute path only the last folder is taken.
    """
    path = PurePath(audio).with_suffix("")
    parts = path.parts[-2:] if path.is_absolute() else [part for part in path.parts if part != ".."]
    return PurePath(*parts).as_posix().lstrip("/")


def _librispeech(path: Path, where: Path) -> Iterator[Entry | Skip]:
    """SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt, each line an id and its text."""
    for name, text, place in _transcripts(path, " "):
        if text is None:
            yield Skip(f"{place}: {name!r} has no text; expected an id, a space and the transcript")
        else:
            yield Entry(name, path.parent / f"{name}.flac", text, place, "en", name.split("-")[0])


def _mls_lists(where: Path) -> list[Path]:
    if (where / "transcripts.txt").is_file():
        return [where / "transcripts.txt"]
    return sorted(where.glob("test/transcripts.txt")) or sorted(where.glob("*/test/transcripts.txt"))


def _mls(path: Path, where: Path) -> Iterator[Entry | Skip]:
    """LANGUAGE/test/transcripts.txt and LANGUAGE/test/audio/SPEAKER/BOOK/SPEAKER_BOOK_NUMBER.flac (or .opus)."""
    language = path.resolve().parent.parent.name.lower().removeprefix("mls_")
    for name, text, place in _transcripts(path, "\t"):
        speaker, _, rest = name.partition("_")
        if text is None or not rest:
            yield Skip(f"{place}: {name[:40]!r}; expected SPEAKER_BOOK_NUMBER, a tab and the transcript")
            continue
        base = path.parent / "audio" / speaker / rest.split("_")[0] / name
        opus = base.with_suffix(".opus")
        yield Entry(name, opus if opus.is_file() else base.with_suffix(".flac"), text, place, language, speaker)


def _l2_arctic_speakers(where: Path) -> list[Path]:
    places = [where, *(p for p in sorted(where.glob("*")) if p.is_dir()), *sorted(where.glob("*/*"))]
    return [p for p in places if p.resolve().name in SPEAKERS and any((p / n).is_dir() for n in ("wav", "transcript"))]


def _l2_arctic(path: Path, where: Path) -> Iterator[Entry | Skip]:
    """SPEAKER/wav/NAME.wav with SPEAKER/transcript/NAME.txt; the accent comes from the table, not from the folders."""
    speaker = path.resolve().name
    for name in ("wav", "transcript"):
        if not (path / name).is_dir():
            yield Skip(f"{path / name}: no such folder; expected {speaker}'s in it")
            return
    sounds = {p.stem: p for p in (path / "wav").glob("*.wav")}
    texts = {p.stem: p for p in (path / "transcript").glob("*.txt")}
    for name in sorted(sounds.keys() | texts.keys()):
        if name in KNOWN_BAD.get(speaker, ()):
            yield Skip(f"{path / 'wav' / name}.wav: known to be bad (L2-ARCTIC's own notes)", expected=True)
        elif name not in texts:
            yield Skip(f"{sounds[name]}: no transcript/{name}.txt")
        else:
            audio = sounds.get(name, path / "wav" / f"{name}.wav")
            text = "\n".join(_lines(texts[name])).strip()
            yield Entry(f"{speaker}-{name}", audio, text, str(texts[name]), "en", speaker, SPEAKERS[speaker])


def _common_voice_lists(where: Path) -> list[Path]:
    if where.is_file():
        return [where] if where.suffix.lower() == ".tsv" else []
    found = [where / "test.tsv"] if (where / "test.tsv").is_file() else sorted(where.glob("*/test.tsv"))
    return [p for p in found if (p.parent / "clips").is_dir()]


def _common_voice(path: Path, where: Path) -> Iterator[Entry | Skip]:
    """LOCALE/test.tsv and LOCALE/clips/NAME.mp3; an accent is a domain in English only, elsewhere the language is."""
    seconds = _clip_durations(path.parent / "clip_durations.tsv")
    for row, place in _tab_separated(path, ("client_id", "path", "sentence")):
        if row["sentence"] is None or not row["path"]:
            yield Skip(f"{place}: too few columns; expected client_id, path and sentence")
            continue
        language = row.get("locale") or path.resolve().parent.name
        name = row["path"] if Path(row["path"]).suffix else f"{row['path']}.mp3"
        yield Entry(
            id=Path(name).stem,
            audio=path.parent / "clips" / name,
            text=row["sentence"],
            place=place,
            language=language,
            speaker=row["client_id"] or "",
            domain=(row.get("accents") or row.get("accent") or "") if language.lower().startswith("en") else "",
            duration=seconds.get(name),
        )


def _clip_durations(path: Path) -> dict[str, float]:
    """Common Voice's own list of lengths, where a release has one."""
    if not path.is_file():
        return {}
    found = {}
    for row, _ in _tab_separated(path, ("clip", "duration[ms]")):
        with suppress(ValueError):  # then the file's own header tells
            found[row["clip"] or ""] = float(row["duration[ms]"] or "none") / 1000
    return found


def _tab_separated(path: Path, columns: Iterable[str]) -> Iterator[tuple[dict[str, str | None], str]]:
    """Each line as a dict, and its place."""
    # Sentences hold lone quotation marks: with csv's quoting, everything up to the next one would be a single field.
    reader = csv.DictReader(_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = set(columns) - set(reader.fieldnames or ())
    if missing:
        raise SharpenError(f"{path}: no column {', '.join(sorted(missing))} in its first line; expected Common Voice's")
    for row in reader:
        yield row, f"{path} line {reader.line_num}"


def _sounds(where: Path) -> list[Path]:
    return _below(where, lambda name: PurePath(name).suffix.lower() in SUFFIXES)


def _below(where: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Files at any depth with a name that is wanted, also behind links, which `rglob` passes by."""
    found, seen = [], set()
    for folder, inner, files in os.walk(where, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to where we have been
            inner.clear()
            continue
        seen.add(real)
        found += [Path(folder, name) for name in files if wanted(name)]
    return sorted(found)


def _beside(path: Path, where: Path) -> Iterator[Entry | Skip]:
    """NAME.flac (or another format) with its transcript beside it in NAME.txt."""
    text = path.with_suffix(".txt")
    if text.is_file():
        name = path.relative_to(where).with_suffix("").as_posix()
        yield Entry(name, path, " ".join("\n".join(_lines(text)).split()), str(path))
    else:
        yield Skip(f"{path}: no transcript beside it; expected {text.name}")


def _transcripts(path: Path, separator: str) -> Iterator[tuple[str, str | None, str]]:
    """Name, text and place of each line that is not empty; None where the line holds no text."""
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            name, found, text = line.strip().partition(separator)
            yield name, text.strip() if found else None, f"{path} line {number}"


def _lines(path: Path) -> list[str]:
    """Lines as editors count them; str.splitlines also breaks at rarer characters, and numbers would be off.

    A byte that is not UTF-8 becomes half a character, which is complained about where the text it stands in is used.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SharpenError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SharpenError(f"{path} is in UTF-16; save it as UTF-8")
    return content.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").split("\n")


# In the order in which "auto" tries them: the ones that a glance decides come first.
LAYOUTS = {
    "manifest": Layout(_manifests, _manifest, "a JSONL file, or manifest.jsonl in a folder or in its subfolders"),
    "common-voice": Layout(_common_voice_lists, _common_voice, "test.tsv beside clips/, also one folder deeper"),
    "mls": Layout(_mls_lists, _mls, "test/transcripts.txt beside test/audio/, also one folder deeper"),
    "l2-arctic": Layout(_l2_arctic_speakers, _l2_arctic, "SPEAKER/wav and SPEAKER/transcript, also ACCENT/SPEAKER/wav"),
    "librispeech": Layout(
        lambda where: _below(where, lambda name: name.endswith(".trans.txt")),
        _librispeech,
        "*.trans.txt at any depth",
    ),
    "folder": Layout(_sounds, _beside, "audio files with a .txt of the same name beside each"),
}
