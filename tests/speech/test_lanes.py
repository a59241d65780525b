import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import EXAMPLES, manifest

from sharpen.method.adaptation import Adaptation
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import transcribe
from sharpen.speech.answers import Decoded
from sharpen.speech.audio import Audio
from sharpen.speech.files import transcribe_files
from sharpen.speech.lanes import run_in_lanes
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model, run

CLIPS = [str(row["path"]) for row in manifest(EXAMPLES)]
QUICK = Options(language="en", adapt=Adaptation(method="em-tok-b", samples=4, steps=2), decode="beam")


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(WhisperSpeech(tiny_en))


@pytest.fixture(scope="module")
def small():
    return Model(WhisperSpeech(small_checkpoint()))


@pytest.fixture(autouse=True)
def spoken(request, monkeypatch):
    """Decoding that says where a window begins and costs nothing; unless the test takes real weights."""

    def said(speech, windows, options, languages, on_step=None, pool=None):
        time.sleep(0.01)
        return [written(speech, f"{window.id} of {len(window.samples)} samples") for window in windows]

    if "tiny" not in request.fixturenames:
        monkeypatch.setattr(transcribe, "decode", said)
    return said


def written(speech, text):
    tokens = tuple(speech.tokenizer.encode(text))
    return Decoded(tokens, (-0.1,) * len(tokens), (0.1,) * len(tokens), text, "en", 0.0, -0.1, 0.0, 1.0)


def jobs(model, seconds):
    for number, length in enumerate(seconds):
        yield model.job(Audio(np.ones(16000 * length, np.float32), name=f"tone {number}"), Options(language="en"))


def test_transcripts_are_those_of_one_lane(tiny):
    texts = []
    for number in (1, 3):
        found = {}
        for event in transcribe_files(tiny, CLIPS[:4], QUICK, lanes=number):
            if event.kind == "finished":
                found[event.source] = [segment.text for segment in event.segments]
        texts.append(found)
    assert list(texts[0]) == CLIPS[:4]
    assert texts[1] == texts[0]


def test_windows_of_a_recording_come_in_order_and_each_once(small):
    lengths = [3, 70, 5, 40, 2, 95]
    alone = {job.audio.name: [s.text for s in job.segments] for job in list_jobs(run, small, lengths)}
    found = {job.audio.name: [s.text for s in job.segments] for job in list_jobs(run_in_lanes, small, lengths, 3)}
    assert found == alone


def list_jobs(how, model, lengths, *several):
    made, seen = list(jobs(model, lengths)), {}
    for job, new in how(model.speech, made, *(several or [1])):
        seen.setdefault(job, []).extend(new)
        time.sleep(0.005)
        assert seen[job] == job.segments  # nothing was added while this window was looked at
    assert all(job.finished for job in made)
    assert max(len(job.segments) for job in made) >= 4
    return made


def test_several_are_decoded_at_once_and_the_rest_is_for_the_caller(small, spoken, monkeypatch):
    here, threads, callers = threading.current_thread(), set(), Counter()
    both = threading.Barrier(2, timeout=30)

    def together(*given):
        threads.add(threading.current_thread())
        if len(threads) <= 2 and not both.broken:
            both.wait()  # passes only where two lanes decode at the same time
        return spoken(*given)

    def counted():
        for job in jobs(small, [2, 2]):
            callers[threading.current_thread()] += 1
            yield job

    monkeypatch.setattr(transcribe, "decode", together)
    assert len([new for _, new in run_in_lanes(small.speech, counted(), 2)]) == 4
    assert len(threads) == 2
    assert here not in threads
    assert callers == {here: 2}


def test_threads_are_divided_among_the_lanes_that_work(small, spoken, monkeypatch):
    before, used = torch.get_num_threads(), []
    monkeypatch.setattr(transcribe, "decode", lambda *given: used.append(torch.get_num_threads()) or spoken(*given))
    torch.set_num_threads(2)
    try:
        list(run_in_lanes(small.speech, jobs(small, [2, 2, 95]), 2))
        assert set(used) == {1, 2}  # the last windows of the long one have both
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_one_that_fails_is_told_in_the_callers_thread_and_the_others_go_on(small, spoken, monkeypatch):
    def failing(speech, windows, *others):
        if windows[0].id.startswith("tone 1"):
            raise RuntimeError("can't allocate memory")
        return spoken(speech, windows, *others)

    monkeypatch.setattr(transcribe, "decode", failing)
    told = []

    def on_failure(job, error):
        told.append((job.audio.name, str(error), threading.current_thread()))

    list(run_in_lanes(small.speech, jobs(small, [2, 2, 2]), 2, on_failure=on_failure))
    assert told == [("tone 1", "can't allocate memory", threading.current_thread())]
    with pytest.raises(RuntimeError, match="allocate"):
        list(run_in_lanes(small.speech, jobs(small, [2, 2, 2]), 2))
    assert not any(thread.name == "lane" for thread in threading.enumerate())


def test_steps_are_told(tiny):
    heard = []
    options = replace(QUICK, adapt=replace(QUICK.adapt, steps=2))
    made = [tiny.job(clip, options) for clip in CLIPS[:2]]
    list(run_in_lanes(tiny.speech, made, 2, on_step=lambda n, steps: heard.append((n, threading.current_thread()))))
    assert Counter(heard) == {(n, threading.current_thread()): 2 for n in (1, 2)}


@pytest.mark.parametrize("end", ["closed", "raised"])
def test_a_caller_who_stops_early_leaves_no_lane_behind(small, end):
    events = run_in_lanes(small.speech, jobs(small, [95, 95, 95]), 2)
    for number, _ in enumerate(events):
        if number == 3:
            break
    if end == "closed":
        events.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            events.throw(KeyboardInterrupt())
    assert not any(thread.name == "lane" for thread in threading.enumerate())


def test_a_mistake_of_the_jobs_reaches_the_caller(small):
    def broken():
        yield from jobs(small, [2])
        raise ValueError("no more of these")

    with pytest.raises(ValueError, match="no more"):
        list(run_in_lanes(small.speech, broken(), 2))
    assert not any(thread.name == "lane" for thread in threading.enumerate())
