"""Efforts, and what becomes of a window: left alone, adapted, out of time."""

import numpy as np
import pytest
from models.small import small_checkpoint
from speechlike import utterances

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.search import beam
from sharpen.method.trace import Step, Trace
from sharpen.method.tree import HypothesisTree
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech.allowance import Allowance, Pool
from sharpen.speech.answers import adapted_answer, answer, text_tree
from sharpen.speech.decoding import Window, decode, decode_source
from sharpen.speech.efforts import EFFORTS, effort_options
from sharpen.speech.options import Options
from sharpen.speech.transcribe import Model

QUICK = {"temperature": (0.0,), "no_speech_threshold": None, "timestamps": False}


def noise(seed, seconds=1.0):
    return np.random.default_rng(seed).standard_normal(round(16000 * seconds)).astype(np.float32)


@pytest.fixture(scope="module")
def speech():
    return WhisperSpeech(small_checkpoint())


def test_an_effort_is_a_bundle_that_settings_override():
    assert effort_options("plain").adapt is None
    assert effort_options("normal").adapt == EFFORTS["normal"]["adapt"]
    assert effort_options("high", padding="full", language="de").padding == "full"
    assert effort_options(adapt=None, decode="beam") == effort_options("plain")
    paper = effort_options("paper")
    assert (paper.adapt, paper.decode, paper.padding) == (Adaptation(guard=False), "greedy", "full")
    with pytest.raises(SharpenError, match="effort is 'most'; expected one of plain, normal, high, paper"):
        effort_options("most")


def test_transcribe_takes_an_effort_or_options(speech):
    model = Model(speech)
    assert model.transcribe(noise(0)).info.options == effort_options()
    assert model.transcribe(noise(0), effort="plain", language="en").info.options == effort_options(
        "plain", language="en"
    )
    assert model.transcribe(noise(0), Options(decode="greedy")).info.options == Options(decode="greedy")
    with pytest.raises(SharpenError, match=r"either options or keywords \(effort, language\)"):
        model.transcribe(noise(0), Options(), effort="high", language="en")


@pytest.mark.parametrize(("method", "samples"), [("em-tok-b", 5), ("em-tok-b", 16), ("em-tok", 4)])
def test_a_confident_window_is_searched_once_and_keeps_its_answer(speech, method, samples, monkeypatch):
    """Whatever an episode would search: the gate judges by the beams that there are."""
    options = Options(adapt=Adaptation(method=method, samples=samples, steps=2, gate=1e6), **QUICK)
    calls = []
    monkeypatch.setattr("sharpen.speech.decoding.beam", lambda *a, **k: calls.append(1) or beam(*a, **k))
    for name in ("beam", "sample"):
        monkeypatch.setattr(f"sharpen.method.search.{name}", lambda *a, **k: pytest.fail("searched again"))
    (result,) = decode(speech, [Window("a", noise(0))], options, ["en"])
    (plain,) = decode(speech, [Window("a", noise(0))], Options(**QUICK), ["en"])
    assert len(calls) == 2
    assert (result.text, result.tokens) == (plain.text, plain.tokens)
    assert result.adaptation.trace.steps == []
    assert result.adaptation.trace.stopped.startswith("confident: ")
    assert result.adaptation.source == result.adaptation.result


def test_confident_and_doubtful_windows_of_a_batch_get_what_they_get_alone(speech):
    windows = [Window(str(b), noise(b, 1.0 + b)) for b in range(3)]
    options = Options(adapt=Adaptation(samples=5, steps=2), **QUICK)
    doubts = [d.adaptation.trace.steps[0] for d in decode(speech, windows, options, ["en"] * 3)]
    per_token = sorted(step.H_tok * step.hypotheses / step.tokens for step in doubts)
    gated = Options(adapt=Adaptation(samples=5, steps=2, gate=sum(per_token[:2]) / 2), **QUICK)
    together = decode(speech, windows, gated, ["en"] * 3)
    assert sorted(len(d.adaptation.trace.steps) for d in together) == [0, 2, 2]
    for window, result in zip(windows, together, strict=True):
        (alone,) = decode(speech, [window], gated, ["en"])
        assert (alone.text, alone.adaptation.trace.stopped) == (result.text, result.adaptation.trace.stopped)


def test_the_sources_beams_are_those_of_the_first_step(speech, monkeypatch):
    """So nothing is searched twice; with another width it is searched anew."""
    window, searches = Window("a", noise(4)), []
    monkeypatch.setattr("sharpen.method.search.beam", lambda *a, **k: searches.append(1) or beam(*a, **k))
    for samples, times in ((5, 0), (6, 1)):
        searches.clear()
        options = Options(adapt=Adaptation(samples=samples, steps=1), **QUICK)
        (result,) = decode(speech, [window], options, ["en"])
        assert len(searches) == times
        assert result.adaptation.trace.steps[0].hypotheses == samples


def test_a_gate_does_not_change_what_a_doubtful_window_gets(speech):
    """The beams that it judged by are fewer than the hypotheses of a step, which are searched as without it."""
    outcomes = []
    for gate in (0.0, 1e-6):
        options = Options(adapt=Adaptation(samples=8, steps=2, gate=gate), **QUICK)
        (result,) = decode(speech, [Window("a", noise(4))], options, ["en"])
        steps = [(step.hypotheses, step.H_tok, step.gradient_norm) for step in result.adaptation.trace.steps]
        outcomes.append((result.text, steps))
    assert outcomes[0] == outcomes[1]
    assert [count for count, *_ in outcomes[1][1]] == [8, 8]


