"""Long recordings, which are never in memory as a whole."""

import io
import tracemalloc
import wave

import numpy as np
import pytest
from models.small import small_checkpoint
from speechlike import EXAMPLES

from sharpen.errors import AudioError
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import audio, files, transcribe
from sharpen.speech.answers import Decoded
from sharpen.speech.audio import Audio, open_audio, read_audio
from sharpen.speech.efforts import effort_options
from sharpen.speech.options import Options
from sharpen.speech.stream import StreamedSamples
from sharpen.speech.transcribe import Model


def write(path, samples, rate=16000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.asarray(samples) * 32767).astype("<i2").tobytes())
    return path


@pytest.fixture(scope="module")
def examples():
    """Forty seconds of examples, half a second apart."""
    clips = [read_audio(path).samples for path in sorted(EXAMPLES.glob("*.*")) if path.suffix in (".flac", ".ogg")]
    pause = np.zeros(8000, np.float32)
    return np.concatenate([part for i in range(12) for part in (clips[i % len(clips)], pause)])[: 40 * 16000]


@pytest.fixture
def long(examples, tmp_path, monkeypatch):
    """The same as a file that counts as long."""
    monkeypatch.setattr(audio, "LONG", 10.0)
    return write(tmp_path / "long.wav", examples)


def test_slices_are_those_of_the_whole_array(long):
    whole = read_audio(long)
    streamed = open_audio(long)
    assert isinstance(streamed.samples, StreamedSamples)
    assert (len(streamed.samples), streamed.duration, streamed.name) == (len(whole.samples), whole.duration, "long")
    n, rng = len(whole.samples), np.random.default_rng(0)
    for start in [0, 100, n - 5, *rng.integers(0, n, 20)]:  # also backwards
        stop = start + int(rng.integers(0, 300_000))
        np.testing.assert_array_equal(streamed.samples[start:stop], whole.samples[start:stop])
    np.testing.assert_array_equal(np.concatenate(list(streamed.samples.blocks(7777))), whole.samples)
    with pytest.raises(TypeError, match="without a step"):
        streamed.samples[::2]
    with pytest.raises(TypeError, match="expected a slice"):
        streamed.samples[3]


def test_what_is_behind_is_forgotten_and_can_be_had_again(long):
    whole, streamed = read_audio(long).samples, open_audio(long).samples
    second = 16000
    for start in range(0, 30 * second, 5 * second):
        np.testing.assert_array_equal(streamed[start : start + 10 * second], whole[start : start + 10 * second])
        streamed.forget(start + 5 * second)
        assert streamed.held < 6 * second
    streamed.forget(38 * second)
    np.testing.assert_array_equal(streamed[38 * second : 39 * second], whole[38 * second : 39 * second])
    assert streamed.held < 2 * second
    np.testing.assert_array_equal(streamed[second : 2 * second], whole[second : 2 * second])


def test_short_recordings_and_arrays_are_arrays(examples):
    assert isinstance(open_audio(EXAMPLES / "ferry.flac").samples, np.ndarray)
    assert isinstance(open_audio(examples).samples, np.ndarray)


def test_bytes_and_files_that_are_closed_later(long):
    whole = read_audio(long).samples
    for source in (long.read_bytes(), io.BytesIO(long.read_bytes()), long.open("rb")):
        streamed = open_audio(source).samples
        assert isinstance(streamed, StreamedSamples)
        if hasattr(source, "close"):
            source.close()
        np.testing.assert_array_equal(streamed[600_000:], whole[600_000:])


def test_a_fingerprint_is_of_the_samples(long, tmp_path, examples):
    same = write(tmp_path / "other name.wav", examples)
    changed = examples.copy()
    changed[-1] += 0.5
    other = write(tmp_path / "changed.wav", changed)
    assert open_audio(long).fingerprint == open_audio(same).fingerprint != open_audio(other).fingerprint
    arrays = [read_audio(path).fingerprint for path in (long, same, other)]
    assert arrays[0] == arrays[1] != arrays[2]


def test_a_file_that_shrinks_is_an_error(long, examples):
    streamed = open_audio(long).samples
    write(long, examples[:200_000])
    with pytest.raises(AudioError, match=r"long\.wav has become shorter"):
        streamed[400_000:500_000]


def test_another_rate_must_be_asked_for_when_it_is_opened(long):
    with pytest.raises(AudioError, match="open it at 8000 Hz"):
        open_audio(long).at(8000)
    assert open_audio(long, sampling_rate=8000).at(8000).duration == pytest.approx(40)


@pytest.mark.parametrize("settings", [{}, {"vad_filter": True}, {"chunk": "vad", "batch_size": 2}])
def test_a_streamed_transcript_is_that_of_the_array(tiny_en, long, settings):
    model = Model(WhisperSpeech(tiny_en))
    whole = read_audio(long)
    assert isinstance(model.job(long, Options()).audio.samples, StreamedSamples)
    options = effort_options("plain", decode="greedy", **settings)
    streamed = model.transcribe(long, options)
    assert list(streamed.segments) == list(model.transcribe(Audio(whole.samples, name="long"), options).segments)
    assert len(streamed.text.split()) > 40


def said(speech, windows, options, languages, on_step, pool):
    tokens = tuple(speech.tokenizer.encode(" word"))
    return [Decoded(tokens, (-0.1,), (0.1,), "word", "en", 0.0, -0.1, 0.0, 1.0) for _ in windows]


def peak(model, path, options, folder):
    """The most memory that transcribing takes, in samples of float32."""
    tracemalloc.start()
    *_, done = files.transcribe_files(model, [str(path)], options, str(folder), ["txt"])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.kind == "finished", done.reason
    return most / 4, len(done.segments)


@pytest.mark.parametrize("vad", [False, True])
def test_memory_does_not_grow_with_the_length(tmp_path, monkeypatch, vad):
    """Eight minutes against two; the text is made up, the audio is not."""
    monkeypatch.setattr(audio, "LONG", 30.0)
    monkeypatch.setattr(transcribe, "decode", said)
    model = Model(WhisperSpeech(small_checkpoint()))
    clip = np.tile(read_audio(EXAMPLES / "ferry.flac", sampling_rate=2000).samples, 40)[: 120 * 2000]
    options = Options(
        language="en", timestamps=False, vad_filter=vad, vad_parameters={"threshold": 0.01} if vad else {}
    )
    short, long = (write(tmp_path / f"{n}.wav", np.tile(clip, n), 2000) for n in (1, 4))
    peak(model, short, options, tmp_path)  # whatever is imported or cached on the way
    (little, few), (much, many) = (peak(model, path, options, tmp_path) for path in (short, long))
    assert many > 3 * few
    assert much < little + 16000 * 20  # samples of the 360 more seconds
    assert much < 16000 * 240
