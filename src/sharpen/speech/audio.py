"""Audio from a file, bytes, a stream or an array: mono float32 at the rate the model wants.

Files are decoded by PyAV, packet by packet, so a damaged packet costs its own few milliseconds and not the file:
silence takes its place where its length is known, so that later times stay true, and the damage is counted. Nothing is
ever fetched from a network.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from sharpen.errors import AudioError

SAMPLING_RATE = 16_000  # Hz, what every Whisper checkpoint was trained on
SILENCE_PEAK = 1e-4  # -80 dBFS: above the residue that dither and lossy codecs leave, far below any recorded room
MAX_CHANNELS = 8  # 7.1; an array axis longer than this is time
MAX_FLOAT_PEAK = 16.0  # float mixes overshoot 1.0 a little; beyond this they are integers in disguise
MIN_HOLE = 0.02  # seconds between time stamps that count as lost sound; containers round theirs to milliseconds
MAX_HOLES = 600.0  # seconds of silence put into a file that does not tell its length: more is damage
LONGEST_HOLES = 4 * 3600.0  # and into one that does; there more is refused, since it would fill the memory
LATE = 0.1  # seconds after its file's beginning at which a track counts as beginning late; codecs start within less
DAMAGED_READS = 1_000  # unreadable packets in a row after which the rest of the file is given up

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
_FORMATS = "wav, flac, mp3, m4a, ogg, opus, webm or a video with sound"
_CHUNK = 1 << 16  # samples handed to the resampler at a time


@dataclass(frozen=True, eq=False)
class Audio:
    """One recording, ready for a model."""

    samples: np.ndarray  # (N,) float32, mono, nominally within [-1, 1]
    sampling_rate: int = SAMPLING_RATE  # Hz
    name: str = "audio"  # the file's stem, "stdin", or "audio" where the source has no name
    skipped: int = 0  # damaged packets or frames that silence stands in for

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sampling_rate

    def at(self, sampling_rate: int) -> "Audio":
        """The same sound at another rate, in one channel of finite numbers."""
        sound = self.samples.ndim == 1 and self.samples.dtype == np.float32 and np.isfinite(self.samples).all()
        if sound and sampling_rate == self.sampling_rate:
            return self
        samples = _resample(_mono(_as_array(self.samples)), self.sampling_rate, sampling_rate)
        return replace(self, samples=samples, sampling_rate=sampling_rate)

    @property
    def is_silent(self) -> bool:
        """No sample reaches -80 dBFS, so there is nothing to transcribe: legal to read, and its transcript is empty."""
        return max(float(self.samples.max()), -float(self.samples.min())) < SILENCE_PEAK


def read_audio(source: Any, *, sampling_rate: int = SAMPLING_RATE, rate: int | None = None) -> Audio:
    """Read `source`: a path, encoded bytes, a binary file object, or samples (anything numpy can view as an array).

    `sampling_rate` is the rate wanted. `rate` is the rate an array was recorded at, `sampling_rate` if not given;
    encoded audio carries its own. Samples are (N,), (channels, N) or (N, channels), floats in [-1, 1] or PCM integers.
    """
    if isinstance(source, (str, Path)):
        return _read_path(source, sampling_rate)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(io.BytesIO(source), "the given bytes", "audio", sampling_rate)
    if hasattr(source, "__array__"):
        rate = sampling_rate if rate is None else rate
        return Audio(_resample(_mono(_as_array(source)), rate, sampling_rate), sampling_rate)
    if hasattr(source, "read"):
        return _read_stream(source, sampling_rate)
    raise AudioError(
        f"audio of type {type(source).__name__} cannot be read: give a path, bytes, a binary file object or an array"
    )


def _read_path(source: str | Path, sampling_rate: int) -> Audio:
    path = Path(source)
    try:
        there, folder = path.exists(), path.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise AudioError(f"{str(path)[:200]} cannot be opened: {error.strerror or error}") from error
    if not there:
        if _URL.match(str(source)):
            raise AudioError(
                f"{source} is a URL and sharpen fetches nothing: download it first, then give the path of the file"
            )
        raise AudioError(f"{path}: no such file; check the path")
    if folder:
        raise AudioError(f"{path} is a directory; give the audio files in it, one by one")
    try:
        with path.open("rb") as file:
            return _decode(_seekable(file), str(path), path.stem, sampling_rate)
    except OSError as error:
        raise AudioError(f"{path} cannot be opened: {error.strerror or error}") from error


def _read_stream(file: Any, sampling_rate: int) -> Audio:
    label = getattr(file, "name", None)
    if isinstance(label, str) and not label.startswith("<"):
        return _decode(_seekable(file), label, Path(label).stem, sampling_rate)
    stem = "stdin" if label in ("<stdin>", 0) else "audio"
    return _decode(_seekable(file), f"the {stem} stream", stem, sampling_rate)


def _seekable(file: Any) -> BinaryIO:
    """The file itself where decoders may move about in it; all that is left of it, in memory, where they may not."""
    if isinstance(file, io.TextIOBase):
        raise AudioError("the file object gives text, and audio is binary: open it with mode 'rb'")
    if hasattr(file, "seekable") and file.seekable() and file.tell() == 0:
        return file  # type: ignore[no-any-return]
    return io.BytesIO(file.read())


def _decode(file: BinaryIO, label: str, name: str, sampling_rate: int) -> Audio:
    if not file.read(1):
        raise AudioError(f"{label} is empty (0 bytes, or already read to its end); expected {_FORMATS}")
    file.seek(0)
    try:
        # A playlist names other files and addresses to open: with this list of protocols FFmpeg may open none of them.
        container = av.open(file, metadata_errors="ignore", options={"protocol_whitelist": "pipe"}, mode="r")
    except (av.error.FFmpegError, OSError) as error:
        raise AudioError(
            f"{label} is not audio that can be decoded, or is cut off ({_reason(error)}); expected {_FORMATS}"
        ) from error
    with container:
        stream = container.streams.best("audio")
        if not isinstance(stream, AudioStream):
            found = ", ".join(sorted({s.type for s in container.streams})) or "no streams"
            raise AudioError(f"{label} holds no sound ({container.format.long_name}: {found}); expected {_FORMATS}")
        if stream.codec_context is None:
            raise AudioError(f"{label} is in an encoding that nothing here can decode; expected {_FORMATS}")
        pcm, skipped = _decode_stream(container, stream, sampling_rate)
    if not pcm and skipped:
        raise AudioError(f"{label} is corrupt: none of its {skipped} packets can be decoded; get a fresh copy")
    if not pcm:
        raise AudioError(f"{label} has a valid header and no samples: the recording is of zero length")
    samples = np.frombuffer(pcm, dtype=np.int16).astype(np.float32)  # (N,)
    samples /= 32768.0
    # A file's name may be no text at all; this one names random draws, and stands on pages.
    return Audio(samples, sampling_rate, name.encode("utf-8", "replace").decode(), skipped)


def _decode_stream(container: InputContainer, stream: AudioStream, sampling_rate: int) -> tuple[bytearray, int]:
    """All samples of the stream as int16 bytes, and how many packets were damaged or are missing.

    int16 also sets the level: libswresample's float down-mix of two equal channels is sqrt(2) louder than either.
    """
    if stream.codec_context.name == "flac":
        # Each FLAC frame has a checksum; without these flags the decoder returns a burst of noise for a damaged one.
        stream.codec_context.options = {"err_detect": "crccheck+explode"}
    pcm = bytearray()
    resampler = _Resampler(sampling_rate)
    skipped = 0
    failed = False  # since the last good frame: its hole in time is already counted
    origin = None  # seconds, the time stamp that is our zero
    seconds = filled = 0.0  # of input so far, and of silence put into it
    known = (container.duration or 0) / av.time_base
    room = min(known, LONGEST_HOLES) if known else MAX_HOLES
    for frames in _frames(container, stream):
        if frames is None:
            skipped, failed = skipped + 1, True
            continue
        for frame in frames:
            if frame.time is not None:
                late = False
                if origin is None:
                    begin = (container.start_time or 0) / av.time_base
                    late = frame.time - begin > LATE  # a video's picture may begin before its sound
                    origin = begin if late else frame.time
                hole = frame.time - origin - seconds
                if hole > MIN_HOLE:
                    skipped += not failed and not late
                    if filled + hole <= room:
                        seconds, filled = seconds + hole, filled + hole
                        pcm += resampler(None)
                        pcm += bytes(2 * round(hole * sampling_rate))
                    else:
                        origin += hole  # the time stamp is damaged: what follows is told from here
            pcm += resampler(frame)
            seconds += frame.samples / frame.sample_rate
            failed = False
    return pcm + resampler(None), skipped


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[list[AudioFrame] | None]:
    """The frames of each packet in turn; None for a packet that cannot be read or decoded."""
    floats = stream.codec_context.name.startswith("pcm_f")  # the one codec family that can hold NaN
    misses = 0
    while misses < DAMAGED_READS:
        try:
            for packet in container.demux(stream):
                try:
                    frames = packet.decode()
                    yield None if floats and not _finite(frames) else frames
                    misses = 0
                except av.error.FFmpegError:
                    yield None
            return
        except av.error.FFmpegError:
            misses += 1  # demuxing again goes on after the bytes that could not be read
            yield None


def _finite(frames: list[AudioFrame]) -> bool:
    return all(np.isfinite(f.to_ndarray()).all() for f in frames)


class _Resampler:
    """Frames in, mono int16 bytes at one rate out; begins anew where the stream changes its own rate or layout."""

    def __init__(self, sampling_rate: int) -> None:
        self.sampling_rate = sampling_rate
        self.inner: AudioResampler | None = None
        self.setup: tuple[str, str, int] | None = None  # format, layout, rate of the frames so far

    def __call__(self, frame: AudioFrame | None) -> bytes:
        """What `frame` adds to the output, or with None what is still inside."""
        if frame is None:
            inner, self.inner, self.setup = self.inner, None, None
            return b"".join(f.to_ndarray().tobytes() for f in inner.resample(None)) if inner else b""
        setup = frame.format.name, frame.layout.name, frame.sample_rate
        rest = b"" if setup == self.setup else self(None)
        if self.inner is None:
            self.inner = AudioResampler(format="s16", layout="mono", rate=self.sampling_rate)
            self.setup = setup
        frame.pts = None  # time stamps are dealt with by the caller; the resampler refuses those that jump
        return rest + b"".join(f.to_ndarray().tobytes() for f in self.inner.resample(frame))


def _as_array(source: Any) -> np.ndarray:
    try:
        return np.asarray(source)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU or with a gradient says so here
        raise AudioError(f"{type(source).__name__} cannot be viewed as a numpy array: {error}") from error


def _mono(array: np.ndarray) -> np.ndarray:
    """Samples of any accepted shape and type as (N,) float32."""
    if array.ndim == 2:
        short, long = sorted(array.shape)
        if short > MAX_CHANNELS or short == long:
            raise AudioError(
                f"an array of shape {array.shape} is not audio: expected (N,), (channels, N) or (N, channels) "
                f"with at most {MAX_CHANNELS} channels"
            )
        axis = array.shape.index(short)
        scaled = _scaled(array).mean(axis=axis, dtype=np.float32) if array.size else array.reshape(-1)
    elif array.ndim == 1:
        scaled = _scaled(array)
    else:
        raise AudioError(
            f"an array of shape {array.shape} is not one recording: expected (N,), (channels, N) or (N, channels)"
        )
    if scaled.size == 0:
        raise AudioError(f"an array of shape {array.shape} holds no samples: the recording is of zero length")
    return scaled


def _scaled(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:  # the one unsigned PCM, silent at 128
        return (array.astype(np.float32) - 128.0) / 128.0
    if array.dtype in (np.int8, np.int16, np.int32):
        return array.astype(np.float32) / -float(np.iinfo(array.dtype).min)
    if array.dtype.kind != "f":
        raise AudioError(
            f"samples of type {array.dtype} are not audio: expected floats in [-1, 1], or int16 or int32 PCM"
        )
    bad = array.size - int(np.isfinite(array).sum())
    if bad:
        raise AudioError(f"{bad} of {array.size} samples are NaN or infinite: repair or cut them out before reading")
    peak = float(np.abs(array).max(initial=0.0))
    if peak > MAX_FLOAT_PEAK:
        raise AudioError(
            f"float samples reach {peak:.6g} where [-1, 1] is expected: if they are int16 values, divide by 32768"
        )
    return array.astype(np.float32)


def _resample(samples: np.ndarray, rate: int, sampling_rate: int) -> np.ndarray:
    if rate <= 0:
        raise AudioError(
            f"a rate of {rate} Hz is not possible: give the samples per second of the array, such as 44100"
        )
    if rate == sampling_rate:
        return samples
    resampler = AudioResampler(format="flt", layout="mono", rate=sampling_rate)
    out: list[np.ndarray] = []
    for start in range(0, len(samples), _CHUNK):
        frame = AudioFrame.from_ndarray(samples[None, start : start + _CHUNK], format="flt", layout="mono")
        frame.sample_rate = rate
        out += [f.to_ndarray()[0] for f in resampler.resample(frame)]
    out += [f.to_ndarray()[0] for f in resampler.resample(None)]
    return np.concatenate(out) if out else np.zeros(0, np.float32)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
