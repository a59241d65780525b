from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from speechlike import EXAMPLES

from sharpen.errors import SharpenError
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import transcribe
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.decoding import decode
from sharpen.speech.efforts import effort_options
from sharpen.speech.options import Options, VadParameters
from sharpen.speech.transcribe import Model
from sharpen.speech.voice import FRAME, Voice, cut, find_voice

SECOND = 16000 / FRAME  # frames


def voice(*parts, **parameters):
    """Stretches of (seconds, probability), in whole frames."""
    p = np.concatenate([np.full(round(seconds * SECOND), value, np.float32) for seconds, value in parts])
    return Voice(p, len(p) * FRAME, VadParameters(**parameters))


def seconds(spans):
    return [(round(start / 16000, 1), round(stop / 16000, 1)) for start, stop in spans]


def test_a_short_silence_belongs_to_the_speech():
    heard = [(2, 0.0), (3, 0.9), (1, 0.1), (2, 0.9), (4, 0.1), (1, 0.8), (2, 0.0)]
    none = {"speech_pad_ms": 0}
    assert seconds(voice(*heard, **none).spans()) == [(2, 8), (12, 13)]
    assert seconds(voice(*heard, min_silence_duration_ms=500, **none).spans()) == [(2, 5), (6, 8), (12, 13)]
    assert seconds(voice(*heard, min_speech_duration_ms=1500, **none).spans()) == [(2, 8)]
    assert seconds(voice(*heard, threshold=0.85, **none).spans()) == [(2, 8)]


def test_speech_goes_on_a_little_below_the_threshold():
    """But does not begin there."""
    heard = [(1, 0.4), (1, 0.9), (3, 0.4), (1, 0.9), (3, 0.3)]
    assert seconds(voice(*heard, speech_pad_ms=0).spans()) == [(1, 6)]


def test_padding_is_shared_and_stays_in_the_recording():
    heard = [(0.2, 0.0), (1, 0.9), (0.6, 0.0), (1, 0.9), (0.2, 0.0)]
    v = voice(*heard, min_silence_duration_ms=100, speech_pad_ms=400)
    (a, b), (c, d) = v.spans()
    assert (a, d) == (0, v.length)
    assert b == c
    assert b / 16000 == pytest.approx(1.5, abs=0.05)


def test_the_whole_recording_and_none_of_it():
    assert seconds(voice((5, 0.9)).spans()) == [(0, 5)]
    assert voice((5, 0.2)).spans() == ()
    assert voice((5, 0.2)).chunks(12) == ()


def test_long_speech_is_cut_at_its_longest_pause():
    heard = [(6, 0.9), (0.2, 0.0), (2, 0.9), (0.5, 0.0), (2, 0.9), (0.3, 0.0), (4, 0.9)]
    v = voice(*heard, max_speech_duration_s=11, speech_pad_ms=0)
    assert seconds(v.spans()) == [(0, 8.4), (8.4, 15)]
    assert seconds(voice(*heard, speech_pad_ms=0).chunks(11)) == [(0, 8.4), (8.4, 15)]


def test_without_a_pause_it_is_cut_where_speech_is_least_probable():
    p = np.full(1000, 0.9, np.float32)
    p[350] = 0.6
    pieces = cut(p, 0, 1000, 400, 0.35)
    assert pieces[0] == (0, 350)
    assert all(b - a <= 400 for a, b in pieces)
    assert [a for a, _ in pieces[1:]] == [b for _, b in pieces[:-1]]
    assert pieces[-1][1] == 1000
    assert min(b - a for a, b in pieces) >= 100


@pytest.mark.parametrize("longest", [1, 2, 3, 10, 999])
def test_cuts_cover_everything_whatever_the_length(longest):
    p = np.random.default_rng(0).random(1000).astype(np.float32)
    pieces = cut(p, 0, 1000, longest, 0.35)
    assert (pieces[0][0], pieces[-1][1]) == (0, 1000)
    assert all(0 < b - a <= longest for a, b in pieces)
    assert all(a[1] == b[0] for a, b in pairwise(pieces))


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(WhisperSpeech(tiny_en))


FERRY, LETTER, MARKET = (read_audio(EXAMPLES / name).samples for name in ("ferry.flac", "letter.flac", "market.mp3"))


def hiss(seconds, seed=0):
    return (1e-3 * np.random.default_rng(seed).standard_normal(round(seconds * 16000))).astype(np.float32)


def tokens(text):
    return text.lower().replace(",", "").replace(".", "").split()


def test_silence_is_not_decoded_and_times_are_those_of_the_recording(tiny, monkeypatch):
    """Speech from 10 s and from 40 s on, hiss elsewhere."""
    recording = np.concatenate([hiss(10), FERRY, hiss(40 - 10 - len(FERRY) / 16000, 1), LETTER, hiss(8, 2)])
    lengths = []

    def counted(speech, windows, *others):
        lengths.extend(len(window.samples) / 16000 for window in windows)
        return decode(speech, windows, *others)

    monkeypatch.setattr(transcribe, "decode", counted)
    result = tiny.transcribe(recording, effort="plain", vad_filter=True, word_timestamps=True)
    segments = list(result.segments)
    assert tokens(result.text)[:5] == ["the", "night", "ferry", "to", "aberdeen"]
    assert sum(lengths) < (len(FERRY) + len(LETTER)) / 16000 + 2 * 0.8 + 0.2
    first = [s for s in segments if s.start < 30]
    second = [s for s in segments if s.start >= 30]
    assert 9.5 < first[0].start < 11
    assert first[-1].end < 10 + len(FERRY) / 16000 + 0.5
    assert 39.5 < second[0].start < 41
    words = [word for segment in segments for word in segment.words]
    assert all(a.start <= b.start for a, b in pairwise(words))
    assert next(w for w in words if w.word.strip() == "ferry").start == pytest.approx(10.7, abs=0.5)
    alone = tiny.transcribe(FERRY, effort="plain").text
    assert tokens("".join(s.text for s in first)) == tokens(alone)


