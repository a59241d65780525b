"""The batch that requests share, with a real model: who gets what, and when."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import EXAMPLES, manifest, with_noise

from sharpen.method.adaptation import Adaptation
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.serving import batch as lanes
from sharpen.serving.batch import EpisodeBatch
from sharpen.serving.errors import ApiError
from sharpen.serving.events import Failed, Finished, SourceTold, StepTold, WindowTold
from sharpen.serving.limits import ServerLimits
from sharpen.serving.metrics import Metrics
from sharpen.serving.ticket import Ticket, source_key
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.efforts import effort_options
from sharpen.speech.transcribe import load

CLIPS = [read_audio(row["path"]).samples for row in manifest(EXAMPLES)]
HARD = with_noise(CLIPS[0], 5.0, 0)
PLAIN, NORMAL, HIGH = (effort_options(name) for name in ("plain", "normal", "high"))
STEPS = replace(HIGH, adapt=replace(HIGH.adapt, gate=0.0, steps=4))  # adapts whatever the entropy


@pytest.fixture(scope="module")
def model():
    return load("tiny.en")


class Follower:
    """What a request is told, and when."""

    def __init__(self, batch, model, samples, options, **settings):
        self.told, self.done = [], threading.Event()
        deadline = settings.pop("deadline", None)
        if deadline is not None:
            settings["until"] = time.monotonic() + deadline
        job = model.job(Audio(np.asarray(samples, np.float32)), options)
        self.ticket = Ticket(str(id(self)), job, self._tell, **settings)
        self.begin, self.end = time.monotonic(), 0.0
        batch.submit(self.ticket)

    def _tell(self, event):
        self.told.append(event)
        if isinstance(event, Finished | Failed):
            self.end = time.monotonic()
            self.done.set()

    def result(self):
        assert self.done.wait(120), "no answer"
        assert isinstance(self.told[-1], Finished), self.told[-1]
        return self.told[-1]

    def of(self, kind):
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
def running(model, request):
    """A batch, started; several with different limits may be made."""
    started = []

    def start(**limits):
        batch = EpisodeBatch(model.speech, ServerLimits(**{"busy": 1000, **limits}), Metrics())
        batch.start()
        started.append(batch)
        return batch

    yield start
    for batch in started:
        batch.stop()


MIX = [
    PLAIN,
    NORMAL,
    STEPS,
    replace(PLAIN, decode="greedy"),
    replace(PLAIN, adapt=Adaptation(method="em-tok", steps=2, samples=3)),
    replace(PLAIN, adapt=Adaptation(method="greedy-em", steps=2)),
    replace(NORMAL, adapt=replace(NORMAL.adapt, gate=0.0, norms="decoder")),
    replace(STEPS, word_timestamps=True, initial_prompt="The weather."),
]


def isolation(model, running, clips, options, lanes=1):
    """How many of the texts differ from those of a lone `Model.transcribe`; nobody may get another's."""
    alone = [model.transcribe(clip, o) for clip, o in zip(clips, options, strict=True)]
    texts = [transcript.text for transcript in alone]
    batch = running(rows=4, lanes=lanes)
    followers = [Follower(batch, model, clip, o) for clip, o in zip(clips, options, strict=True)]
    found = [follower.result() for follower in followers]
    for one, transcript in zip(found, alone, strict=True):
        assert [window.steps for window in one.windows] == [len(how.trace.steps) for _, how in transcript.adapted] or (
            not transcript.adapted
        )
    return sum(one.text != text for one, text in zip(found, texts, strict=True))


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_a_request_gets_does_not_depend_on_the_others(model, running, lanes):
    clips = [CLIPS[i % len(CLIPS)] if i % 2 else with_noise(CLIPS[i % len(CLIPS)], 10.0, i) for i in range(8)]
    changed = isolation(model, running, clips, MIX, lanes)
    assert changed <= 1  # by rounding


