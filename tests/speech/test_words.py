import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from models.small import small_checkpoint
from speechlike import EXAMPLES, manifest

from sharpen.method import guard
from sharpen.method.adaptation import Adaptation
from sharpen.models.speech import Attention
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import transcribe
from sharpen.speech.answers import Decoded
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.decoding import Window, adapt_windows, decode, decode_adapted, decode_source
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model
from sharpen.speech.words import TimedTokens, Word, token_spans, words

TOKENIZER = WhisperTokenizer.of_kind(51865)
# Where flite says that the first phone of each clip begins: `flite -psdur` of examples/make.py's text, and its pause.
ONSETS = {"ferry": 0.15 + 0.184, "bakery": 0.15 + 0.174, "letter": 0.15 + 0.249}
FRAME = 0.02
QUICK = Adaptation(samples=2, steps=2, lr=1e-2)


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(WhisperSpeech(tiny_en))


def said(text, *times, logprob=-0.1, segment=None, tokenizer=TOKENIZER):
    """A segment of that text; token i lasts from times[i] to times[i + 1], by default a quarter of a second."""
    tokens = tokenizer.encode(text)
    times = times or [0.25 * i for i in range(len(tokens) + 1)]
    assert len(times) == len(tokens) + 1, (len(tokens), [tokenizer.decode([t]) for t in tokens])
    start, end = segment or (times[0], times[-1])
    return TimedTokens(start, end, tokens, list(pairwise(times)), [logprob] * len(tokens))


def found(*stretches, spaced=True, end=30.0, last=0.0):
    return words(TOKENIZER, stretches, spaced=spaced, end=end, last=last)


def texts(some):
    return [word.word for word in some]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Hello, world.", [" Hello,", " world."]),
        (' He said "no" (twice)!', [" He", " said", ' "no"', " (twice)!"]),
        (" ¿Qué? Sí...", [" ¿Qué?", " Sí..."]),
        (" It's twenty-five.", [" It's", " twenty", "-five."]),  # as in whisper
        (" Unbelievable", [" Unbelievable"]),
        (" . alone", [" .", " alone"]),
        ("Zürich", ["Zürich"]),
    ],
)
def test_punctuation_joins_its_word(text, expected):
    (some,) = found(said(text))
    assert texts(some) == expected


def test_punctuation_leaves_the_times_and_the_probability_of_its_word():
    tokens = said(" Hello, world.", 0.5, 0.8, 1.4, 1.9, 2.0)
    tokens = replace(tokens, logprobs=[math.log(0.5), math.log(0.01), math.log(0.25), math.log(0.01)])
    (some,) = found(tokens)
    assert some == (Word(" Hello,", 0.5, 0.8, pytest.approx(0.5)), Word(" world.", 1.4, 1.9, pytest.approx(0.25)))


def test_the_probability_of_a_word_is_the_mean_of_its_tokens():
    tokens = said(" Aberdeen")
    assert len(tokens.tokens) > 1
    logprobs = [math.log(0.1 * (i + 1)) for i in range(len(tokens.tokens))]
    ((only,),) = found(replace(tokens, logprobs=logprobs))
    assert only.probability == pytest.approx(sum(map(math.exp, logprobs)) / len(logprobs))


@pytest.mark.parametrize("text", ["今日は良い天気ですね。東京。", "这是一个测试，谢谢。", "สวัสดีครับ", "မင်္ဂလာပါ"])
def test_languages_without_spaces_are_split_into_characters(text):
    """A character may take several tokens, and is never cut."""
    tokens = said(text)
    (some,) = found(tokens, spaced=False)
    assert "".join(texts(some)) == text
    assert not any("\ufffd" in word.word for word in some)
    assert 2 < len(some) <= len(tokens.tokens)
    assert all(word.word[-1] in "。，" or len(word.word) <= 4 for word in some)
    (whole,) = found(tokens, spaced=True)
    assert len(whole) == 1


