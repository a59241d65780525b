import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import utterances

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS, Method
from sharpen.method.search import greedy
from sharpen.models.languages import SPELLED
from sharpen.models.timestamps import TimestampRules
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.whisper import WhisperPolicy
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech import decoding
from sharpen.speech.decoding import Window, _limits, decode
from sharpen.speech.options import Options

TOKENIZER = WhisperTokenizer.of_kind(51865)
BEGIN = TOKENIZER.timestamp_begin


def allowed(prefix, favour=None, tokenizer=TOKENIZER):
    """The tokens that the timestamp rules leave after `prefix`, with all tokens equally likely but for `favour`."""
    log_pi = torch.zeros(1, tokenizer.vocab_size)
    log_pi[0, TOKENIZER.no_timestamps] = -torch.inf
    if favour is not None:
        log_pi[0, favour] = 50.0
    out = TimestampRules.of(tokenizer)(log_pi.log_softmax(-1), [prefix])[0]
    assert math.isclose(float(out.exp().sum()), 1.0, abs_tol=1e-4)
    return set((out > -torch.inf).nonzero()[:, 0].tolist())


def test_an_output_starts_with_an_early_timestamp():
    assert allowed([]) == set(range(BEGIN, BEGIN + 51))  # 0.00 to 1.00 s


def test_text_follows_the_opening_timestamp():
    assert max(allowed([BEGIN + 10])) < BEGIN


def test_after_text_a_timestamp_must_not_go_back_or_close_an_empty_segment():
    tokens = allowed([BEGIN + 10, 400], favour=401)
    assert {t for t in tokens if t >= BEGIN} == set(range(BEGIN + 11, BEGIN + 1501))
    assert 401 in tokens
    assert TOKENIZER.eot in tokens


def test_after_a_closing_timestamp_comes_the_next_start_or_the_end():
    tokens = allowed([BEGIN, 400, BEGIN + 50], favour=TOKENIZER.eot)
    assert {t for t in tokens if t >= BEGIN} == set(range(BEGIN + 50, BEGIN + 1501))
    assert min(tokens) == TOKENIZER.eot


def test_timestamps_that_together_outweigh_any_token_win():
    assert min(allowed([BEGIN, 400])) >= BEGIN  # 1501 of 51865 equally likely tokens: no text token alone beats them


def test_merged_timestamps_leave_the_words_to_differ():
    """One timestamp stands for all, with their probability together; the rest of the distribution is untouched."""
    generator = torch.Generator().manual_seed(0)
    log_pi = torch.randn(3, TOKENIZER.vocab_size, generator=generator).log_softmax(-1)
    log_pi[:, 401] = 4.0  # a likely word
    log_pi = log_pi.log_softmax(-1)
    prefixes = [[BEGIN, 400], [BEGIN, 400, BEGIN + 50], [BEGIN]]
    plain = TimestampRules.of(TOKENIZER)(log_pi, prefixes)
    merged = TimestampRules.of(TOKENIZER, merged=True)(log_pi, prefixes)
    stamps = slice(BEGIN, TOKENIZER.timestamp_end)
    assert torch.equal(plain[:, :BEGIN], merged[:, :BEGIN])
    assert ((merged[:, stamps] > -torch.inf).sum(-1)).tolist() == [1, 1, 0]
    for row in (0, 1):
        assert int(merged[row, stamps].argmax()) == int(plain[row, stamps].argmax())
        assert float(merged[row, stamps].max()) == pytest.approx(float(plain[row, stamps].logsumexp(-1)))


def test_words_behind_the_timestamps_are_text_under_the_rules_and_in_the_policy():
    checkpoint = small_checkpoint(added={"Zürich": 51866})  # 51865 is nobody's
    words, zurich = checkpoint.tokenizer, 51866
    assert max(allowed([], tokenizer=words)) == BEGIN + 50
    assert zurich in allowed([BEGIN], tokenizer=words)  # opened: text must follow
    assert zurich in allowed([BEGIN, 400], favour=zurich, tokenizer=words)
    assert zurich not in allowed([BEGIN, 400], tokenizer=words)  # the timestamps outweigh it
    assert zurich not in allowed([BEGIN, zurich, BEGIN + 50], favour=words.eot, tokenizer=words)  # closed
    assert BEGIN not in allowed([BEGIN, zurich], tokenizer=words)
    policy = WhisperPolicy(checkpoint)
    for forbidden in (policy.forbidden[0], policy.timestamped().forbidden[0]):
        assert not forbidden[zurich]
        assert not forbidden[words.eot]
        assert forbidden[51865]
        assert forbidden[words.eot + 1 : BEGIN].all()
    assert policy.forbidden[0, BEGIN:51865].all()
    assert not policy.timestamped().forbidden[0, BEGIN:51865].any()


