"""Containers to samples: PyAV decodes a file packet by packet, so a damaged packet loses a few milliseconds and not the
file. Where its length is known, silence takes its place and later times stay correct; the damage is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from sharpen.errors import AudioError
from sharpen.speech.samples import MAX_CHANNELS, MAX_FLOAT_PEAK, MAX_RATE, MIN_RATE, NO_LIMITS, ReadLimits, scaled

MIN_HOLE = 0.02  # seconds between time stamps that count as lost audio; containers round theirs to milliseconds
MAX_HOLES = 600.0  # seconds of silence inserted into a file whose header has no duration: more is damage
LONGEST_HOLES = 4 * 3600.0  # the same for a file with a duration; more would fill the memory
LATE = 0.1  # seconds; an audio track that starts later than this keeps its offset, an earlier one starts at 0
DAMAGED_READS = 1_000  # unreadable packets in a row after which the rest of the file is skipped
HOLE_PIECE = 1 << 20  # samples of silence handed out at a time

_FORMATS = "wav, flac, mp3, m4a, ogg, opus, webm or a video with sound"


@dataclass
class Damage:
    """What was lost of a file so far."""

    skipped: int = 0  # packets that could not be decoded or are missing


def decode_pieces(
    file: BinaryIO, label: str, sampling_rate: int, damage: Damage, limits: ReadLimits = NO_LIMITS
) -> Iterator[bytes]:
    """The samples of a container, mono int16 at that rate, piece by piece; `damage` counts what is missing.

    `label` names the file in errors, which are raised as soon as they are known: the last one at its end.
    """
    if not file.read(1):
        raise AudioError(f"{label} is empty (0 bytes, or already read to its end); expected {_FORMATS}")
    file.seek(0)
    try:
        # A playlist names other files and URLs; with this list of protocols FFmpeg opens none of them.
        options = {"protocol_whitelist": "pipe", **({"format_whitelist": limits.formats} if limits.formats else {})}
        container = av.open(file, metadata_errors="ignore", options=options, mode="r")
    except (av.error.FFmpegError, OSError) as error:
        raise AudioError(
            f"{label} is not audio that can be decoded, or is cut off ({_reason(error)}); expected {_FORMATS}"
        ) from error
    found = False
    with container:
        stream = _audio_stream(container, label)
        try:
            for piece in _decode_stream(container, stream, sampling_rate, label, damage, limits):
                found = found or bool(piece)
                yield piece
        except av.error.FFmpegError as error:
            raise AudioError(f"{label} cannot be decoded ({_reason(error)}); expected {_FORMATS}") from error
    if not found and damage.skipped and _is_float(stream):
        raise AudioError(
            f"{label} has no usable samples: all {damage.skipped} packets hold NaN, infinity or values far outside "
            "[-1, 1]; write the file again with samples in [-1, 1]"
        )
    if not found and damage.skipped:
        raise AudioError(f"{label} is corrupt: none of its {damage.skipped} packets can be decoded; get a new copy")
    if not found:
        raise AudioError(f"{label} has a valid header and no samples: the recording has zero length")


def _audio_stream(container: InputContainer, label: str) -> AudioStream:
    stream = container.streams.best("audio")
    kinds = sorted({s.type for s in container.streams})
    if stream is None and "audio" in kinds:
        raise AudioError(
            f"{label} has an audio stream that cannot be decoded: its header is damaged, or has 0 or more than 512 "
            f"channels, or an unknown encoding; expected {_FORMATS}"
        )
    if not isinstance(stream, AudioStream):
        contents = ", ".join(kinds) or "no streams"
        raise AudioError(f"{label} has no audio ({container.format.long_name}: {contents}); expected {_FORMATS}")
    if stream.codec_context is None:
        raise AudioError(f"{label} has an unknown encoding; expected {_FORMATS}")
    return stream


def _decode_stream(
    container: InputContainer,
    stream: AudioStream,
    sampling_rate: int,
    label: str,
    damage: Damage,
    limits: ReadLimits,
) -> Iterator[bytes]:
    """The samples of the stream as int16 bytes.

    int16 also sets the level: libswresample's float down-mix of two equal channels is sqrt(2) louder than either.
    """
    if stream.codec_context.name == "flac":
        # FLAC frames have a checksum; without these flags the decoder returns a burst of noise for a damaged frame.
        stream.codec_context.options = {"err_detect": "crccheck+explode"}
    resampler = _Resampler(sampling_rate, label)
    failed = False  # a packet failed since the last good frame: the gap in time is already counted
    origin = None  # seconds: the time stamp of our first sample
    seconds = filled = 0.0  # of input so far, and of inserted silence
    decoded = 0  # samples of all channels
    known = (container.duration or 0) / av.time_base
    room = min(known, LONGEST_HOLES) if known else MAX_HOLES
    for frames in _frames(container, stream):
        if frames is None:
            damage.skipped, failed = damage.skipped + 1, True
            continue
        for frame in frames:
            if frame.time is not None:
                late = False
                if origin is None:
                    begin = (container.start_time or 0) / av.time_base
                    late = frame.time - begin > LATE  # a video's pictures may start before its audio
                    origin = begin if late else frame.time
                hole = frame.time - origin - seconds
                if hole > MIN_HOLE:
                    damage.skipped += not failed and not late
                    if filled + hole <= room:
                        limits.check(seconds + hole, decoded, label)
                        seconds, filled = seconds + hole, filled + hole
                        yield resampler(None)
                        yield from _silence(round(hole * sampling_rate))
                    else:
                        origin += hole  # the time stamp is damaged: later ones are relative to this frame
            yield resampler(frame)
            seconds += frame.samples / frame.sample_rate
            decoded += frame.samples * frame.layout.nb_channels
            limits.check(seconds, decoded, label)
            failed = False
    yield resampler(None)


def _silence(samples: int) -> Iterator[bytes]:
    """A hole may last hours."""
    for start in range(0, samples, HOLE_PIECE):
        yield bytes(2 * min(HOLE_PIECE, samples - start))


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[list[AudioFrame] | None]:
    """The frames of each packet in turn; None for a packet that cannot be read or decoded."""
    floats = _is_float(stream)
    misses = 0
    while misses < DAMAGED_READS:
        try:
            for packet in container.demux(stream):
                try:
                    frames = packet.decode()
                    yield None if floats and not _in_range(frames) else frames
                    misses = 0
                except av.error.FFmpegError:
                    yield None
            return
        except av.error.FFmpegError:
            misses += 1  # demuxing again continues after the unreadable bytes
            yield None


def _is_float(stream: AudioStream) -> bool:
    """Uncompressed floats, the only codecs whose samples can be NaN."""
    return stream.codec_context is not None and stream.codec_context.name.startswith("pcm_f")


def _in_range(frames: list[AudioFrame]) -> bool:
    return all(float(np.abs(f.to_ndarray()).max(initial=0.0)) <= MAX_FLOAT_PEAK for f in frames)  # false for NaN


class _Resampler:
    """Frames in, mono int16 bytes at one rate out; starts again where the stream changes its rate or layout."""

    def __init__(self, sampling_rate: int, label: str) -> None:
        self.sampling_rate, self.label = sampling_rate, label
        self.inner: AudioResampler | None = None
        self.setup: tuple[str, str, int] | None = None  # format, layout and rate of the frames so far
        self.averages = False  # the channels are mixed here, not by libswresample

    def __call__(self, frame: AudioFrame | None) -> bytes:
        """The output for `frame`; for None, what is still buffered."""
        if frame is None:
            inner, self.inner, self.setup = self.inner, None, None
            return b"".join(f.to_ndarray().tobytes() for f in inner.resample(None)) if inner else b""
        setup = frame.format.name, frame.layout.name, frame.sample_rate
        rest = b"" if setup == self.setup else self(None)
        if self.inner is None:
            if not MIN_RATE <= frame.sample_rate <= MAX_RATE:
                raise AudioError(
                    f"{self.label} has a sampling rate of {frame.sample_rate} Hz in its header; expected {MIN_RATE} to "
                    f"{MAX_RATE}: the header is damaged"
                )
            self.inner = AudioResampler(format="s16", layout="mono", rate=self.sampling_rate)
            self.setup = setup
            self.averages = not _can_mix(frame)
        frame = _mean(frame) if self.averages else frame
        frame.pts = None  # the caller handles time stamps; the resampler refuses those that jump
        return rest + b"".join(f.to_ndarray().tobytes() for f in self.inner.resample(frame))


def _can_mix(frame: AudioFrame) -> bool:
    """Whether libswresample knows the positions of the frame's channels: it does for 1 to 8, and a few more numbers."""
    if frame.layout.nb_channels <= MAX_CHANNELS:
        return True
    try:
        AudioResampler(format="s16", layout="mono", rate=frame.sample_rate).resample(frame)
    except av.error.ArgumentError:
        return False
    return True


def _mean(frame: AudioFrame) -> AudioFrame:
    """The mean of the frame's channels, as a mono int16 frame."""
    samples = frame.to_ndarray()  # (channels, N), or (1, N * channels) with the channels interleaved
    array = samples if frame.format.is_planar else samples.reshape(-1, frame.layout.nb_channels).T
    mean = scaled(array).mean(axis=0, dtype=np.float64)  # (N,)
    pcm = np.clip(np.rint(mean * 32768), -32768, 32767).astype(np.int16)
    mixed = AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
    mixed.sample_rate = frame.sample_rate
    return mixed


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
