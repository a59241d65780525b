import dataclasses
import io
import os
import struct
import subprocess
import sys
import threading
import wave
from fractions import Fraction

import av
import numpy as np
import pytest

from sharpen.errors import AudioError, AudioTooLongError
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.samples import ReadLimits

RATE = 16_000
FORMATS = {  # suffix -> container, codec, rate of the encoder
    "wav": ("wav", "pcm_s16le", RATE),
    "flac": ("flac", "flac", RATE),
    "mp3": ("mp3", "libmp3lame", RATE),
    "m4a": ("mp4", "aac", RATE),
    "ogg": ("ogg", "libopus", 48_000),
    "opus": ("opus", "libopus", 48_000),
    "webm": ("webm", "libopus", 48_000),
}


def tone(seconds: float, rate: int = RATE, amplitude: float = 0.4, frequency: float = 440.0) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate)


def encode(samples: np.ndarray, container: str, codec: str, rate: int, channels: int = 1, video: bool = False) -> bytes:
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[channels]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        if video:
            pictures = out.add_stream("mpeg4", rate=10, width=32, height=32, pix_fmt="yuv420p")
        stream = out.add_stream(codec, rate=rate, layout=layout)
        resampler = av.AudioResampler(stream.format.name, layout, rate, stream.codec_context.frame_size or 4096)
        pcm = np.repeat((samples * 32767).astype(np.int16), channels)[None]
        frame = av.AudioFrame.from_ndarray(pcm, format="s16", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        if video:
            for packet in pictures.encode(av.VideoFrame(32, 32, "yuv420p")) + pictures.encode(None):
                out.mux(packet)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def encoded(suffix: str, seconds: float, channels: int = 1) -> bytes:
    container, codec, rate = FORMATS[suffix]
    return encode(tone(seconds, rate), container, codec, rate, channels)


def damage(data: bytes, size: int = 3000) -> bytes:
    middle = len(data) // 2
    junk = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8).tobytes()
    return data[:middle] + junk + data[middle + size :]


def amplitude(samples: np.ndarray) -> float:
    inner = samples[len(samples) // 4 : -len(samples) // 4]
    return float(np.sqrt(2 * np.mean(inner.astype(np.float64) ** 2)))


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_tone(suffix, tmp_path):
    path = tmp_path / f"a tone.{suffix}"
    path.write_bytes(encoded(suffix, 2.0))
    audio = read_audio(path)
    assert audio.samples.dtype == np.float32
    assert audio.samples.ndim == 1
    assert audio.duration == pytest.approx(2.0, abs=0.07)
    assert audio.name == "a tone"
    assert audio.skipped == 0
    assert amplitude(audio.samples) == pytest.approx(0.4, rel=0.06 if suffix == "mp3" else 0.02)  # LAME scales by 0.95
    spectrum = np.abs(np.fft.rfft(audio.samples[:RATE]))
    assert spectrum.argmax() == 440


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("matroska", "flac"), ("avi", "pcm_s16le")])
def test_the_sound_of_a_video(container, codec):
    audio = read_audio(encode(tone(1.0), container, codec, RATE, video=True))
    assert amplitude(audio.samples) == pytest.approx(0.4, rel=0.03)


