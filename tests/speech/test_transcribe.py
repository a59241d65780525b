import os
import shutil
import threading
import time
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation.tiny import wav
from models.small import small_checkpoint
from speechlike import EXAMPLES, manifest

import sharpen
from sharpen.benchmarks.stock import named_tensors
from sharpen.errors import SharpenError
from sharpen.method import guard
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import files, transcribe
from sharpen.speech.answers import Decoded
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.decoding import decode
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model, run

CLIPS = manifest(EXAMPLES)


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(WhisperSpeech(tiny_en))


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
    assert min(segment.entropies) > 0
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
    order = [job for job, _ in run(tiny.speech, jobs, batch_size=3)]
    assert set(order) == set(jobs)
    for job, row in zip(jobs, CLIPS, strict=False):
        assert "".join(s.text for s in job.segments).strip() == tiny.transcribe(row["path"], options).text


def test_previous_text_and_prompts_reach_the_model(tiny, minutes):
    job = tiny.job(minutes, Options(initial_prompt="Aberdeen ferries.", condition_on_previous_text=True))
    assert tiny.speech.tokenizer.decode(job.window().context) == " Aberdeen ferries."
    taken, decoded = islice(run(tiny.speech, [job], 1), 2)
    assert (taken, decoded) == ((job, []), (job, job.segments))
    said = tiny.speech.tokenizer.decode(job.window().context)
    assert said == " Aberdeen ferries." + "".join(s.text for s in job.segments)
    plain = tiny.job(minutes, Options())
    assert len(list(islice(run(tiny.speech, [plain], 1), 2))) == 2
    assert plain.window().context == ()


def test_shaky_text_clears_what_was_fed_back(tiny, minutes, monkeypatch):
    job = tiny.job(minutes, Options(initial_prompt="Aberdeen ferries.", condition_on_previous_text=True))
    heat = iter([0.0, 0.6, 0.0])
    monkeypatch.setattr(
        transcribe, "decode", lambda *given: [replace(x, temperature=next(heat)) for x in decode(*given)]
    )
    steps, prompt = run(tiny.speech, [job], 1), job.window().context
    lengths = [len(job.window().context) for _ in islice(steps, 4)]
    assert lengths[0] == lengths[2] == len(prompt)
    assert min(lengths[1], lengths[3]) > len(prompt)


def test_a_window_that_fails_is_tried_again(tiny, minutes, monkeypatch):
    part = Audio(minutes.samples[: 50 * 16000], name="part")
    whole, calls = tiny.transcribe(part).text, []

    def failing(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*given)

    monkeypatch.setattr(transcribe, "decode", failing)
    result = tiny.transcribe(part)
    with pytest.raises(KeyboardInterrupt):
        _ = result.text
    assert result.text == whole


def stubbed(monkeypatch, *words, seconds=0.0, **changes):
    """Decoding that says one word after the other, window by window, the last one from there on."""
    said = list(words)

    def one_by_one(speech, windows, options, languages, on_step, pool):
        time.sleep(seconds)
        word = said.pop(0) if len(said) > 1 else said[0]
        tokens = tuple(speech.tokenizer.encode(f" {word}"))
        found = Decoded(tokens, (-0.1,) * len(tokens), (0.1,) * len(tokens), word, "cy", 0.0, -0.1, 0.0, 1.0)
        return [replace(found, **{k: v(word) for k, v in changes.items()}) for _ in windows]

    monkeypatch.setattr(transcribe, "decode", one_by_one)


def test_what_is_not_speech_does_not_decide_the_language(minutes, monkeypatch):
    model = Model(WhisperSpeech(small_checkpoint()))
    stubbed(
        monkeypatch,
        *("music", "words"),
        is_speech=lambda word: word == "words",
        language=lambda word: "de" if word == "words" else "cy",
    )
    assert model.transcribe(minutes).language == "de"


def test_a_rest_too_short_for_a_word_is_not_decoded(minutes, monkeypatch):
    model = Model(WhisperSpeech(small_checkpoint()))
    for seconds, text in ((0.3, "first"), (30.2, "first"), (30.6, "first second")):
        stubbed(monkeypatch, "first", "second")
        part = Audio(minutes.samples[: round(seconds * 16000)], name="part")
        assert model.transcribe(part, timestamps=False, language="en").text == text


