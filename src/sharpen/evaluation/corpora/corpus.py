"""Corpora: utterances with their references, from a manifest, a folder in a known layout, or the hub."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.hub import PREFIX, hub_name, read_hub
from sharpen.evaluation.corpora.layouts import LAYOUTS, CorpusEntry, EncodedAudio, Skip
from sharpen.models.languages import language_code
from sharpen.speech.audio import SAMPLING_RATE, read_audio
from sharpen.speech.noise import Corruption, corruption

NAMED = 5  # bad entries that one error message lists
CLEAN = "clean"  # the domain of English speech without a domain of its own
TOLERANCE = 0.1  # seconds by which a segment may exceed its recording: lists round their numbers


@dataclass(frozen=True)
class Utterance:
    """One utterance: its reference and its audio."""

    corpus: str
    domain: str  # the column of a table that it belongs to: a noise, an accent, a language, or CLEAN
    id: str  # unique in its corpus and domain; seeds its noise and its samples
    reference: str
    language: str  # Whisper's code
    speaker: str  # empty where unknown
    duration: float  # seconds
    path: Path | EncodedAudio
    corruption: Corruption | None = None
    offset: float | None = None  # where the utterance begins in the recording, seconds; None takes all of it
    mixed: Mapping[str, Any] = field(default_factory=dict, hash=False)  # noise already in the recording: name and SNR
    origin: str = ""  # fingerprint of the files that the recording was mixed from, if it was

    def samples(self) -> np.ndarray:
        """(N,) float32, mono, 16 kHz, with the corruption's noise added."""
        samples = _samples(self.path)
        if self.offset is not None:
            start = round(self.offset * SAMPLING_RATE)
            length = len(samples) / SAMPLING_RATE
            samples = samples[start : start + round(self.duration * SAMPLING_RATE)]
            if len(samples) / SAMPLING_RATE < max(self.duration - TOLERANCE, 1 / SAMPLING_RATE):
                raise SharpenError(
                    f"{self.path} lasts {length:.2f} s, but {self.id} should be at {self.offset:g} s to "
                    f"{self.offset + self.duration:g} s: correct its offset and duration"
                )
        return samples if self.corruption is None else self.corruption(samples, self.id)

    @property
    def fingerprint(self) -> str:
        """A hash of the audio: of the file, the offset, and the noise clip."""
        if self.origin:
            return self.origin
        clip = self.corruption.clip if self.corruption else None
        parts = (_digest(self.path), self.offset, clip and _digest(clip))
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]

    def within(self, noise: Corruption) -> Utterance:
        """The same utterance in noise. The noise replaces the domain `clean` and is appended to any other.

        With `--domain GS` all accents of a corpus share one column.
        """
        if self.mixed:
            raise SharpenError(
                f"{self.corpus}: {self.id} already has {self.mixed['noise']} noise at {self.mixed['snr']:g} dB; "
                f"use the clean corpus to add {noise.noise}, or add no noise"
            )
        domain = noise.noise if self.domain in (CLEAN, noise.noise) else f"{self.domain} {noise.noise}"
        return replace(self, domain=domain, corruption=noise)


@dataclass(frozen=True)
class Corpus:
    """Utterances in the order of their list, and the reasons why others were skipped."""

    name: str
    utterances: tuple[Utterance, ...]
    skipped: tuple[str, ...] = ()  # one reason for each

    @property
    def domains(self) -> tuple[str, ...]:
        """In order of appearance."""
        return tuple(dict.fromkeys(u.domain for u in self.utterances))

    def corrupted(
        self,
        noise: str,
        snr: float,
        folder: str | Path | None = None,
        *,
        snr_rule: str = "true",
        overflow: str = "float",
        draw: int = 0,
    ) -> Corpus:
        """The same utterances in noise, mixed when they are read; sample by sample what `build` writes to files."""
        added = corruption(noise, snr, folder, snr_rule=snr_rule, overflow=overflow, draw=draw)
        return replace(self, utterances=tuple(u.within(added) for u in self.utterances))

    def first(self, n: int | None, seed: int = 0) -> Corpus:
        """The first `n` in an order shuffled by `seed`; None keeps all, in the order of the list.

        The order depends on the ids only. So a larger `n` adds to a smaller one, every noise gets the same utterances,
        and a missing file does not change which others are chosen.
        """
        if n is None:
            return self
        return replace(self, utterances=tuple(sorted(self.utterances, key=lambda u: _shuffled(u.id, seed))[:n]))


