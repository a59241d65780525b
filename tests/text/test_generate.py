import math
from inspect import signature

import pytest
import torch
from text.small_text import END, small_text

import sharpen
from sharpen.cli import generate
from sharpen.cli.parser import Parser
from sharpen.errors import SharpenError
from sharpen.explain.page import as_html, as_text
from sharpen.method.adaptation import Adaptation
from sharpen.text.fold import folded
from sharpen.text.generate import Continuation
from sharpen.text.options import Generation

PROMPTS = ["abc", "a much longer prompt", "?"]
ADAPT = Adaptation(method="em-tok", steps=2, samples=4, lr=0.02, guard=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_text(tmp_path_factory.mktemp("model"))


def test_a_plain_answer(model):
    answer = model.generate("abc", max_tokens=9)
    assert (answer.adapted, answer.refused, answer.trace.steps) == (None, "", [])
    assert answer.text == answer.source.text == model.model.tokenizer.decode(answer.source.tokens)
    assert len(answer.source.tokens) == len(answer.source.logprobs) == len(answer.source.entropies) <= 9
    assert END not in answer.source.tokens
    assert all(value <= 0 for value in answer.source.logprobs)
    assert 0 < answer.source.entropy < math.log(258)
    assert math.isnan(Continuation("", (), (), (), True).entropy)


def test_adapting_changes_the_model_for_this_prompt_alone(model):
    before = model.generate(PROMPTS, max_tokens=9)
    adapted = model.generate("abc", adapt=ADAPT, max_tokens=9)
    assert [one.text for one in model.generate(PROMPTS, max_tokens=9)] == [one.text for one in before]
    assert adapted.source == before[0].source
    assert adapted.adapted != adapted.source
    assert adapted.text == adapted.adapted.text
    assert len(adapted.trace.steps) == 2
    assert adapted.seconds > 0


@pytest.mark.parametrize("method", ["greedy-em", "em-seq", "em-tok", "em-tok-b"])
def test_a_batch_answers_as_each_prompt_alone(model, method):
    adapt = Adaptation(method=method, steps=2, samples=3, lr=0.02)
    together = model.generate(PROMPTS, adapt=adapt, max_tokens=8)
    for prompt, one in zip(PROMPTS, together, strict=True):
        alone = model.generate(prompt, adapt=adapt, max_tokens=8)
        assert (alone.text, alone.adapted.tokens) == (one.text, one.adapted.tokens)
        H = torch.tensor([[s.H_tok for s in x.trace.steps] for x in (alone, one)])
        torch.testing.assert_close(H[0], H[1], rtol=1e-4, atol=1e-4)


def test_entropy_falls(model):
    adapt = Adaptation(method="em-tok-b", steps=8, samples=6, lr=0.01)
    trace = model.generate("abc", adapt=adapt, max_tokens=8).trace
    assert trace.steps[-1].H_tok < 0.8 * trace.steps[0].H_tok


def test_the_guard_and_nan(model, monkeypatch):
    monkeypatch.setattr("sharpen.method.guard.check", lambda source, adapted: "broken")
    answer = model.generate("abc", adapt=Adaptation(method="em-tok", steps=1, samples=2), max_tokens=6)
    assert (answer.refused, answer.text) == ("broken", answer.source.text)
    assert model.generate("abc", adapt=ADAPT, max_tokens=6).refused == ""  # its guard is off
    huge = model.generate("abc", adapt=Adaptation(method="em-tok", steps=2, samples=2, lr=1e30), max_tokens=6)
    assert huge.text == huge.source.text


def test_searches(model):
    beam = model.generate("abc", decode="beam", beam_size=4, max_tokens=8)
    wide = model.generate("abc", adapt=Adaptation(method="beam", samples=4), max_tokens=8)
    assert (beam.text, beam.adapted) == (wide.text, None)
    one = model.generate("abc", decode="sample", max_tokens=8)
    assert one.text == model.generate("abc", decode="sample", max_tokens=8).text
    assert one.text != model.generate("abc", decode="sample", max_tokens=8, seed=1).text
    keys = []
    model.generate("abc", decode="vote", votes=12, max_tokens=3, key=lambda text: keys.append(text) or text[:1])
    assert len(keys) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.1}, "temperature is 0.1, but decode is 'greedy': set decode='sample' or 'vote'"),
        ({"votes": 3}, "votes is 3, but decode is 'greedy': set decode='vote'"),
        ({"beam_size": 9}, "beam_size is 9, but decode is 'greedy': set decode='beam'"),
        ({"votes": 3, "decode": "sample"}, "votes is 3, but decode is 'sample'"),
        ({"temperature": 2.0, "adapt": Adaptation(method="beam")}, "temperature is 2.0, but decode is 'beam'"),
        ({"beam_size": 9, "adapt": Adaptation(method="beam")}, "the method beam is as wide as its samples"),
    ],
)
def test_options_that_the_search_would_not_use_are_refused(model, options, message):
    with pytest.raises(SharpenError, match=message):
        model.generate("abc", **options)