def test_hypotheses_without_their_timestamps(base):
    speech = WhisperSpeech(base)
    source = decode_source(speech, [Window("a", utterances(1)[0])], Options(temperature=(0.0,)), ["en"])
    (tree,) = source.trees
    stripped = text_tree(speech, tree, 3)
    assert len(stripped.hypotheses) == 3
    best = tuple(t for t in tree.hypotheses[0].content if speech.tokenizer.time(t) is None)
    assert stripped.hypotheses[0].content == best
    pairs = zip(tree.hypotheses[0].tokens, tree.hypotheses[0].nodes, strict=True)
    at = [node for token, node in pairs if speech.tokenizer.time(token) is None]
    assert [stripped.entropies[n] for n in stripped.hypotheses[0].nodes] == [tree.entropies[n] for n in at]
    seen = zip(tree.hypotheses[0].tokens, tree.hypotheses[0].logprobs, strict=True)
    assert stripped.hypotheses[0].logprobs == tuple(v for token, v in seen if speech.tokenizer.time(token) is None)
    assert len({y.tokens for y in stripped.hypotheses}) == 3


def test_out_of_time_the_source_answers(speech):
    options = Options(adapt=Adaptation(samples=5, steps=50), deadline=1e-3, **QUICK)
    pool = Pool([Allowance.of(options, 1.0)])
    (result,) = decode(speech, [Window("a", noise(0))], options, ["en"], pool=pool)
    assert result.adaptation.trace.steps == []
    assert result.adaptation.trace.stopped == "deadline: no time for another step"
    assert pool.left < 0


def found(speech, texts, cut=()):
    """A search that found these texts, with their log-probabilities; the length limit ended those in `cut`."""
    tree = HypothesisTree()
    for text, logprob in texts.items():
        node = 0
        for token in speech.tokenizer.encode(f" {text}"):
            node = tree.child(node, token, 0.0)
        tree.hypotheses.append(tree.close(node, speech.policy.eos, logprob, finished=text not in cut))
    tree.entropies = [0.0] * len(tree)
    return tree


def test_least_risk_weighs_the_beams_of_both_models(speech):
    """The adapted model is nearly sure of one text; the source's beams bring the words back that they agree on."""
    source = found(speech, {"the red boat came home": -1.0, "the red coat came home": -1.0})
    adapted = found(speech, {"a red boat came home": -0.5, "the red boat came home": -0.7})
    before = answer(speech, source, "en", 0.0, 0.0, Options(**QUICK))

    def text(**how):
        options = Options(adapt=Adaptation(), **how, **QUICK)
        return adapted_answer(speech, before, source, adapted, Trace([]), options).text

    assert text(decode="beam") == "a red boat came home"
    assert text(decode="mbr") == "the red boat came home"


def test_the_length_penalty_chooses_among_beams(speech):
    """One is more probable, the other has more tokens, each of them more probable."""
    short, long = "boat", "the red boat came home again"
    tree = found(speech, {short: -2.0, long: -3.0})

    def text(**how):
        return answer(speech, tree, "en", 0.0, 0.0, Options(**how, **QUICK)).text

    assert text() == text(length_penalty=0.5) == long
    assert text(length_penalty=0) == short


def seen(tree):
    """A step with these hypotheses."""
    return Step(0.0, 0.0, 0.0, 1, 1, 1, 1, 1, 0, 1.0, 0.0, {}, {}, tree)


def test_least_risk_weighs_the_beams_found_on_the_way(speech):
    """Those of the searches between the first step and the last; they do not answer, as they have no timestamps."""
    source = found(speech, {"the red boat came home": -1.0, "the red coat came home": -1.0})
    adapted = found(speech, {"a red boat came home": -0.5, "the red boat came home": -0.7})
    before = answer(speech, source, "en", 0.0, 0.0, Options(**QUICK))
    a, other = found(speech, {"a red boat came home": -0.1}), found(speech, {"a blue boat came home": -0.1})

    def text(*trees, **how):
        options = Options(adapt=Adaptation(**how), decode="mbr", **QUICK)
        return adapted_answer(speech, before, source, adapted, Trace([seen(tree) for tree in trees]), options).text

    assert text() == text(a) == "the red boat came home"  # the first step has the source's beams
    assert text(source, a, a) == "a red boat came home"
    assert text(source, a, source, search_every=2) == "the red boat came home"  # scored, not searched, in between
    assert text(source, source, a, a, a, search_every=2) == "a red boat came home"
    assert text(source, a, a, method="em-tok") == "the red boat came home"  # samples are no beams
    assert text(source, other, other, other) == "a red boat came home"


def test_a_text_that_the_length_limit_cut_has_no_vote(speech):
    """A loop of the source must not win over whole texts, however probable it is."""
    loop = "the red boat boat boat boat boat boat boat boat"
    source = found(speech, {loop: -0.1}, cut=[loop])
    adapted = found(speech, {"the red boat came home": -9.0, "a red boat came home": -9.5})
    options = Options(adapt=Adaptation(guard=False), decode="mbr", **QUICK)
    before = answer(speech, source, "en", 0.0, 0.0, options)
    assert before.text == loop  # where there is nothing else
    assert adapted_answer(speech, before, source, adapted, Trace([]), options).text == "the red boat came home"


def test_where_nothing_adapts_least_risk_does_not_choose(speech):
    """So a confident window has the text of plain decoding."""
    windows = [Window(str(b), noise(b)) for b in range(4)]
    confident = Options(adapt=Adaptation(samples=5, gate=1e6), decode="mbr", **QUICK)
    plain = decode(speech, windows, Options(**QUICK), ["en"] * 4)
    assert [r.text for r in decode(speech, windows, confident, ["en"] * 4)] == [r.text for r in plain]
    assert [r.text for r in decode(speech, windows, Options(decode="mbr", **QUICK), ["en"] * 4)] != [
        r.text for r in plain
    ]
