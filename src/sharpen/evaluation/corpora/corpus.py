"""Corpora: utterances with their references, from a manifest, a folder in its own layout, or the hub."""

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
from sharpen.evaluation.corpora.layouts import LAYOUTS, Entry, Skip, Stored
from sharpen.models.languages import language_code
from sharpen.speech.audio import SAMPLING_RATE, read_audio
from sharpen.speech.noise import Corruption, corruption

NAMED = 5  # bad entries that one complaint lists
CLEAN = "clean"  # the domain of English that nothing else is said of
SHORT = 0.1  # seconds that a cut may lack at the end of its recording: lists round


@dataclass(frozen=True)
class Utterance:
    """One thing that was said, and where to hear it."""

    corpus: str
    domain: str  # the column of a table that it belongs to: a noise, an accent, a language, or CLEAN
    id: str  # unique in its corpus and domain; seeds what is drawn for it
    reference: str
    language: str  # Whisper's code
    speaker: str  # empty where unknown
    duration: float  # seconds
    path: Path | Stored
    corruption: Corruption | None = None
    offset: float | None = None  # seconds into the recording, where the corpus cuts it; None takes all of it
    mixed: Mapping[str, Any] = field(default_factory=dict, hash=False)  # noise in the recording, and its ratio
    origin: str = ""  # its fingerprint, where it was mixed from other files

    def samples(self) -> np.ndarray:
        """(N,) float32, mono, 16 kHz, with the noise of the corruption in it."""
        samples = _samples(self.path)
        if self.offset is not None:
            start = round(self.offset * SAMPLING_RATE)
            lasts = len(samples) / SAMPLING_RATE
            samples = samples[start : start + round(self.duration * SAMPLING_RATE)]
            if len(samples) / SAMPLING_RATE < max(self.duration - SHORT, 1 / SAMPLING_RATE):
                raise SharpenError(
                    f"{self.path} lasts {lasts:.2f} s, and {self.id} is said to be in it from {self.offset:g} s to "
                    f"{self.offset + self.duration:g} s: correct its offset and duration"
                )
        return samples if self.corruption is None else self.corruption(samples, self.id)

    @property
    def fingerprint(self) -> str:
        """Changes with what is heard: with the file, the cut, and the clip of the noise."""
        if self.origin:
            return self.origin
        clip = self.corruption.clip if self.corruption else None
        heard = (_digest(self.path), self.offset, clip and _digest(clip))
        return hashlib.sha256(repr(heard).encode()).hexdigest()[:12]

    def within(self, noise: Corruption) -> Utterance:
        """The same in noise, which then is its domain, or stands behind the one it has.

        Whoever names the noise as the domain (`--domain GS`) has one column for all accents of a corpus.
        """
        if self.mixed:
            raise SharpenError(
                f"{self.corpus}: {self.id} is in {self.mixed['noise']} at {self.mixed['snr']:g} dB already; "
                f"take the clean corpus to mix {noise.noise} into it, or mix nothing"
            )
        domain = noise.noise if self.domain in (CLEAN, noise.noise) else f"{self.domain} {noise.noise}"
        return replace(self, domain=domain, corruption=noise)