@pytest.mark.long
def test_32_requests_get_what_they_get_alone(model, running):
    clips = [with_noise(CLIPS[i % len(CLIPS)], (20.0, 10.0, 5.0)[i % 3], i) for i in range(32)]
    changed = isolation(model, running, clips, [MIX[(i // 2) % len(MIX)] for i in range(32)])
    print(f"{changed} of 32 texts differ from those of lone requests")
    assert changed <= 2


def numbers(result):
    return result.text, result.windows, [(s.tokens, s.logprobs, s.entropies, s.words) for s in result.segments]


def bit_for_bit(model, running, clips, options):
    """Requests at once, and then one after the other, where no window shares a batch."""
    batch = running(rows=2, together=1, lanes=2)
    together = [Follower(batch, model, clip, o) for clip, o in zip(clips, options, strict=True)]
    found = [numbers(follower.result()) for follower in together]
    alone = [numbers(Follower(batch, model, clip, o).result()) for clip, o in zip(clips, options, strict=True)]
    assert found == alone


def test_in_batches_of_one_window_a_request_gets_the_same_numbers_alone_and_among_others(model, running):
    clips = [with_noise(CLIPS[i % len(CLIPS)], 10.0, i) for i in range(4)]
    bit_for_bit(model, running, clips, [STEPS] * 4)  # which could be decoded together


@pytest.mark.long
def test_32_requests_get_the_same_numbers_in_batches_of_one_window(model, running):
    clips = [with_noise(CLIPS[i % len(CLIPS)], (20.0, 10.0, 5.0)[i % 3], i) for i in range(32)]
    bit_for_bit(model, running, clips, [MIX[(i // 2) % len(MIX)] for i in range(32)])


def test_windows_that_adapt_share_the_steps_of_one_episode(model, running):
    batch = running()
    followers = [Follower(batch, model, with_noise(clip, 5.0, 1), STEPS, explain=True) for clip in CLIPS[:3]]
    assert [follower.result().steps for follower in followers] == [4, 4, 4]
    for follower in followers:
        assert [event.index for event in follower.of(StepTold)] == [1, 2, 3, 4]
        assert all(event.step.tree.hypotheses for event in follower.of(StepTold))
        kinds = [type(event) for event in follower.told]
        assert kinds == [SourceTold, *[StepTold] * 4, WindowTold, Finished]
    together = [event.step.batch_seconds for follower in followers for event in follower.of(StepTold)]
    assert len({id(seconds) for seconds in together}) < len(together)  # rows of one step have its times in common


def in_two_lanes(batch, model):
    """A window in each of two lanes, with more steps than anybody waits for."""
    endless = replace(STEPS, adapt=replace(STEPS.adapt, steps=500))
    followers = [Follower(batch, model, with_noise(clip, 5.0, 1), endless) for clip in CLIPS[:2]]
    while sum(map(len, batch.lanes)) < 2:
        time.sleep(0.01)
    return followers


def test_lanes_work_side_by_side(model, running):
    batch = running(lanes=2)
    followers = in_two_lanes(batch, model)
    assert [len(lane) for lane in batch.lanes] == [1, 1]  # neither took both
    for follower in followers:
        follower.ticket.vanished = True
    assert Follower(batch, model, CLIPS[1], PLAIN).result().text


def test_a_mistake_in_one_lane_costs_only_what_it_holds(model, running, monkeypatch, capsys):
    batch = running(lanes=2)
    followers = in_two_lanes(batch, model)

    def broken():
        monkeypatch.undo()
        raise RuntimeError("a mistake")

    monkeypatch.setattr(batch.lanes[0], "_shed", broken)
    while not any(follower.done.is_set() for follower in followers):
        time.sleep(0.01)
    (told,) = [follower.told[-1] for follower in followers if follower.done.is_set()]
    assert (told.error.status, told.error.code) == (500, "internal")
    assert "a mistake" in capsys.readouterr().err
    assert [len(lane) for lane in batch.lanes] == [0, 1]
    for follower in followers:
        follower.ticket.vanished = True
    assert Follower(batch, model, CLIPS[1], PLAIN).result().text


def test_a_long_recording_takes_turns(model, running):
    batch = running()
    long = np.concatenate([np.pad(clip, (0, 8000)) for clip in CLIPS * 2])  # several windows
    slow = Follower(batch, model, long, PLAIN)
    time.sleep(0.2)
    fast = [Follower(batch, model, clip, PLAIN) for clip in CLIPS[:2]]
    assert [one.result().text for one in fast]
    assert len(slow.result().windows) >= 3
    assert max(one.end for one in fast) < slow.end
    assert slow.result().text == model.transcribe(long, PLAIN).text


def test_a_deadline_cuts_the_steps_and_is_kept(model, running):
    batch = running()
    options = replace(STEPS, adapt=replace(STEPS.adapt, steps=12))
    free = Follower(batch, model, HARD, options)
    assert free.result().steps == 12
    allowed = (free.end - free.begin) / 2
    tight = Follower(batch, model, HARD, options, deadline=allowed, explain=True)
    steps, (window,) = tight.result().steps, tight.result().windows
    assert 0 < steps < 12
    assert window.stopped.startswith("deadline")
    longest = max(sum(told.step.batch_seconds.values()) for told in tight.of(StepTold))
    assert tight.end - tight.begin < allowed + longest + 0.5  # late by one step at most


def test_a_deadline_without_room_for_a_beam_gets_a_greedy_transcript(model, running):
    batch = running()
    batch.costs.saw("beam", 1000.0)
    follower = Follower(batch, model, CLIPS[2], STEPS, deadline=30.0)
    (window,) = follower.result().windows
    assert (window.answer, window.steps) == ("source", 0)
    assert "greedy" in window.stopped
    assert follower.result().text == model.transcribe(CLIPS[2], decode="greedy", adapt=None, padding="condensed").text


def test_a_deadline_that_has_passed(model, running):
    batch = running()
    late = Follower(batch, model, CLIPS[0], PLAIN, deadline=0.0)
    assert late.done.wait(60)
    assert (late.told[-1].error.status, late.told[-1].error.code) == (503, "deadline_exceeded")
    long = np.concatenate([np.pad(clip, (0, 8000)) for clip in CLIPS * 3])
    partly = Follower(batch, model, long, PLAIN, deadline=1.0)
    partly.ticket.until = float("inf")
    while not partly.of(WindowTold):
        time.sleep(0.01)
    partly.ticket.until = 0.0
    result = partly.result()
    assert 0 < result.transcribed < result.duration
    assert result.text == "".join(s.text for told in partly.of(WindowTold) for s in told.segments).strip()


def test_a_client_that_left_frees_its_row(model, running):
    batch = running(rows=1)
    gone = Follower(batch, model, HARD, replace(STEPS, adapt=replace(STEPS.adapt, steps=500)), explain=True)
    while not gone.of(StepTold):
        time.sleep(0.01)
    waiting = Follower(batch, model, CLIPS[1], STEPS)
    seen = len(gone.of(StepTold))
    gone.ticket.vanished = True
    assert waiting.result().text
    assert not gone.done.is_set()
    assert len(gone.of(StepTold)) <= seen + 2
    assert batch.size == 0


def test_under_load_the_most_confident_stop_first_and_say_so(model, running):
    batch = running(rows=2, busy=1)
    options = replace(STEPS, adapt=replace(STEPS.adapt, steps=8))
    followers = [Follower(batch, model, clip, options) for clip in (CLIPS[0], HARD, CLIPS[1], CLIPS[2])]
    results = [follower.result() for follower in followers]
    shed = [r.windows[0] for r in results if r.windows[0].stopped.startswith("load")]
    assert shed
    assert all(1 <= window.steps < 8 for window in shed)
    assert batch.metrics.value("shed_total") == len(shed)


def test_the_queue_is_bounded(model, running):
    batch = running(queue=2)
    followers = [Follower(batch, model, CLIPS[0], PLAIN) for _ in range(2)]
    with pytest.raises(ApiError) as caught:
        Follower(batch, model, CLIPS[0], PLAIN)
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert caught.value.retry_after >= 1
    assert [follower.result().text for follower in followers]
    assert Follower(batch, model, CLIPS[0], PLAIN).result().text


def test_silence_needs_no_turn(model, running):
    result = Follower(running(), model, np.zeros(32_000), PLAIN).result()
    assert (result.text, result.windows, result.duration) == ("", (), 2.0)


def test_a_step_that_fails_costs_only_the_window_at_fault(model, running, monkeypatch):
    """The shared step breaks while a certain window is in it; alone, the others adapt as ever."""
    batch = running()
    culprit = "culprit"
    (lane,) = batch.lanes
    step, adapt = lane._episode.step, lane._alone

    def broken():
        if any(i.startswith(culprit) for i in lane._episode.ids):
            raise RuntimeError("out of memory")
        return step()

    def alone(row):
        if row.id.startswith(culprit):
            raise RuntimeError("out of memory")
        return adapt(row)

    monkeypatch.setattr(lane._episode, "step", broken)
    monkeypatch.setattr(lane, "_alone", alone)
    job = model.job(Audio(HARD), STEPS)
    failed = threading.Event()
    told = []
    batch.submit(Ticket(culprit, job, lambda event: (told.append(event), failed.set())))
    good = Follower(batch, model, CLIPS[1], STEPS)
    assert good.result().text == model.transcribe(CLIPS[1], STEPS).text
    assert failed.wait(60)
    assert (told[-1].error.status, "out of memory" in told[-1].error.message) == (500, True)


def test_stopping_tells_those_who_wait(model, running):
    batch = running(rows=1)
    waiting = Follower(batch, model, HARD, replace(STEPS, adapt=replace(STEPS.adapt, steps=500)))
    time.sleep(0.1)
    batch.stop()
    assert waiting.done.wait(1)
    assert (waiting.told[-1].error.status, waiting.told[-1].error.code) == (503, "stopping")
    with pytest.raises(ApiError, match="stopping"):
        Follower(batch, model, CLIPS[0], PLAIN)


def test_several_texts_of_a_window_that_has_no_time_for_a_beam(model, running):
    """Its greedy search has one; and what windows show of their answers does not keep them apart."""
    batch = running()
    options = replace(NORMAL, n_best=3)
    (window,) = Follower(batch, model, CLIPS[0], options).result().readings
    assert len(window.readings) > 1
    batch.costs.saw("beam", 1000.0)
    late = Follower(batch, model, CLIPS[0], options, deadline=30.0).result()
    assert [len(window.readings) for window in late.readings] == [1]
    assert source_key(options) == source_key(replace(NORMAL, confidence=True, vad_filter=True))
    assert source_key(options) != source_key(replace(options, decode="greedy", n_best=1))


def test_a_lane_for_each_thread_within_reason(monkeypatch):
    speech = WhisperSpeech(small_checkpoint())
    for threads, expected in ((1, 1), (3, 3), (64, lanes.MOST_LANES)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert lanes.default_lanes(speech) == expected
    monkeypatch.setattr(lanes, "WIDEST", 8)  # narrower than this model
    assert lanes.default_lanes(speech) == 1
