"""Audio from a file, bytes, a stream or an array: mono float32 at the model's sampling rate.

`read_audio` decodes all of it. `open_audio` leaves a long recording where it is and decodes it as it is asked for
(speech/stream.py). Nothing is fetched from a network.
"""

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sharpen.errors import AudioError
from sharpen.speech.container import Damage, decode_pieces
from sharpen.speech.samples import NO_LIMITS, ReadLimits, as_array, mono, resample
from sharpen.speech.stream import StreamedSamples, as_float

SAMPLING_RATE = 16_000  # Hz, of every Whisper checkpoint
SILENCE_PEAK = 1e-4  # -80 dBFS: above the residue that dither and lossy codecs leave, far below any recorded room
LONG = 600.0  # seconds; a longer recording is streamed

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")


@dataclass(frozen=True, eq=False)
class Audio:
    """One recording, ready for a model."""

    samples: np.ndarray  # (N,) float32, mono, nominally within [-1, 1]; or `StreamedSamples`, whose slices are arrays
    sampling_rate: int = SAMPLING_RATE  # Hz
    name: str = "audio"  # the file's stem, "stdin", or "audio" if the source has no name
    skipped: int = 0  # damaged packets or frames that were replaced by silence

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sampling_rate

    def at(self, sampling_rate: int) -> "Audio":
        """The same audio at another rate, checked: mono, finite float32."""
        if isinstance(self.samples, StreamedSamples):
            if sampling_rate != self.sampling_rate:
                raise AudioError(f"{self.name} is open at {self.sampling_rate} Hz: open it at {sampling_rate} Hz")
            return self
        valid = self.samples.ndim == 1 and self.samples.dtype == np.float32 and np.isfinite(self.samples).all()
        if valid and sampling_rate == self.sampling_rate:
            return self
        samples = resample(mono(as_array(self.samples)), self.sampling_rate, sampling_rate)
        return replace(self, samples=samples, sampling_rate=sampling_rate)

    @property
    def is_silent(self) -> bool:
        """No sample reaches -80 dBFS: there is nothing to transcribe, and the transcript is empty."""
        return max(float(self.samples.max()), -float(self.samples.min())) < SILENCE_PEAK

    @property
    def fingerprint(self) -> str:
        """Of all samples, and not of the file's name."""
        if isinstance(self.samples, StreamedSamples):
            return self.samples.digest
        return hashlib.blake2b(np.ascontiguousarray(self.samples).data, digest_size=16).hexdigest()


@dataclass(frozen=True)
class _Encoded:
    """A container that has not been decoded."""

    open: Callable[[], AbstractContextManager[BinaryIO]]  # at its start
    label: str  # in errors
    name: str

    def pieces(self, sampling_rate: int, damage: Damage, limits: ReadLimits = NO_LIMITS) -> Iterator[bytes]:
        try:
            with self.open() as file:
                yield from decode_pieces(file, self.label, sampling_rate, damage, limits)
        except OSError as error:
            raise AudioError(f"{self.label} cannot be opened: {error.strerror or error}") from error


def read_audio(
    source: Any, *, sampling_rate: int = SAMPLING_RATE, rate: int | None = None, limits: ReadLimits = NO_LIMITS
) -> Audio:
    """Read `source`: a path, encoded bytes, a binary file object, or samples (anything numpy can view as an array).

    `sampling_rate` is the rate of the result. `rate` is the rate of an array, by default `sampling_rate`; files have
    their own. Samples are (N,), (channels, N) or (N, channels), floats in [-1, 1] or PCM integers. `limits` are for
    containers.
    """
    if hasattr(source, "__array__"):
        rate = sampling_rate if rate is None else rate
        return Audio(resample(mono(as_array(source)), rate, sampling_rate), sampling_rate)
    encoded, damage = _encoded(source), Damage()
    pcm = bytearray()
    for piece in encoded.pieces(sampling_rate, damage, limits):
        pcm += piece
    return Audio(as_float(pcm), sampling_rate, encoded.name, damage.skipped)


