import json
import math
from dataclasses import replace

import numpy as np
import pytest
from speechlike import EXAMPLES

from sharpen.errors import SharpenError
from sharpen.method.network import Alternative
from sharpen.method.trace import Trace
from sharpen.method.tree import Hypothesis
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import confidence
from sharpen.speech.answers import Adapted, Decoded
from sharpen.speech.audio import read_audio
from sharpen.speech.confidence import expected_wer, features, judged, readings, trust, which_map, word_confidence
from sharpen.speech.evidence import evidence
from sharpen.speech.files import transcribe_files
from sharpen.speech.longform import segments, settle
from sharpen.speech.noise import corruption
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model
from sharpen.speech.words import Word, spellings

TOKENIZER = WhisperTokenizer.of_kind(51865)
HALF = 2 * math.log(2)  # softened by consensus.SOFT, a hypothesis with this lower log-probability has half the weight


def stamped(*parts):
    """Tokens of (start, text, end) with timestamps."""
    found = []
    for start, text, end in parts:
        found += [50364 + round(start / 0.02), *TOKENIZER.encode(text), 50364 + round(end / 0.02)]
    return tuple(found)


def beam(tokens, logprob):
    return Hypothesis(tuple(tokens), (), (logprob,), False, logprob)


def answer(text, beams=(), entropies=None, temperature=0.0, tokens=None):
    tokens = tuple(TOKENIZER.encode(text)) if tokens is None else tokens
    n = len(tokens)
    found = tuple(beam(TOKENIZER.encode(y) if isinstance(y, str) else y, p) for y, p in beams)
    entropies = (0.5,) * n if entropies is None else tuple(entropies)
    return Decoded(tokens, (-0.1,) * n, entropies, text, "en", temperature, -0.1, 0.0, 1.0, beams=found)


def adapted(source, result, refused=""):
    return replace(source if refused else result, adaptation=Adapted(source, result, Trace(), refused))


def known(decoded, until=10.0):
    return evidence(TOKENIZER, segments(TOKENIZER, decoded, 0.0, until), decoded, until, spaced=True)


def words(decoded, until=10.0, **options):
    made = segments(TOKENIZER, decoded, 0.0, until)
    return judged(TOKENIZER, made, decoded, until, Options(**options), spaced=True)


def test_support_is_the_posterior_of_the_beams_that_have_the_word():
    beams = [(" the night ferry", 0.0), (" the knight ferry", -HALF)]
    (some,) = known(answer(" the night ferry", beams)).words
    assert [e.word for e in some] == [" the", " night", " ferry"]
    assert [e.support for e in some] == pytest.approx([1, 2 / 3, 1])
    assert all(math.isnan(e.adapted) for e in some)


def test_samples_count_equally():
    (some,) = known(answer(" night", [(" night", 0.0), (" knight", -HALF), (" knight", -9.0)], temperature=0.4)).words
    assert some[0].support == pytest.approx(1 / 3)


def test_one_hypothesis_supports_nothing():
    (some,) = known(answer(" the night ferry", [(" the night ferry", 0.0)])).words
    assert all(math.isnan(e.support) for e in some)
    assert [set(numbers) for numbers in features(known(answer(" a b", [(" a b", 0.0)])))] == [
        {"doubt", "neighbours", "window"}
    ] * 2


def test_an_adapted_word_has_the_doubt_of_the_source_at_its_place():
    source = answer(" the night ferry", [(" the night ferry", 0.0), (" the light ferry", -HALF)], [0.1, 2.0, 0.3])
    sure = answer(" the knight ferry", [(" the knight ferry", 0.0), (" a knight ferry", -HALF)], [0.01, 0.01, 0.01])
    window = known(adapted(source, sure))
    (some,) = window.words
    assert [e.doubt for e in some] == [0.1, 2.0, 0.3]
    assert [e.support for e in some] == pytest.approx([1, 0, 1])
    assert [e.adapted for e in some] == pytest.approx([2 / 3, 1, 1])
    assert window.stable == pytest.approx(2 / 3)
    assert window.network.support == pytest.approx((5 / 6, 1 / 2, 1.0))  # each model counts half