@dataclass(frozen=True)
class Corpus:
    """Utterances in the order of their list, and what was left out."""

    name: str
    utterances: tuple[Utterance, ...]
    skipped: tuple[str, ...] = field(default=())  # a reason for each

    @property
    def domains(self) -> tuple[str, ...]:
        """In the order of their first utterances."""
        return tuple(dict.fromkeys(u.domain for u in self.utterances))

    def corrupted(
        self,
        noise: str,
        snr: float,
        folder: str | Path | None = None,
        *,
        snr_rule: str = "true",
        overflow: str = "float",
    ) -> Corpus:
        """The same utterances in noise, mixed when they are read: exactly the samples that `build` writes to files."""
        added = corruption(noise, snr, folder, snr_rule=snr_rule, overflow=overflow)
        return replace(self, utterances=tuple(u.within(added) for u in self.utterances))

    def first(self, n: int | None, seed: int = 0) -> Corpus:
        """The first `n` in the order that the seed shuffles them into; None keeps all, in the order of the list.

        The order follows from the ids alone. So a larger `n` adds to a smaller one, the same are chosen in every noise,
        and one missing file does not change the choice of the others.
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

    `language` and `domain` stand in for whatever the corpus says. Utterances over `max_seconds` are left out. An entry
    that cannot be used is an error that names it, or with `skip_bad` one more reason in `skipped`.
    """
    name, entries = _entries(where, layout)
    utterances: list[Utterance] = []
    skips: list[Skip] = []
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        result = entry if isinstance(entry, Skip) else _utterance(entry, name, language, domain, max_seconds)
        if isinstance(result, Utterance) and isinstance(entry, Entry) and (result.domain, result.id) in seen:
            result = Skip(f"{entry.place}: a second {result.id} in {result.domain}; give every utterance its own id")
        if isinstance(result, Skip):
            skips.append(result)
        else:
            utterances.append(result)
            seen.add((result.domain, result.id))
    bad = [skip.reason for skip in skips if not skip.expected]
    if bad and not skip_bad:
        raise SharpenError(_complaint(where, bad, len(utterances) + len(skips)))
    if not utterances:
        reasons = "; ".join(skip.reason for skip in skips[:NAMED])
        raise SharpenError(f"{where}: no utterance left of {len(skips)} ({reasons or 'it lists nothing'})")
    return Corpus(name, tuple(utterances), tuple(skip.reason for skip in skips))


def _entries(where: str | Path, layout: str) -> tuple[str, Iterable[Entry | Skip]]:
    """The corpus's name and what it lists."""
    if layout not in ("auto", *LAYOUTS):
        raise SharpenError(f"unknown layout {layout!r}; choose from auto, {', '.join(LAYOUTS)}")
    if str(where).startswith(PREFIX):
        return hub_name(str(where)), read_hub(str(where))
    path = Path(where)
    if not path.exists():
        raise SharpenError(f"{path}: no such file or folder; expected a manifest, a corpus's folder, or hf:ID")
    for name in LAYOUTS if layout == "auto" else (layout,):
        found = LAYOUTS[name].find(path)
        if found:
            read = LAYOUTS[name].read
            return _name(path, name), (entry for part in found for entry in read(part, path))
    if layout == "auto":
        known = "; ".join(f"{name}: {known.expects}" for name, known in LAYOUTS.items())
        raise SharpenError(f"{path} is in no layout known here; expected one of these: {known}")
    raise SharpenError(f"{path} is not in the layout {layout}: expected {LAYOUTS[layout].expects}")


def _name(path: Path, layout: str) -> str:
    """What to call it: the folder's name, with the corpus's own before it (`librispeech-test-other`)."""
    path = path.resolve()
    if layout in ("manifest", "folder"):
        return (
            path.stem if path.is_file() and path.stem != "manifest" else (path.parent if path.is_file() else path).name
        )
    folder = path.parent if path.is_file() else path
    return folder.name if layout.replace("-", "") in folder.name.lower().replace("-", "") else f"{layout}-{folder.name}"