def read_corpus(
    where: str | Path,
    *,
    layout: str = "auto",
    skip_bad: bool = False,
    language: str | None = None,
    domain: str | None = None,
    max_seconds: float | None = None,
) -> Corpus:
    """The corpus at `where`: a manifest, a folder in one of LAYOUTS, or "hf:ID[:config[:split]]".

    `language` and `domain` replace those of the corpus. Utterances longer than `max_seconds` are skipped. An entry that
    cannot be used is an error that names it, or with `skip_bad` a reason in `skipped`.
    """
    name, entries = _entries(where, layout)
    utterances: list[Utterance] = []
    skips: list[Skip] = []
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        result = entry if isinstance(entry, Skip) else _utterance(entry, name, language, domain, max_seconds)
        if isinstance(result, Utterance) and isinstance(entry, CorpusEntry) and (result.domain, result.id) in seen:
            result = Skip(f"{entry.place}: duplicate id {result.id} in domain {result.domain}; ids must be unique")
        if isinstance(result, Skip):
            skips.append(result)
        else:
            utterances.append(result)
            seen.add((result.domain, result.id))
    bad = [skip.reason for skip in skips if not skip.expected]
    if bad and not skip_bad:
        raise SharpenError(_bad_entries(where, bad, len(utterances) + len(skips)))
    if not utterances:
        reasons = "; ".join(skip.reason for skip in skips[:NAMED])
        raise SharpenError(f"{where}: none of {len(skips)} utterances can be used ({reasons or 'the list is empty'})")
    return Corpus(name, tuple(utterances), tuple(skip.reason for skip in skips))


def _entries(where: str | Path, layout: str) -> tuple[str, Iterable[CorpusEntry | Skip]]:
    """The corpus's name and its entries."""
    if layout not in ("auto", *LAYOUTS):
        raise SharpenError(f"unknown layout {layout!r}; choose from auto, {', '.join(LAYOUTS)}")
    if str(where).startswith(PREFIX):
        return hub_name(str(where)), read_hub(str(where))
    path = Path(where)
    if not path.exists():
        raise SharpenError(f"{path}: no such file or folder; expected a manifest, the folder of a corpus, or hf:ID")
    for name in LAYOUTS if layout == "auto" else (layout,):
        lists = LAYOUTS[name].find(path)
        if lists:
            read = LAYOUTS[name].read
            return _name(path, name), (entry for part in lists for entry in read(part, path))
    if layout == "auto":
        known = "; ".join(f"{name}: {known.expects}" for name, known in LAYOUTS.items())
        raise SharpenError(f"{path}: unknown layout of a corpus; expected one of these: {known}")
    raise SharpenError(f"{path} does not have the layout {layout}: expected {LAYOUTS[layout].expects}")


def _name(path: Path, layout: str) -> str:
    """The corpus's name: the layout and the folder's name (`librispeech-test-other`)."""
    path = path.resolve()
    if layout in ("manifest", "folder"):
        return (
            path.stem if path.is_file() and path.stem != "manifest" else (path.parent if path.is_file() else path).name
        )
    folder = path.parent if path.is_file() else path
    return folder.name if layout.replace("-", "") in folder.name.lower().replace("-", "") else f"{layout}-{folder.name}"


