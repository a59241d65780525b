"""The layouts of corpora on disk: each finds its lists of utterances under a folder, and reads one list.

A reader yields a CorpusEntry for each utterance and a Skip for each one that cannot be used. It opens no audio.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol

from sharpen.evaluation.corpora.text_files import json_lines, lines_of, tab_separated, transcripts
from sharpen.speech.noise import SUFFIXES

DEFAULT_MIXING = {"snr_rule": "true", "overflow": "float"}


class EncodedAudio(Protocol):
    """Encoded audio that is not a file, such as a row of a dataset."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class CorpusEntry:
    """An utterance as a corpus lists it; fields that the corpus does not give are empty or None."""

    id: str
    audio: Path | EncodedAudio
    text: str
    place: str  # for error messages: "manifest.jsonl line 3"
    language: str = ""  # a code or an English name
    speaker: str = ""
    domain: str = ""
    duration: float | None = None  # seconds
    offset: float | None = None  # where it begins in the audio, seconds
    corpus: str = ""
    origin: str = ""  # fingerprint of the files that `sharpen corpus ls-c` mixed it from
    mixed: Mapping[str, Any] = field(default_factory=dict, hash=False)  # noise already in the audio: name and SNR


@dataclass(frozen=True)
class Skip:
    """Why an entry is not used."""

    reason: str
    expected: bool = False  # skipped by design; there is nothing to repair


@dataclass(frozen=True)
class Layout:
    find: Callable[[Path], list[Path]]  # the lists (or folders, or files) of this layout under a path
    read: Callable[[Path, Path], Iterator[CorpusEntry | Skip]]  # takes one of them, and the path it was found under
    expects: str  # for error messages


ACCENTS = {
    "Arabic": "ABA SKA YBAA ZHAA",
    "Mandarin": "BWC LXC NCC TXHC",
    "Hindi": "ASI RRBI SVBI TNI",
    "Korean": "HJK HKK YDCK YKWK",
    "Spanish": "EBVS ERMS MBMPS NJS",
    "Vietnamese": "HQTV PNV THV TLV",
}
SPEAKERS = {speaker: accent for accent, speakers in ACCENTS.items() for speaker in speakers.split()}

# From L2-ARCTIC's README: sentences never recorded, or removed for their quality; a file of that name holds something
# else. The last sentence of EBVS and of SKA is skipped too, as in other reports on L2-ARCTIC.
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


