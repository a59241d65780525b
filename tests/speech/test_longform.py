from dataclasses import replace

import pytest

from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.speech.answers import Decoded
from sharpen.speech.longform import segments, settle

TOKENIZER = WhisperTokenizer.of_kind(51865)


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
        spans=tuple((0.1 * i, 0.1 * i + 0.1) for i in range(n)),
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
    assert second.entropies == pytest.approx([0.2 * i for i in range(len(hello) + 3, len(tokens) - 1)])


def test_a_word_behind_the_timestamps_stays_in_its_segment():
    words = replace(TOKENIZER, vocab_size=51866, added={" Zürich": 51865})
    tokens = [stamp(0.5), *words.encode(" In Zürich"), stamp(2.0)]
    assert 51865 in tokens
    (only,) = segments(words, decoded(tokens), offset=0.0, duration=5.0)
    assert (only.start, only.end, only.text) == (0.5, 2.0, " In Zürich")


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
    late = [*tokens[:-2], *TOKENIZER.encode(" Thank you."), stamp(12.0)]  # begins where the sound has ended
    assert [s.text for s in segments(TOKENIZER, decoded(late), 0.0, 4.0)] == [" a"]


HELLO, WORLD = TOKENIZER.encode(" Hello there."), TOKENIZER.encode(" World.")


@pytest.mark.parametrize(
    ("tokens", "kept", "consumed"),
    [
        pytest.param([stamp(0), *HELLO, stamp(24.5)], "all", 30.0, id="closes its last segment"),
        pytest.param([stamp(0), *HELLO, stamp(9), stamp(9), *WORLD, stamp(12)], "all", 30.0, id="closes both"),
        pytest.param([stamp(0), *HELLO, stamp(12), stamp(12.5)], len(HELLO) + 2, 12.0, id="opens another in vain"),
        pytest.param([stamp(0), *HELLO, stamp(9), stamp(9.5), *WORLD], len(HELLO) + 2, 9.0, id="leaves one open"),
        pytest.param(
            [stamp(0), *HELLO, stamp(5), stamp(5), *WORLD, stamp(9), stamp(9), *HELLO],
            len(HELLO) + len(WORLD) + 4,
            9.0,
            id="leaves the third open",
        ),
        pytest.param([stamp(0), *HELLO, stamp(0.1), stamp(0.1)], "all", 30.0, id="would hardly move on"),
        pytest.param([stamp(0), *HELLO], "all", 30.0, id="closes nothing"),
        pytest.param(HELLO, "all", 30.0, id="no timestamps"),
        pytest.param([], "all", 30.0, id="nothing"),
    ],
)
def test_where_the_next_window_starts(tokens, kept, consumed):
    result, seconds = settle(TOKENIZER, decoded(tokens), 30.0, last=False)
    assert seconds == pytest.approx(consumed)
    assert result.tokens == tuple(tokens if kept == "all" else tokens[:kept])
    assert len(result.logprobs) == len(result.entropies) == len(result.spans) == len(result.tokens)


def test_the_last_window_is_not_split_for_the_sake_of_a_moment():
    output = decoded([stamp(0), *HELLO, stamp(9.7), stamp(9.7)])
    assert settle(TOKENIZER, output, 10.0, last=True) == (output, 10.0)
    assert settle(TOKENIZER, output, 10.0, last=False)[1] == pytest.approx(9.7)
    assert settle(TOKENIZER, output, 12.0, last=True)[1] == pytest.approx(9.7)