def _utterance(
    entry: Entry, corpus: str, language: str | None, domain: str | None, max_seconds: float | None
) -> Utterance | Skip:
    audio, offset = entry.audio, entry.offset
    try:
        "".join((entry.id, entry.text, entry.language, entry.speaker, entry.domain, entry.corpus)).encode()
    except UnicodeEncodeError:
        return Skip(f"{entry.place}: not UTF-8, or half a character; write its text again")
    if offset is not None and not (math.isfinite(offset) and offset >= 0):
        return Skip(f"{entry.place}: begins at {offset} s of its recording; expected 0 or more")
    try:
        if isinstance(audio, Path) and not audio.is_file():
            return Skip(f"{entry.place}: no audio at {audio}")
        code = language_code(language or entry.language or "en")
        duration = _seconds(audio) - (offset or 0.0) if entry.duration is None else entry.duration
    except (SharpenError, OSError) as error:
        return Skip(f"{entry.place}: {error}")
    if not math.isfinite(duration) or duration <= 0:
        return Skip(f"{entry.place}: lasts {duration} s; expected more than 0")
    if max_seconds is not None and duration > max_seconds:
        return Skip(f"{entry.place}: lasts {duration:.2f} s, more than {max_seconds:g} s", expected=True)
    return Utterance(
        corpus=entry.corpus or corpus,
        domain=domain or entry.domain or (code if code != "en" else CLEAN),
        id=entry.id,
        reference=entry.text,
        language=code,
        speaker=entry.speaker,
        duration=duration,
        path=audio.absolute() if isinstance(audio, Path) else audio,  # a worker may be in another folder
        offset=offset,
        mixed=entry.mixed,
        origin=entry.origin,
    )


def _complaint(where: str | Path, bad: list[str], total: int) -> str:
    more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return (
        f"{where}: {len(bad)} of {total} entries cannot be used: {'; '.join(bad[:NAMED])}{more}. "
        "Repair them, or go on without them: --skip-bad, skip_bad=True in Python"
    )


def _shuffled(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}\x00{name}".encode()).digest()


def _samples(source: Path | Stored) -> np.ndarray:
    """Of the whole recording; one with holes in it would be scored as if its model had missed the words."""
    floats = _floats(source) if isinstance(source, Path) and source.suffix.lower() == ".wav" else None
    audio = read_audio(source if floats is None else floats)
    if audio.skipped:
        raise SharpenError(
            f"{source} is damaged: {audio.skipped} of its packets cannot be decoded, and {audio.duration:.2f} s are "
            "left; get a fresh copy, or take it out of the corpus"
        )
    return audio.samples


def _digest(source: Path | Stored) -> str:
    try:
        content = source.read_bytes() if isinstance(source, Path) else source.read()
    except OSError as error:
        raise SharpenError(f"{source} cannot be read: {error.strerror or error}") from error
    return hashlib.sha256(content).hexdigest()


def _floats(path: Path) -> np.ndarray | None:
    """The samples of a 32-bit float file at our rate as they are; `read_audio` would round them to 16 bits."""
    try:
        with _opened(path) as (container, stream):
            context = stream.codec_context
            if (context.name, context.sample_rate, context.channels) != ("pcm_f32le", SAMPLING_RATE, 1):
                return None
            blocks = [frame.to_ndarray()[0] for frame in container.decode(stream)]
    except (av.error.FFmpegError, SharpenError):
        return None  # damaged: read_audio saves what can be saved, or says what is wrong
    return np.concatenate(blocks) if blocks else None


def _seconds(source: Path | Stored) -> float:
    """From the header where it tells; otherwise all of it is decoded."""
    with _opened(source) as (container, stream):
        if stream.duration is not None and stream.time_base is not None:
            return float(stream.duration * stream.time_base)
        if container.duration is not None:
            return float(container.duration / av.time_base)
    return read_audio(source).duration


@contextmanager
def _opened(source: Path | Stored) -> Iterator[tuple[InputContainer, AudioStream]]:
    file = source.open("rb") if isinstance(source, Path) else io.BytesIO(source.read())
    # As in read_audio: a playlist must not be able to name other files.
    options = {"protocol_whitelist": "pipe"}
    try:
        with file, av.open(file, mode="r", metadata_errors="ignore", options=options) as container:
            if not container.streams.audio:
                raise SharpenError(f"{source} holds no sound")
            yield container, container.streams.audio[0]
    except av.error.FFmpegError as error:
        raise SharpenError(f"{source} is not audio that can be decoded ({error.strerror or error})") from error