def open_audio(source: Any, *, sampling_rate: int = SAMPLING_RATE) -> Audio:
    """As `read_audio`, but a recording longer than LONG seconds is never in memory as a whole.

    It is decoded once here, to know its length and what is damaged, and again as its samples are asked for. What is no
    file on disk is kept as it is encoded.
    """
    if hasattr(source, "__array__"):
        return read_audio(source, sampling_rate=sampling_rate)
    encoded, damage = _encoded(source, again=True), Damage()
    pcm, total, digest = bytearray(), 0, hashlib.blake2b(digest_size=16)
    for piece in encoded.pieces(sampling_rate, damage):
        total += len(piece)
        digest.update(piece)
        if total <= 2 * LONG * sampling_rate:
            pcm += piece
        else:
            pcm = bytearray()
    if pcm:
        return Audio(as_float(pcm), sampling_rate, encoded.name, damage.skipped)

    def pieces() -> Iterator[bytes]:
        return encoded.pieces(sampling_rate, Damage())

    samples = StreamedSamples(pieces, total // 2, encoded.label, digest.hexdigest())
    return Audio(cast(np.ndarray, samples), sampling_rate, encoded.name, damage.skipped)


def _encoded(source: Any, again: bool = False) -> _Encoded:
    """`again`: it must be possible to open it more than once, also after a file object was closed."""
    if isinstance(source, (str, Path)):
        path = _existing(source)
        # A file name need not be valid text, and this one is written to pages and seeds random draws.
        name = path.stem.encode("utf-8", "replace").decode()
        if path.is_file():
            return _Encoded(lambda: path.open("rb"), str(path), name)
        try:
            data = path.read_bytes()  # a pipe, which can be read once
        except OSError as error:
            raise AudioError(f"{path} cannot be opened: {error.strerror or error}") from error
        return _Encoded(lambda: io.BytesIO(data), str(path), name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _Encoded(lambda: io.BytesIO(source), "the given data", "audio")
    if not hasattr(source, "read"):
        kind = type(source).__name__
        raise AudioError(f"audio of type {kind} cannot be read: give a path, bytes, a binary file object or an array")
    label, stem = getattr(source, "name", None), "audio"
    if isinstance(label, str) and not label.startswith("<"):
        stem = Path(label).stem.encode("utf-8", "replace").decode()
    else:
        stem = "stdin" if label in ("<stdin>", 0) else "audio"
        label = f"the {stem} stream"
    file = _seekable(source)
    if again and file is source:
        file = io.BytesIO(file.read())
    if isinstance(file, io.BytesIO) and file is not source:
        kept = file.getbuffer()
        return _Encoded(lambda: io.BytesIO(kept), label, stem)
    return _Encoded(lambda: nullcontext(file), label, stem)


def _existing(source: str | Path) -> Path:
    path = Path(source)
    try:
        there, folder = path.exists(), path.is_dir()
    except OSError as error:  # a name that is too long, a folder without permission
        reason = error.strerror or error
        raise AudioError(f"{str(path)[:200]} cannot be opened: {reason}; check the path") from error
    if not there:
        if _URL.match(str(source)):
            raise AudioError(
                f"{source} is a URL, and sharpen does not download audio: download it first, then give the file's path"
            )
        raise AudioError(f"{path}: no such file; check the path")
    if folder:
        raise AudioError(f"{path} is a directory; give the audio files in it")
    return path


def _seekable(file: Any) -> BinaryIO:
    """The file itself if it is seekable and at its start; otherwise the rest of it, read into memory."""
    if isinstance(file, io.TextIOBase):
        raise AudioError("the file object is in text mode, and audio is binary: open it with mode 'rb'")
    if hasattr(file, "seekable") and file.seekable() and file.tell() == 0:
        return file  # type: ignore[no-any-return]
    return io.BytesIO(file.read())