def test_a_character_that_is_cut_in_half_is_shown_as_such():
    tokens = said("မ")
    cut = replace(tokens, tokens=tokens.tokens[:-1], spans=tokens.spans[:-1], logprobs=tokens.logprobs[:-1])
    assert len(cut.tokens) > 0
    (some,) = found(cut, spaced=False)
    assert "".join(texts(some)) == TOKENIZER.decode(cut.tokens)


def test_a_word_after_a_sentence_does_not_keep_the_pause():
    tokens = said(" One two three. Four five six", 0.0, 0.3, 0.6, 0.9, 1.0, 6.0, 6.3, 6.6)
    (some,) = found(tokens)
    assert texts(some)[2:4] == [" three.", " Four"]
    usual = 0.3
    assert (some[3].start, some[3].end) == (pytest.approx(6.0 - 2 * usual), 6.0)
    (before,) = found(said(" One two three Four five six", 0.0, 0.3, 0.6, 0.9, 6.0, 6.3, 6.6))
    assert before[3].start == 0.9  # no sentence has ended


def test_the_sentence_may_end_in_the_segment_before():
    first, second = said(" One two three.", 0.0, 0.3, 0.6, 0.9, 1.0), said(" Four five six", 1.0, 6.0, 6.3, 6.6)
    assert found(first, second)[1][0].start == pytest.approx(5.4)


def test_the_first_words_after_a_pause_are_shortened():
    long = said(" One two three four", 2.0, 7.0, 7.3, 7.6, 7.9)
    (some,) = found(long)
    assert (some[0].start, some[0].end) == (pytest.approx(6.4), 7.0)
    (some,) = found(long, last=6.5)  # no pause: the speech before ended just now
    assert some[0].start == 2.0
    (some,) = found(said(" One two three four", 2.0, 2.2, 7.0, 7.3, 7.6))
    assert [(w.start, w.end) for w in some[:2]] == [pytest.approx((5.8, 6.4)), pytest.approx((6.4, 7.0))]


def test_words_that_reach_far_out_of_their_segment_are_clipped():
    times = (2.0, 3.2, 3.5, 3.8, 5.2)
    (some,) = found(said(" One two three four", *times, segment=(2.8, 4.2)), last=2.0)
    assert (some[0].start, some[-1].end) == (pytest.approx(2.5), pytest.approx(4.5))  # a usual word lasts 0.7 s
    (some,) = found(said(" One two three four", *times, segment=(2.4, 4.8)), last=2.0)
    assert (some[0].start, some[-1].end) == (2.0, 5.2)


def test_no_word_lies_after_the_end():
    (some,) = found(said(" One two three", 0.0, 0.5, 1.0, 1.5), end=0.8)
    assert [(w.start, w.end) for w in some] == [(0.0, 0.5), (0.5, 0.8), (0.8, 0.8)]


def test_repairs_never_let_words_overlap():
    rng = np.random.default_rng(0)
    text = " One two. Three, four five six. Seven eight"
    count = len(TOKENIZER.encode(text))
    for _ in range(300):
        times = np.sort(rng.choice([0.1, 1.0, 8.0]) * rng.random(count + 1)).round(2).tolist()
        segment = tuple(sorted(rng.uniform(0, times[-1], 2)))
        (some,) = found(said(text, *times, segment=segment), last=rng.uniform(-3, times[0]))
        edges = [edge for word in some for edge in (word.start, word.end)]
        assert edges == sorted(edges)
        assert times[0] <= edges[0]
        assert edges[-1] <= times[-1]


def test_a_timestamp_has_the_time_of_what_follows():
    stamp = TOKENIZER.timestamp_begin
    weights = np.full((4, 40), -1.0)  # before the text, two tokens, the end
    for row, (start, end) in enumerate([(0, 10), (10, 16), (16, 30), (30, 40)]):
        weights[row, start:end] = 1.0
    attention = Attention(weights, FRAME * np.arange(40))
    spans = token_spans(TOKENIZER, [stamp, 400, stamp + 9, stamp + 9, 500, stamp + 20], attention)
    expected = [(0.2, 0.2), (0.2, 0.32), (0.32, 0.32), (0.32, 0.32), (0.32, 0.6), (0.6, 0.6)]
    assert np.allclose(spans, expected)


