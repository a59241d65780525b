"""Encoder-decoders from a folder on disk to an answer."""

import json

import pytest
import torch
from text.small_seq2seq import END, START, write_bart, write_t5
from transformers import BartForConditionalGeneration, T5ForConditionalGeneration

import sharpen
from sharpen.cli import main
from sharpen.errors import SharpenError, WeightsWarning
from sharpen.method.adaptation import Adaptation


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    return write_bart(tmp_path_factory.mktemp("bart"))


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return write_t5(tmp_path_factory.mktemp("t5"))


def same_as_transformers(model, prompt, answer):
    """More is asked of transformers than of us: it may force the last token to be the end."""
    row, n = torch.tensor([prompt]), len(answer.source.tokens)
    more = {"do_sample": False, "num_beams": 1, "max_new_tokens": 14}
    theirs = tuple(model.generate(row, attention_mask=torch.ones_like(row), **more)[0, 1:].tolist())
    ended = not answer.source.finished or theirs[n] == model.config.eos_token_id
    return n > 1 and ended and theirs[:n] == answer.source.tokens


def test_the_answers_of_transformers(bart, t5):
    """The prompt with what the tokeniser adds to it, whole though the file asks for four tokens."""
    model, text = sharpen.load_text(bart), "a prompt of more than four bytes"
    prompt = [START, *model.model.tokenizer.encode(text), END]
    assert len(prompt) == len(text) + 2
    theirs = BartForConditionalGeneration.from_pretrained(bart).eval()
    assert same_as_transformers(theirs, prompt, model.generate(text, max_tokens=12))
    theirs, answer = T5ForConditionalGeneration.from_pretrained(t5).eval(), sharpen.load_text(t5)
    assert same_as_transformers(theirs, [3, 4, 8, 1], answer.generate("one twoteen", max_tokens=12))


def test_the_first_word_begins_without_a_space(t5, bart):
    tok = sharpen.load_text(t5).model.tokenizer
    assert tok.decode([4, 7, 3, 1]) == "twoty one"
    assert tok.encode("twoty one") == [4, 7, 3]
    spaced = sharpen.load_text(bart).model.tokenizer
    assert spaced.decode(spaced.encode(" a")) == " a"


@pytest.mark.parametrize("method", ["greedy-em", "em-seq", "em-tok", "em-tok-b"])
def test_a_batch_answers_as_each_prompt_alone_and_forgets(bart, method):
    model, prompts = sharpen.load_text(bart), ["abc", "a much longer prompt", "?"]
    adapt = Adaptation(method=method, steps=2, samples=3, lr=0.02)
    before = model.generate(prompts, max_tokens=8)
    together = model.generate(prompts, adapt=adapt, max_tokens=8)
    for prompt, one, plain in zip(prompts, together, before, strict=True):
        alone = model.generate(prompt, adapt=adapt, max_tokens=8)
        assert (alone.text, alone.adapted.tokens, alone.source.tokens) == (
            one.text, one.adapted.tokens, plain.source.tokens
        )  # fmt: skip
        H = torch.tensor([[s.H_tok for s in x.trace.steps] for x in (alone, one)])
        torch.testing.assert_close(H[0], H[1], rtol=1e-4, atol=1e-4)


def test_entropy_falls(bart):
    adapt = Adaptation(method="em-tok-b", steps=8, samples=6, lr=0.02)
    trace = sharpen.load_text(bart).generate("abc", adapt=adapt, max_tokens=8).trace
    assert trace.steps[-1].H_tok < 0.8 * trace.steps[0].H_tok


def test_the_command(bart, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["generate", "--model", str(bart), "--max-tokens", "6", "-q", "--threads", "1"]
    assert main([*common, "--prompt", "abc", "--method", "em-tok", "--steps", "1", "--samples", "2", "--explain"]) == 0
    assert "H_tok" in capsys.readouterr().err
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": i, "prompt": "ab" + i}) + "\n" for i in "12"))
    assert main([*common, "--input", "in.jsonl", "--output", "out.jsonl", "--batch-size", "2"]) == 0
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["id"] for one in answers] == ["1", "2"]
    assert main([*common, "--prompt", "abc", "--chat"]) != 0
    assert "is an encoder-decoder, which has no chat template; leave --chat out" in capsys.readouterr().err
    assert main([*common, "--prompt", "x" * 70]) != 0
    assert "72 tokens; this bart reads at most 64" in capsys.readouterr().err


def test_ending_with_another_token(bart):
    model = sharpen.load_text(bart)
    policy = model.model.policy(False, "x")
    assert (policy.eos, bool(policy.forbidden[:, END].all())) == (model.model.tokenizer.encode("x")[0], True)
    assert "x" not in model.generate("abc", max_tokens=40, end_with="x").text
    with pytest.raises(SharpenError, match="writes as 2 tokens; expected one"):
        model.generate("abc", end_with="ab")


def test_settings_of_the_search_are_named(tmp_path):
    write_bart(tmp_path, no_repeat_ngram_size=3, forced_bos_token_id=START)
    with pytest.warns(WeightsWarning, match="asks for no_repeat_ngram_size, which change"):
        model = sharpen.load_text(tmp_path)
    assert model.model.policy(chat=False).decoding.start == (END, START)


def test_another_encoder_decoder_is_refused_by_name(bart, tmp_path):
    for file in bart.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "pegasus"}))
    with pytest.raises(SharpenError, match="encoder-decoder of type 'pegasus': expected one of bart, marian, t5, mt5"):
        sharpen.load_text(tmp_path)