def test_prompts(english):
    speech = WhisperSpeech(small_checkpoint())
    t = speech.tokenizer
    assert speech.prompt("de", (), "transcribe", True) == [t.sot, t.languages["de"], t.transcribe]
    assert speech.prompt("de", (), "translate", False) == [t.sot, t.languages["de"], t.translate, t.no_timestamps]
    long = speech.prompt("en", range(1000), "transcribe", True)
    assert long[:2] == [t.sot_prev, 777]
    assert long[-3:] == [t.sot, t.languages["en"], t.transcribe]
    assert english.prompt("en", (), "transcribe", False) == [english.tokenizer.sot, english.tokenizer.no_timestamps]
    with pytest.raises(SharpenError, match="English-only model cannot transcribe 'de'"):
        english.prompt("de", (), "transcribe", True)
    with pytest.raises(SharpenError, match="does not know the language 'yue'"):
        speech.prompt("yue", (), "transcribe", True)


@pytest.fixture(scope="module")
def english():
    return WhisperSpeech(small_checkpoint(51864))


@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("contexts", [((), ()), ((400, 500, 600), (7,))])
def test_a_prompt_read_in_two_parts_is_the_whole_prompt(contexts, timestamps):
    """The start token is decoded once, for language and silence; the rest of the prompt continues from there."""
    speech = WhisperSpeech(small_checkpoint())
    policy = speech.policy
    windows = [np.random.default_rng(b).standard_normal(16000).astype(np.float32) for b in range(2)]
    encoded = policy.encode(speech.prepare(windows))
    start = speech.start(encoded, ["de", None], contexts, "transcribe", timestamps)
    whole = policy.begin(start.encoded)
    assert torch.allclose(start.state.hidden, whole.hidden, atol=1e-5)
    view, rules = speech.grammar(policy, timestamps)
    ours, theirs = (greedy(view, start.encoded, [12, 12], rules=rules, state=s) for s in (start.state, whole))
    assert [tree.hypotheses[0].tokens for tree in ours] == [tree.hypotheses[0].tokens for tree in theirs]
    alone = policy.begin(encoded.prompted([[speech.tokenizer.sot]] * 2))
    (_, detected) = speech.language_probabilities(policy.logits(alone.hidden[:, 0]))
    assert start.languages == ["de", max(detected, key=detected.get)]
    upto = policy.begin(encoded.prompted([speech._before(context) for context in contexts]))
    silence = policy.logits(upto.hidden[:, 0]).softmax(-1)[:, speech.tokenizer.no_speech]
    assert start.no_speech == pytest.approx(silence.tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode": "magic"}, "expected one of greedy, beam, mbr"),
        ({"beam_size": 0}, "beam_size is 0"),
        ({"temperature": ()}, "expected one or more"),
        ({"temperature": float("nan")}, "temperature is .* each part a finite number, at least 0"),
        ({"temperature": (0.0, math.inf)}, "temperature is .* each part a finite number, at least 0"),
        ({"adapt": True}, "adapt is True; expected a method's name or a sharpen.Adaptation"),
        ({"adapt": "beam", "beam_size": 0}, "beam_size is 0"),
        ({"adapt": "beam", "beam_size": 3}, "the method beam is as wide as its samples"),
        ({"decode": "greedy", "beam_size": 3}, "decode is 'greedy': set decode='beam'"),
        ({"budget": "4 x"}, "budget is '4 x'; expected a number such as 0.5, or a multiple such as 4x"),
        ({"deadline": 0}, "deadline is 0; expected a finite number, above 0"),
        ({"adapt": "em-magic"}, "em-magic"),
        ({"language": "klingonese"}, "klingonese"),
    ],
)
def test_bad_options_are_refused(settings, message):
    with pytest.raises(SharpenError, match=message):
        Options(**settings)


def test_what_whisper_and_newcomers_write():
    assert Options(initial_prompt=None).initial_prompt == ""
    assert Options(adapt="em-tok-b") == Options(adapt=Adaptation(method="em-tok-b"))


def test_language_names_become_codes():
    assert Options(language="German").language == "de"
    assert Options(language=None).language == "auto"


def test_one_temperature_and_methods_that_only_decode():
    assert Options(temperature=0).temperature == (0.0,)
    assert Options(temperature=[0.2, 0.4]).temperature == (0.2, 0.4)
    beam = Options(adapt=Adaptation(method="beam", samples=16))
    assert (beam.adapt, beam.decode, beam.beam_size) == (None, "beam", 16)
    assert Options(adapt=Adaptation("beam", samples=3)) == Options(decode="beam", beam_size=3)
    assert Options(adapt="beam").beam_size == 16
    assert Options(adapt="source", decode="beam", beam_size=3) == Options(decode="beam", beam_size=3)
    assert Options(adapt=METHODS["em-tok"]).adapt == Adaptation(method=METHODS["em-tok"])
    assert Options().beam_size == 5