def test_a_word_that_the_source_lacks_has_the_greatest_doubt_beside_it():
    source = answer(" the ferry", [(" the ferry", 0.0), (" a ferry", -1.0)], [0.1, 0.7])
    (some,) = known(adapted(source, answer(" the night ferry", [(" the night ferry", 0.0)]))).words
    assert [e.doubt for e in some] == [0.1, 0.7, 0.7]


def test_a_refused_answer_is_judged_by_the_source_alone():
    source = answer(" the night ferry", [(" the night ferry", 0.0), (" the light ferry", -HALF)])
    window = known(adapted(source, answer(" x x x x", [(" x x x x", 0.0), (" y", -1.0)]), refused="loops"))
    assert math.isnan(window.stable)
    assert [e.support for e in window.words[0]] == pytest.approx([1, 2 / 3, 1])


def test_each_map_is_the_logistic_function_of_its_numbers(monkeypatch):
    maps = {
        "greedy": {"doubt": -1.0, "neighbours": 0.0, "window": 0.5, "constant": 0.25},
        "beam": {"support": 2.0, "constant": -1.0},
        "adapted": {"support": 1.0, "adapted": 3.0, "constant": 0.0},
    }
    monkeypatch.setattr(confidence, "fitted", lambda: maps)
    numbers = {"doubt": 0.5, "neighbours": 9.0, "window": 1.0}
    assert word_confidence(numbers) == pytest.approx(1 / (1 + math.exp(-0.25)))
    assert word_confidence(numbers | {"support": 1.0}) == pytest.approx(1 / (1 + math.exp(-1)))
    assert word_confidence(numbers | {"support": 0.5, "adapted": 0.5}) == pytest.approx(1 / (1 + math.exp(-2)))
    assert which_map(numbers | {"support": 0.5}) == "beam"


def test_features_are_logarithms_of_entropies():
    numbers = features(known(answer(" the night ferry", entropies=[0.05, 0.95, 0.45])))
    log = math.log
    assert [n["doubt"] for n in numbers] == pytest.approx([log(0.1), log(1.0), log(0.5)])
    assert [n["neighbours"] for n in numbers] == pytest.approx([0.0, (log(0.1) + log(0.5)) / 2, 0.0])
    assert [n["window"] for n in numbers] == pytest.approx([log(0.05 + 1.45 / 3)] * 3)


def test_doubt_lowers_and_agreement_raises_the_shipped_maps():
    for more in ({}, {"support": 0.6}, {"support": 0.6, "adapted": 0.6}):
        numbers = {"doubt": -1.0, "neighbours": -1.0, "window": -1.0, **more}
        for name in numbers:
            higher = word_confidence(numbers | {name: numbers[name] + 0.3})
            assert (higher > word_confidence(numbers)) == (name in more), (name, more)


def test_words_have_alternatives_and_what_is_missing():
    beams = [(" the night ferry", 0.0), (" the knight ferry boat", -HALF), (" the ferry", -2 * HALF)]
    (segment,) = words(answer(" the night ferry", beams))
    assert "".join(word.word for word in segment.words) == segment.text
    the, night, ferry = segment.words
    assert the.alternatives == ferry.alternatives == ()
    assert [(a.word, pytest.approx(a.probability)) for a in night.alternatives] == [("knight", 2 / 7), ("", 1 / 7)]
    assert ferry.after == (Alternative("boat", pytest.approx(2 / 7)),)
    assert math.isnan(night.start)
    assert 0 < night.confidence < ferry.confidence < 1
    assert segment.confidence == pytest.approx(sum(w.confidence for w in segment.words) / 3)