def test_the_default_is_that_of_the_command_line():
    parser = Parser()
    generate.arguments(parser)
    default = signature(sharpen.load_text).parameters["name"].default
    assert default == parser.parse_args([]).model == "smollm2-135m"


def test_a_vote_merges_what_differs_in_case_spaces_and_punctuation_at_the_ends(model, monkeypatch):
    calls, said = [], ["Rome", "Paris", "paris.", " PARIS ", "Rome", "the answer"]
    monkeypatch.setattr(
        type(model.model.tokenizer), "decode", lambda self, ids: calls.append(tuple(ids)) or said[len(calls) - 1]
    )
    model.generate("abc", decode="vote", votes=5, max_tokens=3)
    assert calls[5] == calls[1] != calls[0]
    assert folded("Paris.") == folded(" PARIS ") == "paris"
    assert (folded("-5"), folded("5 %"), folded("..."), folded("a.\nB")) == ("-5", "5 %", "...", "a. b")


def test_a_vote_takes_the_most_frequent(model):
    seen = []
    answer = model.generate(
        "abc", decode="vote", votes=40, max_tokens=2, key=lambda text: seen.append(text) or text[:1]
    )
    first = [text[:1] for text in seen]
    assert first.count(answer.text[:1]) == max(map(first.count, first))


def test_ranking(model):
    choices = ["aa", "b", "zz9"]
    ranking = model.rank("abc", choices, "x", Generation(max_tokens=5))
    assert ranking.source == ranking.adapted
    policy, tok = model.model.policy(False), model.model.tokenizer
    for choice, value in zip(choices, ranking.source, strict=True):
        ids, total = model.model.prepare(["abc"], False).prompts[0], 0.0
        tokens = [*tok.encode(choice), END]
        for t in range(len(tokens)):  # token by token, without a tree
            with torch.no_grad():
                read = policy.encode(policy.prepare([[*ids, *tokens[:t]]]))
                total += float(policy.project(read.each[0].root[0]).log_softmax(-1)[0, tokens[t]])
        assert value == pytest.approx(total / len(tokens), abs=1e-4)
    adapted = model.rank("abc", choices, "x", Generation(adapt=ADAPT, max_tokens=5))
    assert adapted.source == ranking.source != adapted.adapted
    with pytest.raises(SharpenError, match="no choices"):
        model.rank("abc", [], "x", Generation())


def test_an_answer_that_ends_with_another_token(model):
    many = model.generate(list("abcdefghijklmn"), max_tokens=9)
    plain, stop = next((one, c) for one in many for c in one.text[1:] if c.isascii())
    ended = model.generate(plain.prompt, max_tokens=9, end_with=stop)
    assert (ended.text, ended.finished) == (plain.text[: plain.text.index(stop)], True)
    with pytest.raises(SharpenError, match="writes as 2 tokens"):
        model.generate("abc", end_with="ab")


def test_chat(model):
    assert model.model.prepare(["ab"], True).prompts[0][0] == 257
    assert len(model.model.prepare(["ab"], True).prompts[0]) == 3


def test_explaining(model):
    adapt = Adaptation(method="em-tok-b", steps=2, samples=4, lr=0.05, explain=True, guard=False)
    options = Generation(adapt=adapt, max_tokens=8)
    answer = model.generate("abc", adapt=adapt, max_tokens=8)
    explanation = model.explanation(answer, options)
    text = as_text(explanation, hypotheses=2)
    assert "before the first update:" in text
    assert "after 1 update:" in text
    assert "and 2 more" in text
    page = as_html([explanation])
    assert "adapted to each prompt separately" in page
    assert "Answer over the updates" in page
    assert "<svg" in page
    assert "transcri" not in page.split("</style>")[1]
    with pytest.raises(SharpenError, match="nothing to explain"):
        model.explanation(model.generate("abc", max_tokens=3), Generation())


def test_bad_input(model):
    with pytest.raises(SharpenError, match="leaves no room"):
        model.generate("a" * 97)
    with pytest.raises(SharpenError, match="no tokens"):
        model.generate("")
    with pytest.raises(SharpenError, match="max_tokens is 0"):
        model.generate("a", max_tokens=0)
    with pytest.raises(SharpenError, match="adapt is 3"):
        model.generate("a", adapt=3)
    with pytest.raises(SharpenError, match="2 prompts and 1 ids"):
        model.generate(["a", "b"], ids=["x"])
    assert model.generate([]) == []
    assert sharpen.LanguageModel is type(model)