def test_where_nobody_speaks_nothing_is_decoded(tiny, monkeypatch):
    monkeypatch.setattr(transcribe, "decode", lambda *given: pytest.fail("a window was decoded"))
    result = tiny.transcribe(hiss(40), vad_filter=True)
    assert (result.text, result.language, list(result.segments)) == ("", "en", [])


def test_parameters_reach_the_detector(tiny):
    recording = np.concatenate([FERRY, hiss(0.8), LETTER])
    job = tiny.job(recording, Options(vad_filter=True))
    assert len(job.window().samples) > len(recording) - 16000
    job = tiny.job(recording, Options(vad_filter=True, vad_parameters={"min_silence_duration_ms": 500}))
    assert len(job.window().samples) < len(FERRY) + 16000


def test_what_is_no_parameter_is_refused():
    with pytest.raises(SharpenError, match="vad_parameters has loudness; expected some of threshold, min_speech"):
        Options(vad_filter=True, vad_parameters={"loudness": 3})
    with pytest.raises(SharpenError, match="do nothing without voice activity"):
        Options(vad_parameters={"threshold": 0.3})
    with pytest.raises(SharpenError, match="threshold is 2; expected a finite number"):
        VadParameters(threshold=2)
    assert VadParameters(max_speech_duration_s=float("inf")) == VadParameters()
    with pytest.raises(SharpenError, match="condition_on_previous_text needs chunk='sequential'"):
        Options(chunk="vad", condition_on_previous_text=True)


@pytest.fixture(scope="module")
def joined():
    """Nine examples, half a second apart."""
    names = ("ferry.flac", "letter.flac", "market.mp3", "bakery.flac", "glacier.m4a", "museum.ogg") * 2
    clips = [read_audio(EXAMPLES / name).samples for name in names[:9]]
    return Audio(np.concatenate([part for clip in clips for part in (clip, hiss(0.5))]), name="joined")


def test_windows_cut_at_pauses_are_decoded_in_batches(tiny, joined, monkeypatch):
    batches = []

    def counted(speech, windows, *others):
        batches.append([window.start for window in windows])
        assert all(len(window.samples) <= 15 * 16000 for window in windows)
        return decode(speech, windows, *others)

    options = effort_options("plain", chunk="vad", batch_size=4)
    monkeypatch.setattr(transcribe, "decode", counted)
    job = tiny.job(joined, options)
    found = [segment for _, new in transcribe.run(tiny.speech, [job], 4) for segment in new]
    assert len(batches[0]) >= 3
    assert all(a < b for batch in batches for a, b in pairwise(batch))
    assert found == job.segments
    assert [s.id for s in found] == list(range(len(found)))
    assert all(a.start <= b.start for a, b in pairwise(found))
    one_by_one = tiny.job(joined, options)
    list(transcribe.run(tiny.speech, [one_by_one], 1))
    assert tokens("".join(s.text for s in found)) == tokens("".join(s.text for s in one_by_one.segments))


def test_a_window_that_was_left_early_is_decoded_on(tiny, joined, monkeypatch):
    """The first answer stops after its first segment, as models do: what follows is decoded again, in its place."""
    options = effort_options("plain", chunk="vad")
    whole = tiny.job(joined, options)
    list(transcribe.run(tiny.speech, [whole], 3))
    first = True

    def early(speech, windows, *others):
        nonlocal first
        results = decode(speech, windows, *others)
        if first:
            first = False
            times = [i for i, token in enumerate(results[0].tokens) if speech.tokenizer.time(token) is not None]
            assert len(times) >= 4
            kept = times[1] + 1
            parts = ("tokens", "logprobs", "entropies")
            shorter = {name: getattr(results[0], name)[:kept] for name in parts}
            results[0] = replace(results[0], **shorter)
        return results

    monkeypatch.setattr(transcribe, "decode", early)
    job = tiny.job(joined, options)
    list(transcribe.run(tiny.speech, [job], 3))
    assert all(a.start <= b.start for a, b in pairwise(job.segments))
    said, expected = (tokens("".join(s.text for s in one.segments)) for one in (job, whole))
    assert len(said) >= 0.95 * len(expected)
    assert job.segments[1].start < 15


def test_every_frame_is_heard_at_one_rate(joined):
    parameters = VadParameters()
    p = find_voice(joined.samples, 16000, parameters).probabilities
    assert len(p) == -(-len(joined.samples) // FRAME)
    with pytest.raises(SharpenError, match="voice activity is found at 16000 Hz"):
        find_voice(joined.samples, 8000, parameters)