def _utterance(
    entry: CorpusEntry, corpus: str, language: str | None, domain: str | None, max_seconds: float | None
) -> Utterance | Skip:
    audio, offset = entry.audio, entry.offset
    try:
        "".join((entry.id, entry.text, entry.language, entry.speaker, entry.domain, entry.corpus)).encode()
    except UnicodeEncodeError:
        return Skip(f"{entry.place}: the text is not valid UTF-8; save it again as UTF-8")
    if offset is not None and not (math.isfinite(offset) and offset >= 0):
        return Skip(f"{entry.place}: offset {offset} s; expected 0 or more")
    try:
        if isinstance(audio, Path) and not audio.is_file():
            return Skip(f"{entry.place}: no audio at {audio}")
        code = language_code(language or entry.language or "en")
        duration = _seconds(audio) - (offset or 0.0) if entry.duration is None else entry.duration
    except (SharpenError, OSError) as error:
        return Skip(f"{entry.place}: {error}")
    if not math.isfinite(duration) or duration <= 0:
        return Skip(f"{entry.place}: duration {duration} s; expected more than 0")
    if max_seconds is not None and duration > max_seconds:
        return Skip(f"{entry.place}: duration {duration:.2f} s, over the limit of {max_seconds:g} s", expected=True)
    return Utterance(
        corpus=entry.corpus or corpus,
        domain=domain or entry.domain or (code if code != "en" else CLEAN),
        id=entry.id,
        reference=entry.text,
        language=code,
        speaker=entry.speaker,
        duration=duration,
        path=audio.absolute() if isinstance(audio, Path) else audio,  # a worker may run in another folder
        offset=offset,
        mixed=entry.mixed,
        origin=entry.origin,
    )


def _bad_entries(where: str | Path, bad: list[str], total: int) -> str:
    more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return (
        f"{where}: {len(bad)} of {total} entries cannot be used: {'; '.join(bad[:NAMED])}{more}. "
        "Repair them, or skip them with --skip-bad (skip_bad=True in Python)"
    )


def _shuffled(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\x00{name}".encode()).digest()


def _samples(source: Path | EncodedAudio) -> np.ndarray:
    """The whole recording. A damaged one is an error: lost audio would be scored as the model's deletions."""
    floats = _floats(source) if isinstance(source, Path) and source.suffix.lower() == ".wav" else None
    audio = read_audio(source if floats is None else floats)
    if audio.skipped:
        raise SharpenError(
            f"{source} is damaged: {audio.skipped} packets cannot be decoded, and {audio.duration:.2f} s are left; "
            "get a fresh copy, or remove it from the corpus"
        )
    return audio.samples


def _digest(source: Path | EncodedAudio) -> str:
    try:
        content = source.read_bytes() if isinstance(source, Path) else source.read()
    except OSError as error:
        raise SharpenError(f"{source} cannot be read: {error.strerror or error}") from error
    return hashlib.sha256(content).hexdigest()


def _floats(path: Path) -> np.ndarray | None:
    """The exact samples of a mono 16 kHz 32-bit float file, which `read_audio` would round to 16 bits; else None."""
    try:
        with _opened(path) as (container, stream):
            context = stream.codec_context
            if (context.name, context.sample_rate, context.channels) != ("pcm_f32le", SAMPLING_RATE, 1):
                return None
            blocks = [frame.to_ndarray()[0] for frame in container.decode(stream)]
    except (av.error.FFmpegError, SharpenError):
        return None  # damaged: read_audio recovers what it can, or raises
    return np.concatenate(blocks) if blocks else None


def _seconds(source: Path | EncodedAudio) -> float:
    """The duration from the header; if it has none, from decoding the file."""
    with _opened(source) as (container, stream):
        if stream.duration is not None and stream.time_base is not None:
            return float(stream.duration * stream.time_base)
        if container.duration is not None:
            return float(container.duration / av.time_base)
    return read_audio(source).duration


@contextmanager
def _opened(source: Path | EncodedAudio) -> Iterator[tuple[InputContainer, AudioStream]]:
    file = source.open("rb") if isinstance(source, Path) else io.BytesIO(source.read())
    # As in read_audio: a playlist must not open other files.
    options = {"protocol_whitelist": "pipe"}
    try:
        with file, av.open(file, mode="r", metadata_errors="ignore", options=options) as container:
            if not container.streams.audio:
                raise SharpenError(f"{source} has no audio stream")
            yield container, container.streams.audio[0]
    except av.error.FFmpegError as error:
        raise SharpenError(f"{source} cannot be decoded ({error.strerror or error})") from error
