import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import utterances

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS
from sharpen.models.languages import SPELLED
from sharpen.models.timestamps import TimestampRules
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.whisper import WhisperPolicy
from sharpen.speech import decoding
from sharpen.speech.decoding import Window, _limits, decode, detect_language, prompt
from sharpen.speech.features import log_mel
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


def test_prompts():
    t = TOKENIZER
    assert prompt(t, "de", Options()) == [t.sot, t.languages["de"], t.transcribe]
    translate = Options(task="translate", timestamps=False)
    assert prompt(t, "de", translate) == [t.sot, t.languages["de"], t.translate, t.no_timestamps]
    long = prompt(t, "en", Options(), range(1000))
    assert long[:2] == [t.sot_prev, 777]
    assert long[-3:] == [t.sot, t.languages["en"], t.transcribe]
    english = WhisperTokenizer.of_kind(51864)
    assert prompt(english, "en", Options(timestamps=False)) == [english.sot, english.no_timestamps]
    with pytest.raises(SharpenError, match="English-only model cannot transcribe 'de'"):
        prompt(english, "de", Options())
    with pytest.raises(SharpenError, match="does not know the language 'yue'"):
        prompt(t, "yue", Options())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode": "magic"}, "expected one of greedy, beam"),
        ({"beam_size": 0}, "beam_size is 0"),
        ({"temperature": ()}, "expected one or more"),
        ({"temperature": float("nan")}, "temperature is .* each part a finite number, at least 0"),
        ({"temperature": (0.0, math.inf)}, "temperature is .* each part a finite number, at least 0"),
        ({"adapt": True}, "adapt is True; expected a method's name or a sharpen.Adaptation"),
        ({"adapt": "beam", "beam_size": 0}, "beam_size is 0"),
        ({"adapt": "beam", "beam_size": 3}, "the method beam is as wide as its samples"),
        ({"beam_size": 3}, "decode is 'greedy': set decode='beam'"),
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
    policy = WhisperPolicy(small_checkpoint())
    for language, text in said.items():
        window = Window("w", np.zeros(16000 * len(text) // 15, np.float32))
        needed = len(TOKENIZER.encode(text))
        (limit,) = _limits(policy, [window], [language], Options())
        assert needed < limit
        assert (language in SPELLED) == (needed > 0.9 * len(text))
    assert _limits(policy, [window], ["ka"], Options(task="translate")) == [limit]  # into English


def test_fallback_raises_the_temperature_until_the_checks_pass():
    """A random model never reaches an average of -1, so every temperature is tried, and the draws are repeatable."""
    policy = WhisperPolicy(small_checkpoint())
    window = Window("w", np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    options = Options(language="en", temperature=(0.0, 0.7), no_speech_threshold=None)
    (hot,) = decode(policy, [window], options, ["en"])
    assert (hot.temperature, hot.finished, len(hot.tokens)) == (0.7, False, 32)
    assert decode(policy, [window], options, ["en"]) == [hot]
    (cold,) = decode(policy, [window], Options(language="en", logprob_threshold=None), ["en"])
    assert cold.temperature == 0.0
    assert len(cold.logprobs) == len(cold.entropies) == len(cold.tokens)


def test_a_guess_that_is_no_speech_does_not_take_the_place_of_a_text(monkeypatch):
    """As with a refrain: it compresses too well at every temperature, and the last attempt looks like silence."""
    policy = WhisperPolicy(small_checkpoint())
    window = Window("w", np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    judged = decoding._result

    def silent_when_hot(tokenizer, tree, language, temperature, no_speech, options):
        result = judged(tokenizer, tree, language, temperature, no_speech, options)
        return replace(result, is_speech=temperature < 1)

    monkeypatch.setattr(decoding, "_result", silent_when_hot)
    (kept,) = decode(policy, [window], Options(temperature=(0.0, 0.7, 1.0)), ["en"])
    assert (kept.temperature, kept.is_speech) == (0.7, True)
    (only,) = decode(policy, [window], Options(temperature=(1.0,)), ["en"])
    assert not only.is_speech


def test_weights_that_are_no_numbers_are_told():
    checkpoint = small_checkpoint()
    checkpoint.model.model.decoder.layer_norm.weight[0] = float("nan")
    window = Window("w", np.random.default_rng(0).standard_normal(16000).astype(np.float32))
    for how in ("greedy", "beam"):
        with pytest.raises(SharpenError, match="w: the model answers with what is no number"):
            decode(WhisperPolicy(checkpoint), [window], Options(decode=how), ["en"])


def test_language_is_detected(base):
    policy = WhisperPolicy(base)
    encoded = policy.encode(policy.prepare(log_mel(utterances(2), base.mel), [[base.tokenizer.sot]] * 2))
    for probabilities in detect_language(policy, encoded):
        assert sum(probabilities.values()) == pytest.approx(1.0)
        assert max(probabilities, key=probabilities.get) == "en"


def test_a_batch_of_windows_decodes_as_each_alone(base):
    policy = WhisperPolicy(base)
    windows = [Window(f"w{i}", clip) for i, clip in enumerate(utterances(3))]
    together = decode(policy, windows, Options(), [None, "en", None])
    for window, result in zip(windows, together, strict=True):
        (alone,) = decode(policy, [window], Options(), [None])
        assert (alone.tokens, alone.language, alone.temperature) == (result.tokens, result.language, result.temperature)
        assert alone.avg_logprob == pytest.approx(result.avg_logprob, abs=1e-3)