def checked(segments):
    """Words joined are the text; times rise, and begin and end with the segment."""
    for segment in segments:
        assert "".join(texts(segment.words)) == segment.text
        assert (segment.start, segment.end) == (segment.words[0].start, segment.words[-1].end)
        assert all(0 < word.probability <= 1 for word in segment.words)
    edges = [edge for segment in segments for word in segment.words for edge in (word.start, word.end)]
    assert edges == sorted(edges)
    return [word for segment in segments for word in segment.words]


@pytest.mark.parametrize("name", ["tiny_en", "base"])
@pytest.mark.parametrize("clip", list(ONSETS))
def test_words_of_a_clip(request, name, clip):
    model = Model(WhisperSpeech(request.getfixturevalue(name)))
    path = EXAMPLES / f"{clip}.flac"
    plain = model.transcribe(path, effort="plain", language="en")
    result = model.transcribe(path, effort="plain", language="en", word_timestamps=True)
    assert result.text == plain.text
    assert not any(segment.words for segment in plain.segments)
    some = checked(list(result.segments))
    assert abs(some[0].start - ONSETS[clip]) < 0.1
    assert all(word.end - word.start < 1.4 for word in some)
    full = checked(
        list(model.transcribe(path, language="en", word_timestamps=True, effort="plain", padding="full").segments)
    )
    if texts(full) == texts(some):
        assert all(abs(a.start - b.start) < 2.5 * FRAME for a, b in zip(full, some, strict=True))
        assert all(abs(a.end - b.end) < 2.5 * FRAME for a, b in zip(full, some, strict=True))


def test_without_timestamps_too(tiny):
    result = tiny.transcribe(EXAMPLES / "ferry.flac", timestamps=False, word_timestamps=True, effort="plain")
    assert abs(checked(list(result.segments))[0].start - ONSETS["ferry"]) < 0.1


def test_times_in_a_long_recording(tiny):
    """All examples, with pauses: the ones whose words' times are known come in the second window."""
    known = {  # a word, and where flite says that it begins in its clip
        "ferry": [("night", 0.435), ("half", 2.22), ("nine", 2.763)],
        "bakery": [("grandfather", 0.62), ("bakery", 1.983)],
        "letter": [("broken", 2.065), ("window", 2.49)],
    }
    clips = sorted(manifest(EXAMPLES), key=lambda row: row["id"] in known)
    parts, true = [], []
    for row, pause in zip(clips, np.random.default_rng(0).uniform(0.5, 1.5, len(clips)), strict=True):
        parts.append(np.zeros(round(16000 * pause), np.float32))
        at = sum(map(len, parts)) / 16000
        true += [(word, at + time) for word, time in known.get(row["id"], [])]
        parts.append(read_audio(row["path"]).samples)
    audio = Audio(np.concatenate(parts), name="all")
    result = tiny.transcribe(audio, effort="plain", word_timestamps=True)
    some = checked(list(result.segments))
    assert result.text == tiny.transcribe(audio, effort="plain").text
    seeks = {segment.seek for segment in result.segments}
    assert len(seeks) > 1
    heard = [(abs(word.start - time)) for word in some for text, time in true if word.word.strip(" .,").lower() == text]
    assert len(heard) >= 5
    assert max(heard) < 0.35
    assert min(time for _, time in true) > sorted(seeks)[1] / 100


