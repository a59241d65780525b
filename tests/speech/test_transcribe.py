import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from speechlike import EXAMPLES, manifest

import sharpen
from sharpen.speech import transcribe
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.decoding import Options, decode
from sharpen.speech.transcribe import Model, run

CLIPS = manifest(EXAMPLES)


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(tiny_en)


@pytest.fixture(scope="module")
def minutes():
    """Three minutes of examples with pauses between them."""
    pause = np.zeros(8000, np.float32)
    clips = [read_audio(row["path"]).samples for row in CLIPS]
    parts = [part for i in range(30) for part in (clips[i % len(clips)], pause)]
    return Audio(np.concatenate(parts), name="minutes")


def test_three_lines_are_enough():
    model = sharpen.load("base")
    result = model.transcribe(EXAMPLES / "ferry.flac")
    assert "leaves at half past nine" in result.text
    assert result.language == "en"
    (segment,) = result.segments
    assert segment.avg_entropy > 0
    assert result.info.duration == pytest.approx(3.58, abs=0.01)


def test_segments_are_lazy_and_computed_once(tiny, minutes, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(1)
        return decode(*arguments)

    monkeypatch.setattr(transcribe, "decode", counted)
    result = tiny.transcribe(minutes)
    assert calls == []
    first = next(result.segments)
    assert len(calls) == 1
    everything = list(result.segments)
    assert everything[0] is first
    total = len(calls)
    assert total >= 6
    assert result.text == "".join(s.text for s in result.segments).strip()
    assert len(calls) == total


def test_long_recordings_are_covered_in_order(tiny, minutes):
    segments = list(tiny.transcribe(minutes).segments)
    assert [s.id for s in segments] == list(range(len(segments)))
    assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(segments))
    assert segments[-1].end <= minutes.duration
    words = " ".join(s.text for s in segments).lower()
    assert words.count("bakery") >= 3  # said four times over the recording
    gaps = [b.start - a.end for a, b in pairwise(segments)]
    assert max(gaps) < 10


def test_several_recordings_side_by_side_are_as_each_alone(tiny):
    options = Options()
    jobs = [tiny.job(row["path"], options) for row in CLIPS[:4]]
    order = [job for job, _ in run(tiny.policy, jobs, batch_size=3)]
    assert set(order) == set(jobs)
    for job, row in zip(jobs, CLIPS, strict=False):
        assert "".join(s.text for s in job.found).strip() == tiny.transcribe(row["path"]).text


def test_previous_text_and_prompts_reach_the_model(tiny, minutes):
    job = tiny.job(minutes, Options(initial_prompt="Aberdeen ferries.", condition_on_previous_text=True))
    assert tiny.checkpoint.tokenizer.decode(job.window().context) == " Aberdeen ferries."
    next(run(tiny.policy, [job], 1))
    said = tiny.checkpoint.tokenizer.decode(job.window().context)
    assert said == " Aberdeen ferries." + "".join(s.text for s in job.found)
    plain = tiny.job(minutes, Options())
    next(run(tiny.policy, [plain], 1))
    assert plain.window().context == ()


def test_silence_between_and_alone(tiny):
    clip = read_audio(CLIPS[0]["path"]).samples
    silence = np.zeros(16000 * 45, np.float32)
    assert tiny.transcribe(Audio(silence)).text == ""
    assert list(tiny.transcribe(silence).segments) == []
    (segment, *_) = tiny.transcribe(np.concatenate([silence, clip])).segments
    assert segment.start >= 29


def test_without_timestamps(tiny):
    (segment,) = tiny.transcribe(CLIPS[0]["path"], timestamps=False).segments
    assert (segment.start, segment.end) == (0.0, pytest.approx(3.58, abs=0.01))


def test_options_or_keywords_not_both(tiny):
    with pytest.raises(sharpen.SharpenError, match="not both"):
        tiny.transcribe(CLIPS[0]["path"], Options(), language="en")


def test_other_number_types_run(tiny_en):
    half = Model(replace(tiny_en, model=copy.deepcopy(tiny_en.model).bfloat16()))
    assert "ferry" in half.transcribe(CLIPS[0]["path"]).text.lower()


def test_translation_and_language_reach_the_model(base):
    model = Model(base)
    german = model.transcribe(CLIPS[0]["path"], language="german", timestamps=False)
    assert german.language == "de"
    assert german.text != model.transcribe(CLIPS[0]["path"], timestamps=False).text