def _manifest(path: Path, where: Path) -> Iterator[CorpusEntry | Skip]:
    """JSON lines with NeMo's fields or those of the leaderboards."""
    for number, row in enumerate(json_lines(path), 1):
        place = f"{path} line {number}"
        if row is None:
            continue
        if not isinstance(row, dict):
            yield Skip(f"{place}: {row}")
        elif not _audio(row):
            yield Skip(f"{place}: no audio_filepath (or audio), the path of the recording relative to the manifest")
        elif not isinstance(row.get("text"), str):
            yield Skip(f"{place}: no text, which is needed as the reference")
        else:
            name = _named(_audio(row))
            try:
                yield CorpusEntry(
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
                yield Skip(f"{place}: {seen}; expected numbers (seconds, seconds, dB)")


def value(row: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that is not empty, as text; 0 is a valid name of a speaker."""
    return next((str(row[name]) for name in names if row.get(name) not in (None, "")), "")


def _mixed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The noise already in the recording, as in the rows of a run; mixing options only if they are not the default."""
    if row.get("snr") is None or not row.get("noise"):
        return {}
    others = {name: row[name] for name, default in DEFAULT_MIXING.items() if row.get(name) not in (None, default)}
    return {"noise": str(row["noise"]), "snr": float(row["snr"]), **others}


def _audio(row: dict[str, Any]) -> str:
    name = row.get("audio_filepath") or row.get("audio") or ""
    return name if isinstance(name, str) else ""


def _named(audio: str) -> str:
    """An id made from the path in the manifest, independent of the other lines.

    Of an absolute path only the last folder and the file are used: the rest differs between machines.
    """
    path = PurePath(audio).with_suffix("")
    parts = path.parts[-2:] if path.is_absolute() else [part for part in path.parts if part != ".."]
    return PurePath(*parts).as_posix().lstrip("/")


def _librispeech(path: Path, where: Path) -> Iterator[CorpusEntry | Skip]:
    """SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt, each line an id and its text."""
    for name, text, place in transcripts(path, " "):
        if text is None:
            yield Skip(f"{place}: {name!r} has no text; expected an id, a space and the transcript")
        else:
            yield CorpusEntry(name, path.parent / f"{name}.flac", text, place, "en", name.split("-")[0])


def _mls_lists(where: Path) -> list[Path]:
    if (where / "transcripts.txt").is_file():
        return [where / "transcripts.txt"]
    return sorted(where.glob("test/transcripts.txt")) or sorted(where.glob("*/test/transcripts.txt"))


def _mls(path: Path, where: Path) -> Iterator[CorpusEntry | Skip]:
    """LANGUAGE/test/transcripts.txt and LANGUAGE/test/audio/SPEAKER/BOOK/SPEAKER_BOOK_NUMBER.flac (or .opus)."""
    language = path.resolve().parent.parent.name.lower().removeprefix("mls_")
    for name, text, place in transcripts(path, "\t"):
        speaker, _, rest = name.partition("_")
        if text is None or not rest:
            yield Skip(f"{place}: {name[:40]!r}; expected SPEAKER_BOOK_NUMBER, a tab and the transcript")
            continue
        base = path.parent / "audio" / speaker / rest.split("_")[0] / name
        opus = base.with_suffix(".opus")
        yield CorpusEntry(name, opus if opus.is_file() else base.with_suffix(".flac"), text, place, language, speaker)


def _l2_arctic_speakers(where: Path) -> list[Path]:
    places = [where, *(p for p in sorted(where.glob("*")) if p.is_dir()), *sorted(where.glob("*/*"))]
    return [p for p in places if p.resolve().name in SPEAKERS and any((p / n).is_dir() for n in ("wav", "transcript"))]


def _l2_arctic(path: Path, where: Path) -> Iterator[CorpusEntry | Skip]:
    """SPEAKER/wav/NAME.wav with SPEAKER/transcript/NAME.txt; the accent comes from the table, not from the folders."""
    speaker = path.resolve().name
    for name in ("wav", "transcript"):
        if not (path / name).is_dir():
            yield Skip(f"{path / name}: no such folder; expected the files of {speaker}")
            return
    audio_files = {p.stem: p for p in (path / "wav").glob("*.wav")}
    texts = {p.stem: p for p in (path / "transcript").glob("*.txt")}
    for name in sorted(audio_files.keys() | texts.keys()):
        if name in KNOWN_BAD.get(speaker, ()):
            yield Skip(f"{path / 'wav' / name}.wav: listed as bad in L2-ARCTIC's notes", expected=True)
        elif name not in texts:
            yield Skip(f"{audio_files[name]}: no transcript/{name}.txt")
        else:
            audio = audio_files.get(name, path / "wav" / f"{name}.wav")
            text = "\n".join(lines_of(texts[name])).strip()
            yield CorpusEntry(f"{speaker}-{name}", audio, text, str(texts[name]), "en", speaker, SPEAKERS[speaker])


def _common_voice_lists(where: Path) -> list[Path]:
    if where.is_file():
        return [where] if where.suffix.lower() == ".tsv" else []
    lists = [where / "test.tsv"] if (where / "test.tsv").is_file() else sorted(where.glob("*/test.tsv"))
    return [p for p in lists if (p.parent / "clips").is_dir()]


def _common_voice(path: Path, where: Path) -> Iterator[CorpusEntry | Skip]:
    """LOCALE/test.tsv and LOCALE/clips/NAME.mp3; an accent is a domain in English only, elsewhere the language is."""
    seconds = _clip_durations(path.parent / "clip_durations.tsv")
    for row, place in tab_separated(path, ("client_id", "path", "sentence")):
        if row["sentence"] is None or not row["path"]:
            yield Skip(f"{place}: too few columns; expected client_id, path and sentence")
            continue
        language = row.get("locale") or path.resolve().parent.name
        name = row["path"] if Path(row["path"]).suffix else f"{row['path']}.mp3"
        yield CorpusEntry(
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
    """Seconds of each clip, from Common Voice's own list if the release has one."""
    if not path.is_file():
        return {}
    seconds = {}
    for row, _ in tab_separated(path, ("clip", "duration[ms]")):
        with suppress(ValueError):  # then the audio header has it
            seconds[row["clip"] or ""] = float(row["duration[ms]"] or "none") / 1000
    return seconds


def _audio_files(where: Path) -> list[Path]:
    return _below(where, lambda name: PurePath(name).suffix.lower() in SUFFIXES)


def _below(where: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """Files at any depth with a wanted name; follows links, which `rglob` does not."""
    paths, seen = [], set()
    for folder, inner, files in os.walk(where, followlinks=True):
        if (real := os.path.realpath(folder)) in seen:  # a link to a folder visited before
            inner.clear()
            continue
        seen.add(real)
        paths += [Path(folder, name) for name in files if wanted(name)]
    return sorted(paths)


def _beside(path: Path, where: Path) -> Iterator[CorpusEntry | Skip]:
    """NAME.flac (or another format) with its transcript beside it in NAME.txt."""
    text = path.with_suffix(".txt")
    if text.is_file():
        name = path.relative_to(where).with_suffix("").as_posix()
        yield CorpusEntry(name, path, " ".join("\n".join(lines_of(text)).split()), str(path))
    else:
        yield Skip(f"{path}: no transcript beside it; expected {text.name}")


# In the order in which "auto" tries them, cheapest check first.
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
    "folder": Layout(_audio_files, _beside, "audio files with a .txt of the same name beside each"),
}