def test_the_expected_error_rate_counts_wrong_and_missing_words(monkeypatch):
    monkeypatch.setattr(confidence, "fitted", lambda: {"missing": {"wrong": 0.1, "between": 0.5}})
    some = [
        Word("a", 0, 0, 1.0, confidence=0.8, before=(Alternative("x", 0.4),)),
        Word("b", 0, 0, 1.0, confidence=0.6, after=(Alternative("y", 0.2),)),
    ]
    assert expected_wer(some) == pytest.approx((0.6 * 1.1 + 0.5 * 0.6) / 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"no_speech_prob": 0.7}, "silence: the probability of no speech is 0.70"),
        ({"text": " no no no no no no"}, "loop: 'no' repeats itself"),
        ({"entropies": 4.0}, "doubt: "),
    ],
)
def test_why_a_segment_is_unreliable(change, reason):
    decoded = answer(change.get("text", " the night ferry"), entropies=None)
    decoded = replace(decoded, no_speech_prob=change.get("no_speech_prob", 0.0))
    decoded = replace(decoded, entropies=(change.get("entropies", 0.01),) * len(decoded.tokens))
    (segment,) = words(decoded)
    assert segment.unreliable.startswith(reason)
    assert bool(segment.unreliable) == bool(reason)
    assert trust([segment]).unreliable == segment.unreliable


def test_a_phrase_that_every_segment_repeats_is_a_loop():
    parts = [(i, " Thank you.", i + 1.0) for i in range(5)]
    tokens = stamped((5.0, " The ferry leaves.", 7.0), *((a + 7.0, text, b + 7.0) for a, text, b in parts))
    decoded = answer(TOKENIZER.decode(tokens), entropies=[0.01] * len(tokens), tokens=tokens)
    assert [s.unreliable for s in words(decoded, 20.0)] == ["", *["loop: 'thank you.' repeats itself"] * 5]
    squeezed = replace(decoded, text="", compression_ratio=2.5)
    assert {s.unreliable for s in words(squeezed, 20.0)} == {"loop: compression ratio 2.5 is over 2.4"}


def test_a_guard_that_fired_and_a_text_that_changed_altogether_are_unreliable():
    source = answer(" the night ferry", [(" the night ferry", 0.0)], [0.01] * 3)
    other = answer(" a light wherry", [(" a light wherry", 0.0)], [0.01] * len(TOKENIZER.encode(" a light wherry")))
    (segment,) = words(adapted(source, other))
    assert segment.unreliable == "unstable: the source model has 0% of the adapted model's words"
    (segment,) = words(adapted(source, other, refused="far longer"))
    assert segment.unreliable == "guard: far longer"


def test_a_recording_is_as_unreliable_as_most_of_its_words():
    good, bad = answer(" the night ferry leaves", entropies=[0.01] * 4), answer(" no no no no no", entropies=[0.01] * 5)
    one, two = words(good)[0], words(bad)[0]
    assert trust([one, one, two]).unreliable == ""
    assert trust([one, two, two]).unreliable == two.unreliable != ""
    n = (4 * one.expected_wer + 5 * two.expected_wer) / 9
    assert trust([one, two]).expected_wer == pytest.approx(n)
    assert math.isnan(trust([]).confidence)


def test_the_best_texts_of_a_window_begin_with_the_answer():
    beams = [(" The night ferry", 0.0), (" the night ferry.", 0.0), (" a knight ferry", -HALF), (" ferry", -2 * HALF)]
    decoded = answer(" a knight ferry", beams)
    found = readings(TOKENIZER, decoded, segments(TOKENIZER, decoded, 0.0, 3.0), 30.0, 3.0, 2)
    assert (found.start, found.end) == (30.0, 33.0)
    assert [(r.text, pytest.approx(r.probability)) for r in found.readings] == [
        ("a knight ferry", 2 / 11),
        ("The night ferry", 8 / 11),
    ]


def test_only_what_the_window_is_used_for_counts():
    """The rest is decoded again in the next window."""
    first, rest = (0.0, " the night ferry", 4.0), (4.0, " leaves at nine", 8.0)
    cut = stamped(first, rest)[:-1]  # the last segment is open
    other = stamped((0.0, " the knight ferry", 4.0), (4.0, " believes", 8.0))
    decoded = answer("", [(cut, 0.0), (other, -HALF)], tokens=cut)
    closed, used = settle(TOKENIZER, decoded, 10.0, last=False)
    assert used == 4.0
    (segment,) = words(closed, used)
    assert [w.word for w in segment.words] == [" the", " night", " ferry"]
    assert segment.words[-1].after == ()
    found = readings(TOKENIZER, closed, [segment], 0.0, used, 5)
    assert [r.text for r in found.readings] == ["the night ferry", "the knight ferry"]


