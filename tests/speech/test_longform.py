import numpy as np
import pytest

from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.speech.decoding import Decoded
from sharpen.speech.longform import segments, settle, window_end

TOKENIZER = WhisperTokenizer.of_kind(51865)
RATE = 1000


def test_a_short_recording_is_one_window():
    assert window_end(np.ones(30 * RATE, np.float32), 0, RATE, 30) == 30 * RATE
    assert window_end(np.ones(50 * RATE, np.float32), 20 * RATE, RATE, 30) == 50 * RATE


def test_a_window_ends_in_a_pause():
    samples = np.random.default_rng(0).standard_normal(95 * RATE).astype(np.float32)
    for pause in (25.0, 49.0, 70.0):
        samples[int((pause - 0.2) * RATE) : int((pause + 0.2) * RATE)] *= 0.01
    for start, pause in ((0, 25.0), (25, 49.0), (49, 70.0)):
        assert window_end(samples, start * RATE, RATE, 30) / RATE == pytest.approx(pause, abs=0.15)


def test_equal_loudness_cuts_as_late_as_possible():
    assert 29.5 * RATE < window_end(np.zeros(61 * RATE, np.float32), 0, RATE, 30) <= 30 * RATE


def decoded(tokens):
    n = len(tokens)
    return Decoded(
        tokens=tuple(tokens),
        logprobs=tuple(-0.1 * i for i in range(n)),
        entropies=tuple(0.2 * i for i in range(n)),
        text=TOKENIZER.decode(tokens),
        language="en",
        temperature=0.0,
        avg_logprob=-0.3,
        no_speech_prob=0.1,
        compression_ratio=1.0,
    )


def stamp(seconds):
    return TOKENIZER.timestamp_begin + round(seconds / 0.02)


def test_timestamps_divide_a_window():
    hello, world = TOKENIZER.encode(" Hello there."), TOKENIZER.encode(" World.")
    tokens = [stamp(0.5), *hello, stamp(2.0), stamp(2.4), *world, stamp(3.0)]
    first, second = segments(TOKENIZER, decoded(tokens), offset=60.0, duration=5.0, first_id=7)
    assert (first.start, first.end, first.text, first.id, first.seek) == (60.5, 62.0, " Hello there.", 7, 6000)
    assert (second.start, second.end, second.text, second.id) == (62.4, 63.0, " World.", 8)
    assert first.tokens == tuple(hello)
    assert first.logprobs == pytest.approx([-0.1 * i for i in range(1, 1 + len(hello))])
    assert second.avg_entropy == pytest.approx(np.mean([0.2 * i for i in range(len(hello) + 3, len(tokens) - 1)]))


def test_without_timestamps_a_window_is_one_segment():
    (only,) = segments(TOKENIZER, decoded(TOKENIZER.encode(" Hello.")), 0.0, 4.2)
    assert (only.start, only.end, only.text) == (0.0, 4.2, " Hello.")


def test_an_output_cut_by_the_limit_keeps_its_open_segment():
    (only,) = segments(TOKENIZER, decoded([stamp(1.0), *TOKENIZER.encode(" Hello")]), 10.0, 4.2)
    assert (only.start, only.end) == (11.0, 14.2)


def test_times_stay_inside_the_window_and_blank_segments_are_dropped():
    tokens = [stamp(0.0), *TOKENIZER.encode(" a"), stamp(9.0), stamp(9.0), TOKENIZER.encode(" ")[0], stamp(9.5)]
    (only,) = segments(TOKENIZER, decoded(tokens), 0.0, 4.0)
    assert only.end == 4.0
    assert segments(TOKENIZER, decoded([]), 0.0, 4.0) == []


HELLO, WORLD = TOKENIZER.encode(" Hello there."), TOKENIZER.encode(" World.")


@pytest.mark.parametrize(
    ("tokens", "kept", "consumed"),
    [
        pytest.param([stamp(0), *HELLO, stamp(24.5)], "all", 25.0, id="reaches the end"),
        pytest.param([stamp(0), *HELLO, stamp(12)], "all", 12.0, id="stops early: goes on from there"),
        pytest.param([stamp(0), *HELLO, stamp(12), stamp(12.5)], len(HELLO) + 2, 12.0, id="opens a segment in vain"),
        pytest.param([stamp(0), *HELLO, stamp(9), stamp(9), *WORLD], len(HELLO) + 2, 9.0, id="does not close one"),
        pytest.param([stamp(0), *HELLO], "all", 25.0, id="closes nothing"),
        pytest.param([stamp(0), *HELLO, stamp(0.5)], "all", 25.0, id="would hardly move on"),
        pytest.param(HELLO, "all", 25.0, id="no timestamps"),
        pytest.param([], "all", 25.0, id="nothing"),
    ],
)
def test_where_the_next_window_starts(tokens, kept, consumed):
    result, seconds = settle(TOKENIZER, decoded(tokens), 25.0, last=False)
    assert seconds == pytest.approx(consumed)
    assert result.tokens == tuple(tokens if kept == "all" else tokens[:kept])
    assert len(result.logprobs) == len(result.entropies) == len(result.tokens)
    assert settle(TOKENIZER, decoded(tokens), 25.0, last=True) == (decoded(tokens), 25.0)