@pytest.mark.parametrize(("task", "expected"), [("transcribe", 4), ("translate", 2)])
def test_a_translation_has_spaces_whatever_was_spoken(monkeypatch, task, expected):
    speech = WhisperSpeech(small_checkpoint())
    tokens = tuple(speech.tokenizer.encode(" Aberdeen leaves"))

    def japanese(*given):
        spans = tuple((0.1 * i, 0.1 * i + 0.1) for i in range(len(tokens)))
        return [
            Decoded(tokens, (-0.1,) * len(tokens), (0.1,) * len(tokens), "", "ja", 0.0, -0.1, 0.0, 1.0, spans=spans)
        ]

    monkeypatch.setattr(transcribe, "decode", japanese)
    noise = 0.1 * np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    (segment,) = Model(speech).transcribe(noise, word_timestamps=True, language="ja", task=task).segments
    assert len(segment.words) == expected
    assert "".join(texts(segment.words)) == segment.text


def windows_of(*names):
    return [Window(name, read_audio(EXAMPLES / f"{name}.flac").samples) for name in names]


def spans_under(speech, policy, encoded, result, window):
    text = [token for token in result.tokens if speech.tokenizer.is_text(token)]
    seconds = [len(window.samples) / 16000]
    (attention,) = speech.attention(policy, encoded, [text], ["en"], "transcribe", seconds)
    return token_spans(speech.tokenizer, result.tokens, attention)


def test_adapted_text_is_aligned_by_the_adapted_model(tiny):
    """And the times of the source model for the same text are others."""
    speech, options = tiny.speech, Options(word_timestamps=True, padding="condensed", adapt=QUICK)
    (window,) = windows_of("bakery")
    source = decode_source(speech, [window], options, ["en"])
    outcome = adapt_windows(speech, source, options)
    (result,) = decode_adapted(speech, source, outcome, options)
    view = speech.policy.adapted(outcome.norms)
    assert result.adaptation.refused == ""
    assert result.spans == spans_under(speech, view, view.encode(source.prepared), result, window)
    assert result.spans != spans_under(speech, speech.policy, speech.policy.encode(source.prepared), result, window)


def test_refused_text_keeps_the_times_of_the_source(tiny, monkeypatch):
    monkeypatch.setattr(guard, "check", lambda source, adapted: "for a test")
    options = Options(word_timestamps=True, adapt=QUICK)
    (result,) = decode(tiny.speech, windows_of("bakery"), options, ["en"])
    (plain,) = decode(tiny.speech, windows_of("bakery"), Options(word_timestamps=True), ["en"])
    assert result.adaptation.refused == "for a test"
    assert result.tokens == plain.tokens
    assert result.spans == plain.spans


def test_windows_side_by_side_have_the_times_of_each_alone(tiny):
    options = Options(word_timestamps=True, padding="condensed", adapt=replace(QUICK, gate=1.5))
    some = windows_of("bakery", "ferry")
    together = decode(tiny.speech, some, options, ["en", "en"])
    alone = [decode(tiny.speech, [window], options, ["en"])[0] for window in some]
    assert {bool(result.adaptation.trace.steps) for result in together} == {True, False}  # one was left alone
    for a, b in zip(together, alone, strict=True):
        assert a.tokens == b.tokens
        assert np.allclose(a.spans, b.spans, atol=1.5 * FRAME)


def test_nothing_is_computed_unless_asked_for(tiny, monkeypatch):
    monkeypatch.setattr(WhisperSpeech, "attention", lambda *_: pytest.fail("the attention was computed"))
    (result,) = decode(tiny.speech, windows_of("ferry"), Options(adapt=QUICK), ["en"])
    assert result.spans == ()


def test_a_text_as_long_as_texts_can_be():
    """Every position of the decoder is taken; random weights write until the limit."""
    speech = WhisperSpeech(small_checkpoint())
    samples = np.random.default_rng(0).standard_normal(30 * 16000).astype(np.float32)
    options = Options(
        word_timestamps=True, timestamps=False, temperature=(0.0,), decode="greedy", no_speech_threshold=None
    )
    (result,) = decode(speech, [Window("noise", 0.1 * samples)], options, ["en"])
    assert len(result.spans) == len(result.tokens)
    assert list(result.spans) == sorted(result.spans)