def test_a_language_without_spaces_has_tokens_for_words():
    decoded = replace(answer("今日は良い天気", [("今日は良い天気", 0.0), ("今日は酔い天気", -HALF)]), language="ja")
    made = segments(TOKENIZER, decoded, 0.0, 3.0)
    (segment,) = judged(TOKENIZER, made, decoded, 3.0, Options(), spaced=False)
    assert [w.word for w in segment.words] == ["今日は", "良", "い", "天", "気"]  # the first is a single token
    assert [[a.word for a in w.alternatives] for w in segment.words] == [[], ["酔"], [], [], []]


def test_spellings_are_the_words_with_their_tokens():
    tokens = TOKENIZER.encode(" He said Aberdeen?!")
    found = spellings(TOKENIZER, tokens, spaced=True)
    assert [s.word for s in found] == [" He", " said", " Aberdeen?!"]
    assert [i for s in found for i in s.tokens] == list(range(len(tokens)))
    assert TOKENIZER.decode([tokens[i] for i in found[2].letters]) == " Aberdeen"


@pytest.mark.parametrize(("decode", "size"), [("greedy", 5), ("beam", 2)])
def test_more_texts_than_the_search_finds_are_refused(decode, size):
    with pytest.raises(SharpenError, match="n_best is 3, but the search finds"):
        Options(decode=decode, beam_size=size, n_best=3)


@pytest.fixture(scope="module")
def tiny(tiny_en):
    return Model(WhisperSpeech(tiny_en))


def test_noise_lowers_the_confidence_and_the_best_texts_begin_with_the_answer(tiny):
    clean = read_audio(EXAMPLES / "ferry.flac").samples
    noisy = corruption("GS", 0.0)(clean, "ferry")
    sure = tiny.transcribe(clean, effort="plain", confidence=True)
    (segment,) = sure.segments
    assert [w.word.strip(" .").lower() for w in segment.words][:3] == ["the", "night", "ferry"]
    doubtful = {w.word.strip(): w.confidence for w in segment.words}
    assert doubtful["half"] < 0.3 < 0.7 < doubtful["night"]
    found = tiny.transcribe(noisy, effort="normal", confidence=True, n_best=3)
    lines = list(found.segments)
    assert sum(len(how.trace.steps) for _, how in found.adapted) == 1
    assert found.trust.confidence < sure.trust.confidence - 0.1
    assert found.trust.unreliable
    assert any(w.alternatives for s in lines for w in s.words)
    (window,) = found.windows
    assert len(window.readings) == 3
    assert window.readings[0].text == found.text
    assert window.readings[1].probability >= window.readings[2].probability


def test_json_has_words_without_times(tiny, tmp_path):
    options = Options(confidence=True, n_best=2, padding="condensed")
    list(transcribe_files(tiny, [str(EXAMPLES / "market.mp3")], options, str(tmp_path), ["json"]))
    document = json.loads((tmp_path / "market.json").read_text(encoding="utf-8"))
    (segment,) = document["segments"]
    assert "".join(word["word"] for word in segment["words"]) == segment["text"]
    assert all(set(w) - {"before", "after"} == {"word", "probability", "confidence", "alternatives"}
               for w in segment["words"])  # fmt: skip
    assert document["windows"][0]["alternatives"][0]["text"] == document["text"]
    assert len(document["windows"][0]["alternatives"]) == 2
    assert 0 < document["expected_wer"] == pytest.approx(segment["expected_wer"], abs=1e-4)
    assert np.mean([w["confidence"] for w in segment["words"]]) == pytest.approx(document["confidence"], abs=1e-3)


def test_timed_words_have_confidence_too(tiny):
    (segment,) = tiny.transcribe(EXAMPLES / "ferry.flac", effort="plain", word_timestamps=True).segments
    assert all(w.end > w.start and 0 < w.confidence < 1 for w in segment.words)
    (bare,) = tiny.transcribe(EXAMPLES / "ferry.flac", effort="plain").segments
    assert bare.words == ()
    assert bare.confidence == pytest.approx(segment.confidence)