@pytest.mark.parametrize("codec", ["pcm_s16le", "pcm_f32le", "pcm_s24le", "pcm_u8"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_equal_channels_mix_down_to_the_level_of_one(codec, rate, channels):
    audio = read_audio(encode(tone(1.0, rate), "wav", codec, rate, channels))
    assert amplitude(audio.samples) == pytest.approx(0.4, rel=0.01)
    assert len(audio.samples) == pytest.approx(RATE, abs=2)


def test_sixteen_bits_at_the_model_rate_come_back_exactly():
    samples = tone(1.0)
    expected = (samples * 32767).astype(np.int16)
    assert np.array_equal(read_audio(encode(samples, "wav", "pcm_s16le", RATE)).samples * 32768, expected)
    assert np.array_equal(read_audio(encode(samples, "flac", "flac", RATE)).samples * 32768, expected)


def test_path_bytes_stream_and_pipe_agree(tmp_path):
    data = encoded("flac", 1.0)
    path = tmp_path / "x.flac"
    path.write_bytes(data)
    reference = read_audio(str(path)).samples
    assert np.array_equal(read_audio(data).samples, reference)
    assert np.array_equal(read_audio(bytearray(data)).samples, reference)
    assert np.array_equal(read_audio(io.BytesIO(data)).samples, reference)
    with path.open("rb") as file:
        named = read_audio(file)
    assert named.name == "x"
    assert np.array_equal(named.samples, reference)
    offset = io.BytesIO(b"junk" + data)
    offset.seek(4)
    assert np.array_equal(read_audio(offset).samples, reference)
    reader, writer = os.pipe()
    feed = threading.Thread(target=lambda: os.fdopen(writer, "wb").write(data))
    feed.start()
    with os.fdopen(reader, "rb") as pipe:
        assert np.array_equal(read_audio(pipe).samples, reference)
    feed.join()


def test_standard_input():
    script = (
        "import sys; from sharpen.speech.audio import *; a = read_audio(sys.stdin.buffer); print(a.name, a.duration)"
    )
    run = subprocess.run([sys.executable, "-c", script], input=encoded("wav", 1.5), capture_output=True, check=True)
    assert run.stdout.decode().split() == ["stdin", "1.5"]


@pytest.mark.parametrize(
    ("suffix", "at_most"), [("flac", 1.0), ("mp3", 1.5), ("m4a", 1.0), ("ogg", 4.0), ("webm", 7.0)]
)
def test_damage_in_the_middle_is_skipped_and_counted(suffix, at_most):
    data = encoded(suffix, 60.0)
    assert read_audio(data).skipped == 0
    audio = read_audio(damage(data))
    assert audio.skipped >= 1
    frames = np.abs(audio.samples[: len(audio.samples) // 160 * 160]).reshape(-1, 160)
    assert (frames.max(axis=1) > 0.1).sum() * 0.01 > 60.0 - at_most
    assert amplitude(audio.samples[: 20 * RATE]) == pytest.approx(0.4, rel=0.06)
    assert amplitude(audio.samples[-20 * RATE :]) == pytest.approx(0.4, rel=0.06)
    if suffix != "mp3":  # its frames carry no time, so what is lost between them cannot be measured
        assert audio.duration == pytest.approx(60.0, abs=0.07)


def test_a_damaged_flac_frame_is_silence_and_not_a_burst_of_noise():
    data = bytearray(encode(tone(30.0, amplitude=0.01), "flac", "flac", RATE))
    data[len(data) // 2] ^= 0xFF
    audio = read_audio(bytes(data))
    assert audio.skipped == 1
    assert np.abs(audio.samples).max() < 0.011
    assert len(audio.samples) == 30 * RATE


def test_damaged_bytes_of_a_wav_are_samples_like_any_other():
    clean = read_audio(encoded("wav", 10.0))
    audio = read_audio(damage(encoded("wav", 10.0)))
    assert len(audio.samples) == len(clean.samples)
    assert (audio.samples != clean.samples).sum() == pytest.approx(1500, abs=2)


def test_a_cut_off_download_gives_what_is_there():
    data = encoded("mp3", 20.0)
    assert read_audio(data[: len(data) // 2]).duration == pytest.approx(10.0, abs=0.3)


def wav(samples: np.ndarray, channels: int = 1, rate: int = RATE, bits: int | None = None) -> bytes:
    """A wav file with any header, right or wrong."""
    bits = 8 * samples.itemsize if bits is None else bits
    block = channels * bits // 8
    kind = 3 if samples.dtype.kind == "f" else 1
    form = struct.pack("<HHIIHH", kind, channels, rate, min(rate * block, 2**32 - 1), block, bits)
    sizes = [size.to_bytes(4, "little") for size in (36 + samples.nbytes, len(form), samples.nbytes)]
    return b"RIFF" + sizes[0] + b"WAVEfmt " + sizes[1] + form + b"data" + sizes[2] + samples.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_float_files_with_nan_lose_only_those_frames(bad):
    samples = tone(10.0).astype("<f4")
    samples[80_000] = bad
    audio = read_audio(wav(samples))
    assert audio.skipped == 1
    assert audio.samples[80_000] == 0
    assert len(audio.samples) == 10 * RATE
    assert np.isfinite(audio.samples).all()


@pytest.mark.parametrize("dtype", ["<i2", "<i4", "u1", "<f4", "<f8"])
@pytest.mark.parametrize("channels", [9, 32, 100, 512])
def test_many_channels_are_averaged(dtype, channels):
    """FFmpeg has no layout for these numbers of channels, and cannot mix them."""
    weights = np.linspace(0, 2, channels)  # their mean is 1
    mixed = tone(0.2, 48_000)[:, None] * weights
    kind = np.dtype(dtype)
    scale = 1 if kind.kind == "f" else np.iinfo(kind).max // 2 + 1 if kind.kind == "u" else np.iinfo(kind).max
    audio = read_audio(wav((mixed * scale + (128 if kind.kind == "u" else 0)).astype(kind), channels, 48_000))
    assert audio.skipped == 0
    assert audio.duration == pytest.approx(0.2, abs=0.001)
    assert amplitude(audio.samples) == pytest.approx(0.4, rel=0.02)


@pytest.mark.parametrize(
    ("channels", "rate", "bits", "message"),
    [
        (0, RATE, 16, "has 0 or more than 512 channels"),
        (513, RATE, 16, "has 0 or more than 512 channels"),
        (1, 1, 16, "a sampling rate of 1 Hz in its header; expected 1000 to 1000000"),
        (1, 2**31 - 1, 16, "a sampling rate of 2147483647 Hz"),
        (1, 2**32 - 1, 16, "not audio that can be decoded"),
        (1, RATE, 40, "unknown encoding"),
    ],
)
def test_a_wrong_header_is_said_to_be_wrong(channels, rate, bits, message):
    with pytest.raises(AudioError, match=message):
        read_audio(wav((tone(0.1) * 32767).astype("<i2"), channels, rate, bits))


def test_float_files_out_of_range_are_refused():
    with pytest.raises(AudioError, match=r"values far outside \[-1, 1\]; write the file again"):
        read_audio(wav((tone(1.0) * 32767).astype("<f4")))


def test_damaged_headers_never_raise_another_error():
    rng = np.random.default_rng(0)
    outcomes = set()
    for suffix in FORMATS:
        data = encoded(suffix, 0.3)
        for _ in range(20):
            broken = bytearray(data)
            for place in rng.integers(0, min(300, len(data)), rng.integers(1, 12)):
                broken[place] = rng.integers(256)
            try:
                outcomes.add(bool(np.isfinite(read_audio(broken).samples).all()))
            except AudioError:
                outcomes.add(None)
    assert outcomes == {True, None}


def test_absurd_time_stamps_do_not_fill_the_memory():
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as out:
        stream = out.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for pts in [0, RATE, 10_000_000 * RATE, 20_000_000 * RATE]:
            frame = av.AudioFrame.from_ndarray(np.ones((1, RATE), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = RATE, pts
            out.mux(stream.encode(frame))
    audio = read_audio(buffer.getvalue())
    assert (audio.duration, audio.skipped) == (4.0, 2)


def timed(seconds, picture=False):
    """A matroska track that beeps for a second at each of these times, and stores nothing between them."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as out:
        video = out.add_stream("ffv1", rate=1, width=16, height=16) if picture else None
        stream = out.add_stream("pcm_s16le", rate=RATE, layout="mono")
        if video is not None:
            image = av.VideoFrame(16, 16, "yuv420p")
            image.pts = 0
            out.mux(video.encode(image))
        for at in seconds:
            frame = av.AudioFrame.from_ndarray(np.full((1, RATE), 8000, np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = RATE, round(at * RATE)
            out.mux(stream.encode(frame))
        if video is not None:
            out.mux(video.encode(None))
    return buffer.getvalue()


def onsets(audio):
    loud = np.abs(audio.samples) > 0.1
    return [round(i / RATE, 2) for i in np.flatnonzero(loud & ~np.concatenate([[False], loud[:-1]]))]


def test_long_pauses_of_a_track_keep_their_length():
    audio = read_audio(timed([0, 400, 1100, 1105]))
    assert onsets(audio) == [0.0, 400.0, 1100.0, 1105.0]


def test_sound_that_begins_after_the_picture_keeps_its_time():
    audio = read_audio(timed([2], picture=True))
    assert onsets(audio) == [2.0]
    assert audio.skipped == 0
    assert onsets(read_audio(timed([2]))) == [0.0]  # nothing else is in the file: its time begins with the sound


def test_an_audio_of_ones_own_is_looked_at():
    beep = tone(1.0)
    assert np.allclose(Audio(np.stack([beep, beep], axis=1)).at(RATE).samples, beep)
    own = Audio(beep.astype(np.float32))
    assert own.at(RATE) is own
    with pytest.raises(AudioError, match="1 of 16000 samples are NaN"):
        Audio(np.where(np.arange(RATE) == 7, np.nan, beep).astype(np.float32)).at(RATE)


def test_a_rate_that_changes_within_the_stream():
    mp3 = encode(tone(2.0), "mp3", "libmp3lame", RATE) + encode(tone(2.0, 44_100), "mp3", "libmp3lame", 44_100, 2)
    audio = read_audio(mp3)
    assert audio.duration == pytest.approx(4.0, abs=0.3)
    assert amplitude(audio.samples[-RATE:]) == pytest.approx(0.4, rel=0.06)
    assert np.abs(np.fft.rfft(audio.samples[-RATE - 2000 : -2000])).argmax() == 440


@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [
        ("f4", 1, 0),
        ("f8", 1, 0),
        ("f2", 1, 0),
        ("i2", 2**15, 0),
        ("i4", 2**31, 0),
        ("i1", 128, 0),
        ("u1", 128, 128),
        (">f4", 1, 0),
        (">i2", 2**15, 0),
    ],
)
def test_arrays_of_every_type(dtype, scale, offset):
    samples = tone(1.0)
    audio = read_audio((samples * scale + offset).astype(dtype))
    assert audio.samples.dtype == np.float32
    assert audio.name == "audio"
    assert np.abs(audio.samples - samples).max() < (0.01 if dtype in ("i1", "u1") else 1e-3)


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_arrays_of_channels_either_way_round(channels):
    samples = tone(1.0)
    stacked = np.stack([samples * (1 + 0.1 * (2 * k - channels + 1)) for k in range(channels)])
    assert np.allclose(read_audio(stacked).samples, samples, atol=1e-6)
    assert np.allclose(read_audio(stacked.T).samples, samples, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_arrays_at_another_rate(rate):
    audio = read_audio(tone(9.0, rate), rate=rate)
    assert len(audio.samples) == pytest.approx(9 * RATE, abs=2)
    assert np.abs(audio.samples - tone(9.0)[: len(audio.samples)])[200:-200].max() < 0.002


def test_a_tensor_is_an_array():
    torch = pytest.importorskip("torch")
    assert np.array_equal(read_audio(torch.arange(8) / 8).samples, np.arange(8) / 8)
    with pytest.raises(AudioError, match="numpy"):
        read_audio(torch.zeros(100, requires_grad=True))


def test_silence_is_read_and_said_to_be_silent():
    assert read_audio(np.zeros(100)).is_silent
    assert read_audio(encode(np.zeros(RATE), "mp3", "libmp3lame", RATE)).is_silent
    assert read_audio(np.full(100, -2 / 32768)).is_silent
    assert not read_audio(np.full(100, 1e-3)).is_silent
    assert not read_audio(np.full(100, -1e-3)).is_silent


def test_audio_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Audio(np.zeros(1)).name = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([0.0, np.nan]), "1 of 2 samples are NaN"),
        (np.array([0.0, np.inf]), "NaN or infinite"),
        (np.zeros(0), "no samples"),
        (np.zeros((2, 0)), "no samples"),
        (np.zeros((100, 100)), r"shape \(100, 100\)"),
        (np.zeros((1, 2, 300)), r"shape \(1, 2, 300\)"),
        (np.float32(0.5), r"shape \(\)"),
        (np.zeros(10, np.int64), "int64"),
        (np.zeros(10, bool), "bool"),
        (np.zeros(10, complex), "complex"),
        (np.array(["a", "b"]), "<U1"),
        (np.array([12_000.0, -3.0]), "divide by 32768"),
    ],
)
def test_arrays_that_are_not_audio(array, message):
    with pytest.raises(AudioError, match=message):
        read_audio(array)


def jpeg() -> bytes:
    codec = av.CodecContext.create("mjpeg", "w")
    codec.width = codec.height = 32
    codec.pix_fmt, codec.time_base = "yuvj420p", Fraction(1)
    return b"".join(bytes(p) for p in codec.encode(av.VideoFrame(32, 32, "yuvj420p")))


def empty_wav() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
    return buffer.getvalue()


def corrupt_mp4() -> bytes:
    """An index that promises packets, and zeros where the packets were."""
    data = encoded("m4a", 2.0)
    start = data.index(b"mdat") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big") - 8
    junk = np.random.default_rng(3).integers(0, 256, size, dtype=np.uint8).tobytes()
    return data[:start] + junk.replace(b"\x21", b"\xff") + data[start + size :]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"Dear all,\nthe minutes of the last meeting follow.\n" * 50, "not audio|no audio"),
        (bytes(10_000), "not audio|no audio"),
        (jpeg(), "no audio .*video"),
        (empty_wav(), "zero length"),
        (encoded("m4a", 2.0)[:2000], "not audio.*cut off"),
        (encoded("wav", 0.1)[:20] + b"\x34\x12" + encoded("wav", 0.1)[22:], "an unknown encoding"),
    ],
    ids=["empty", "text", "zeros", "jpeg", "no samples", "cut mp4", "unknown codec"],
)
def test_files_that_are_not_audio(data, message, tmp_path):
    for suffix in ("wav", "txt", "jpg"):
        path = tmp_path / f"x.{suffix}"
        path.write_bytes(data)
        with pytest.raises(AudioError, match=message) as error:
            read_audio(path)
        assert str(path) in str(error.value)
    with pytest.raises(AudioError, match=message):
        read_audio(data)
    with pytest.raises(AudioError, match=message):
        read_audio(io.BytesIO(data))


def test_a_file_damaged_throughout():
    with pytest.raises(AudioError, match=r"none of its \d+ packets"):
        read_audio(corrupt_mp4())


def test_sources_that_cannot_be_read(tmp_path):
    with pytest.raises(AudioError, match="no such file"):
        read_audio(tmp_path / "missing.wav")
    with pytest.raises(AudioError, match="no such file"):
        read_audio("a\0.wav")
    with pytest.raises(AudioError, match="directory"):
        read_audio(tmp_path)
    for url in ("https://example.org/talk.mp3", "http://example.org/a.wav", "file:///a.wav", "s3://bucket/a.wav"):
        with pytest.raises(AudioError, match="download it first"):
            read_audio(url)
    with pytest.raises(AudioError, match="cannot be opened: File name too long"):
        read_audio("a" * 300 + ".wav")
    with pytest.raises(AudioError, match="'rb'"):
        read_audio(io.StringIO("text"))
    with pytest.raises(AudioError, match="NoneType"):
        read_audio(None)
    for rate in (-8000, 0, 1, 44100.5, float("nan"), 2**40, "16000"):
        with pytest.raises(AudioError, match=f"{rate!r} is not a sampling rate; expected a whole number"):
            read_audio(np.zeros(10), rate=rate)
    spent = io.BytesIO(encoded("wav", 0.1))
    spent.read()
    with pytest.raises(AudioError, match="already read"):
        read_audio(spent)


def test_a_playlist_opens_no_other_file(tmp_path):
    target = tmp_path / "secret.mp3"
    target.write_bytes(encoded("mp3", 1.0))
    lists = {
        "x.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{target}\n#EXT-X-ENDLIST\n",
        "x.ffconcat": f"ffconcat version 1.0\nfile '{target.name}'\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(AudioError):
            read_audio(tmp_path / name)


def test_limits_of_what_is_decoded():
    data = encoded("flac", 3.0, channels=2)
    assert read_audio(data, limits=ReadLimits(3.1, 2 * 3.1 * RATE, "wav,flac")).duration == 3.0
    with pytest.raises(AudioTooLongError, match="longer than 2 seconds"):
        read_audio(data, limits=ReadLimits(seconds=2))
    with pytest.raises(AudioTooLongError, match="more than 50000 samples in all its channels"):
        read_audio(data, limits=ReadLimits(samples=50_000))
    with pytest.raises(AudioError, match="not audio that can be decoded"):
        read_audio(data, limits=ReadLimits(formats="wav,mp3"))


def test_torch_is_not_imported():
    script = "import sys, sharpen.speech.audio; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