def test_several_threads_may_read_one_transcript(minutes, monkeypatch):
    model = Model(WhisperSpeech(small_checkpoint()))
    stubbed(monkeypatch, *"abcdefgh", seconds=0.02)
    result = model.transcribe(minutes, timestamps=False, language="en")
    texts = []
    readers = [threading.Thread(target=lambda: texts.append(result.text)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    windows = -(-len(minutes.samples) // (30 * 16000))
    assert texts == [" ".join("abcdefgh"[:windows])] * 4


def test_a_recording_that_fails_in_decoding_is_named_and_the_others_go_on(tiny, tmp_path, monkeypatch):
    clips = [str(row["path"]) for row in CLIPS[:3]]

    def failing(speech, windows, *others):
        if any(window.id.startswith(Path(clips[1]).stem) for window in windows):
            raise RuntimeError("can't allocate memory")
        return decode(speech, windows, *others)

    monkeypatch.setattr(transcribe, "decode", failing)
    for batch_size in (1, 3):
        options = Options(language="en", batch_size=batch_size)
        events = list(files.transcribe_files(tiny, clips, options, str(tmp_path / str(batch_size)), ["txt"]))
        assert [(e.source, e.reason) for e in events if e.kind == "failed"] == [
            (clips[1], "RuntimeError: can't allocate memory")
        ]
        assert [e.source for e in events if e.kind == "finished"] == [clips[0], clips[2]]
        assert len(list((tmp_path / str(batch_size)).iterdir())) == 2


def test_a_long_recording_without_timestamps_is_warned_of(minutes, monkeypatch, tmp_path):
    stubbed(monkeypatch, "word")
    path = tmp_path / "long.wav"
    wav(path, minutes.samples[: 40 * 16000])
    events = list(
        files.transcribe_files(Model(WhisperSpeech(small_checkpoint())), [str(path)], Options(timestamps=False))
    )
    assert "without timestamps Whisper may stop at the first pause" in events[-1].reason


def test_audio_at_another_rate_is_resampled(tiny):
    at_16 = read_audio(CLIPS[0]["path"])
    at_44 = Audio(read_audio(CLIPS[0]["path"], sampling_rate=44100).samples, 44100, at_16.name)
    result = tiny.transcribe(at_44)
    assert result.text == tiny.transcribe(at_16).text
    assert result.info.duration == pytest.approx(at_16.duration, abs=0.001)


def test_one_odd_file_does_not_stop_the_others(tiny, tmp_path, monkeypatch):
    def read(source, **settings):
        if "odd" in source:
            raise RuntimeError("a bug in a reader")
        return read_audio(source, **settings)

    monkeypatch.setattr(files, "open_audio", read)
    good = str(CLIPS[0]["path"])
    events = list(files.transcribe_files(tiny, ["odd.wav", good], Options(), str(tmp_path), ["txt"]))
    assert [(e.source, e.reason) for e in events if e.kind == "failed"] == [
        ("odd.wav", "RuntimeError: a bug in a reader")
    ]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_text_that_the_limit_ends_is_warned_of(tiny, monkeypatch):
    monkeypatch.setattr(transcribe, "decode", lambda *given: [replace(x, finished=False) for x in decode(*given)])
    (event,) = (e for e in files.transcribe_files(tiny, [str(CLIPS[0]["path"])], Options()) if e.kind == "finished")
    assert "the length limit cut the text at 0 s" in event.reason


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
    half = Model(WhisperSpeech(tiny_en, dtype=torch.bfloat16))
    assert "ferry" in half.transcribe(CLIPS[0]["path"], effort="plain", padding="full").text.lower()


def test_translation_and_language_reach_the_model(base):
    model = Model(WhisperSpeech(base))
    german = model.transcribe(CLIPS[0]["path"], language="german", timestamps=False)
    assert german.language == "de"
    assert german.text != model.transcribe(CLIPS[0]["path"], timestamps=False).text


QUICK = sharpen.Adaptation(method="em-tok-b", steps=2, samples=4)


def test_adaptation_changes_the_transcript_and_leaves_the_model(tiny):
    clip = EXAMPLES / "glacier.m4a"
    before = {name: p.clone() for name, p in named_tensors(tiny.speech.checkpoint.weights)}
    source = tiny.transcribe(clip, adapt=None, decode="greedy")
    strong = replace(QUICK, lr=2e-2, guard=False)
    how_to = {"adapt": strong, "decode": "greedy"}
    adapted = tiny.transcribe(clip, **how_to)
    assert adapted.text != source.text
    ((start, how),) = adapted.adapted
    assert start == 0.0
    assert how.source.text == source.text
    assert how.result.text == adapted.text
    assert how.trace.steps[1].H_tok < how.trace.steps[0].H_tok
    assert tiny.transcribe(clip, **how_to).text == adapted.text
    assert tiny.transcribe(clip).text == source.text
    assert all(torch.equal(before[name], p) for name, p in named_tensors(tiny.speech.checkpoint.weights))


def test_an_episode_that_goes_astray_gives_the_source(tiny, tmp_path):
    wild = sharpen.Adaptation(method="greedy-em", steps=2, lr=1e30, guard=False)
    clip = str(CLIPS[0]["path"])
    source = tiny.transcribe(clip).text
    *_, done = files.transcribe_files(tiny, [clip], Options(adapt=wild), str(tmp_path), ["json"])
    assert (done.kind, "".join(s.text for s in done.segments).strip()) == ("finished", source)
    ((_, how),) = done.adapted
    assert "not finite" in how.trace.stopped or "no numbers" in how.refused
    assert len(list(tmp_path.iterdir())) == 1
    once = replace(wild, steps=1)  # no second step notices
    assert tiny.transcribe(clip, adapt=once).text == source


def test_names_that_are_no_text(tiny, tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.flac")
    shutil.copy(CLIPS[0]["path"], odd)
    *_, done = files.transcribe_files(
        tiny, [str(odd)], Options(adapt=replace(QUICK, explain=True)), str(tmp_path), ["srt"]
    )
    assert done.kind == "finished"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".flac", ".html", ".srt"]


def test_numbers_that_are_none_are_refused():
    with pytest.raises(SharpenError, match="cannot use device 'cpu' with dtype"):
        sharpen.load("tiny.en", device="cpu", dtype=torch.float16)
    with pytest.raises(SharpenError, match="cannot use device 'cpu' with dtype 'int8'"):
        sharpen.load("tiny.en", device="cpu", dtype="int8")


def test_adapting_inside_of_inference_mode(tiny):
    clip = CLIPS[0]["path"]
    with torch.inference_mode():
        text = tiny.transcribe(clip, adapt=QUICK).text
    assert text == tiny.transcribe(clip, adapt=QUICK).text


def test_hypotheses_are_let_go_unless_they_are_to_be_shown(tiny):
    for explain, kept in ((False, [False] * 3), (True, [True, False, True])):
        result = tiny.transcribe(CLIPS[0]["path"], adapt=replace(QUICK, steps=3, explain=explain))
        ((_, how),) = result.adapted
        assert [step.tree is not None for step in how.trace.steps] == kept


def test_the_guard_returns_the_source(tiny, monkeypatch):
    monkeypatch.setattr(guard, "check", lambda source, adapted: "for a test")
    result = tiny.transcribe(CLIPS[0]["path"], adapt=QUICK)
    assert result.text == tiny.transcribe(CLIPS[0]["path"]).text
    assert result.adapted[0][1].refused == "for a test"
    unguarded = tiny.transcribe(CLIPS[0]["path"], adapt=replace(QUICK, guard=False))
    assert unguarded.adapted[0][1].refused == ""


def test_silence_and_noise_are_not_adapted_to(tiny, base):
    noise = 0.003 * np.random.default_rng(0).standard_normal(16000 * 5).astype(np.float32)
    for result in (
        tiny.transcribe(np.zeros(16000 * 5, np.float32), adapt=QUICK),
        Model(WhisperSpeech(base)).transcribe(noise, language="en", adapt=QUICK),
    ):
        assert result.adapted == []
        assert result.text == ""


def test_windows_adapt_one_by_one_and_times_survive(tiny, minutes):
    part = Audio(minutes.samples[: 45 * 16000], name="part")
    result = tiny.transcribe(part, adapt=replace(QUICK, steps=1))
    assert len(result.adapted) >= 2
    segments = list(result.segments)
    assert len(segments) > 2
    assert all(a.start <= b.start for a, b in pairwise(segments))


def test_progress_is_told_at_every_step(tiny):
    heard = []
    job = tiny.job(CLIPS[0]["path"], Options(adapt=QUICK))
    list(run(tiny.speech, [job], 1, lambda number, steps: heard.append((number, len(steps)))))
    assert heard == [(1, 1), (2, 1)]