def test_scripts_that_are_spelled_have_room():
    """The limit must hold a fast speaker, of 15 characters a second, and loops must still end."""
    said = {
        "ka": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
        "bn": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
        "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
        "en": "All human beings are born free and equal in dignity and rights.",
    }
    speech = WhisperSpeech(small_checkpoint())
    for language, text in said.items():
        window = Window("w", np.zeros(16000 * len(text) // 15, np.float32))
        needed = len(TOKENIZER.encode(text))
        (limit,) = _limits(speech, [window], [language], Options())
        assert needed < limit
        assert (language in SPELLED) == (needed > 0.9 * len(text))
    assert _limits(speech, [window], ["ka"], Options(task="translate")) == [limit]  # into English


def test_fallback_raises_the_temperature_until_the_checks_pass():
    """A random model never reaches an average of -1, so every temperature is tried, and the draws are repeatable."""
    speech = WhisperSpeech(small_checkpoint())
    window = Window("w", np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    options = Options(language="en", temperature=(0.0, 0.7), no_speech_threshold=None)
    (hot,) = decode(speech, [window], options, ["en"])
    assert (hot.temperature, hot.finished, len(hot.tokens)) == (0.7, False, 32)
    assert decode(speech, [window], options, ["en"]) == [hot]
    (cold,) = decode(speech, [window], Options(language="en", logprob_threshold=None), ["en"])
    assert cold.temperature == 0.0
    assert len(cold.logprobs) == len(cold.entropies) == len(cold.tokens)


def test_a_guess_that_is_no_speech_does_not_take_the_place_of_a_text(monkeypatch):
    """As with a refrain: it compresses too well at every temperature, and the last attempt looks like silence."""
    speech = WhisperSpeech(small_checkpoint())
    window = Window("w", np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    judged = decoding.answer

    def silent_when_hot(model, tree, language, temperature, no_speech, options):
        result = judged(model, tree, language, temperature, no_speech, options)
        return replace(result, is_speech=temperature < 1)

    monkeypatch.setattr(decoding, "answer", silent_when_hot)
    (kept,) = decode(speech, [window], Options(temperature=(0.0, 0.7, 1.0)), ["en"])
    assert (kept.temperature, kept.is_speech) == (0.7, True)
    (only,) = decode(speech, [window], Options(temperature=(1.0,)), ["en"])
    assert not only.is_speech


def test_weights_that_are_no_numbers_are_told():
    checkpoint = small_checkpoint()
    checkpoint.weights.decoder.norm.weight[0] = float("nan")
    window = Window("w", np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    for how in ("greedy", "beam"):
        with pytest.raises(SharpenError, match="w: the model's output is NaN"):
            decode(WhisperSpeech(checkpoint), [window], Options(decode=how), ["en"])


def test_language_is_detected(base):
    speech = WhisperSpeech(base)
    encoded = speech.policy.encode(speech.prepare(utterances(2)))
    assert speech.start(encoded, [None, None], [(), (400,)], "transcribe", True).languages == ["en", "en"]
    begun = speech.policy.begin(encoded.prompted([[speech.tokenizer.sot]] * 2))
    for probabilities in speech.language_probabilities(speech.policy.logits(begun.hidden[:, 0])):
        assert sum(probabilities.values()) == pytest.approx(1.0)
        assert max(probabilities, key=probabilities.get) == "en"


def test_a_batch_of_windows_decodes_as_each_alone(base):
    speech = WhisperSpeech(base)
    windows = [Window(f"w{i}", clip) for i, clip in enumerate(utterances(3))]
    together = decode(speech, windows, Options(), [None, "en", None])
    for window, result in zip(windows, together, strict=True):
        (alone,) = decode(speech, [window], Options(), [None])
        assert (alone.tokens, alone.language, alone.temperature) == (result.tokens, result.language, result.temperature)
        assert alone.avg_logprob == pytest.approx(result.avg_logprob, abs=1e-3)


def test_length_limits_follow_the_duration():
    speech = WhisperSpeech(small_checkpoint())
    assert [speech.length_limit(s, "en", "transcribe") for s in (0.5, 4.0, 30.0)] == [32, 60, 444]


def test_a_batch_with_a_silent_window_adapts_inside_inference_mode(monkeypatch):
    speech = WhisperSpeech(small_checkpoint())
    windows = [Window(name, np.random.default_rng(0).standard_normal(8000).astype(np.float32)) for name in "ab"]
    judged = decoding.answer
    results = []

    def first_is_silent(*arguments):
        results.append(judged(*arguments))
        return replace(results[-1], is_speech=len(results) != 1)

    monkeypatch.setattr(decoding, "answer", first_is_silent)
    options = Options(language="en", adapt=Adaptation("greedy-em", steps=1), temperature=(0.0,), timestamps=False)
    with torch.inference_mode():
        silent, adapted = decode(speech, windows, options, ["en", "en"])
    assert (silent.adaptation, adapted.adaptation is None) == (None, False)


def test_a_methods_own_beam_is_for_the_adapted_answer_alone():
    row = Method("greedy", METHODS["greedy-em"].objective, decode="beam")
    options = Options(adapt=Adaptation(row), decode="greedy")
    assert (options.decode, options.final_decode, options.beam_size) == ("greedy", "beam", 5)
    assert Options(adapt="em-tok-b").final_decode == "beam"
    assert Options(adapt="em-tok-b", decode="greedy").final_decode == "greedy"
    assert Options(adapt=Adaptation(row), decode="mbr").final_decode == "mbr"
    assert Options(adapt="beam").final_decode == "beam"
