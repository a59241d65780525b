"""Language models in every format that is read, small ones and the real ones that can be fetched."""

import json
import shutil

import pytest
import torch
from models.causal_models import small_causal
from models.weights.text_writers import pairs, root, write_llama2c
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from sharpen.errors import SharpenError, WeightsError
from sharpen.method.search import greedy
from sharpen.models.causal_text import CausalText
from sharpen.models.weights import catalog
from sharpen.models.weights.fetch import fetch
from sharpen.models.weights.llama2c import halves
from sharpen.models.weights.load import load_checkpoint
from sharpen.models.weights.text import find_text, load_text_checkpoint

WORDS = [b"a", b"b", b" ", b" a", b"ab", b" ab", "é".encode(), b"\n"]


def llama(vocabulary, tied=True, d=32):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=d,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c(tmp_path, tied):
    model = llama(259 + len(WORDS), tied)
    path = write_llama2c(model, tmp_path / "model.bin", WORDS, tied)
    found = load_text_checkpoint(path)
    assert (found.format, found.verified, found.ends, found.quantised) == ("llama2.c", False, (1, 2), "")
    prompt = [1, 262, 263, 5]
    torch.testing.assert_close(root(found, prompt), model(torch.tensor([prompt])).logits[0, -1], rtol=1e-4, atol=1e-5)
    tokens = CausalText(found).tokenizer
    ids = tokens.prompt("ab é\t")
    assert ids == [1, 264, 261, 265, 3 + 9]  # BOS, " ab", " ", "é", a byte
    assert tokens.decode(ids) == " ab é\t"
    assert tokens.decode([262]) == " a"  # a continuation keeps its space
    assert not tokens.is_text(1)


def test_llama2c_with_its_tokeniser_beside_it_and_damaged_files(tmp_path):
    path = write_llama2c(llama(259 + len(WORDS)), tmp_path / "model.bin", WORDS, True)
    whole = path.read_bytes()
    start = whole.index(b"<unk>") - 12
    path.write_bytes(whole[:start])
    with pytest.raises(WeightsError, match=r"no tokenizer\.bin beside"):
        load_text_checkpoint(path)
    (tmp_path / "tokenizer.bin").write_bytes(whole[start:])
    assert load_text_checkpoint(tmp_path).tokenizer.get_vocab_size() == 259 + len(WORDS)
    path.write_bytes(whole[: start - 5000])
    with pytest.raises(WeightsError, match="truncated or damaged"):
        load_text_checkpoint(path)
    path.write_bytes(b"\x00" * 40)
    with pytest.raises(WeightsError, match="not a language model"):
        load_text_checkpoint(path)


def test_a_hugging_face_directory(tmp_path):
    model = small_causal("qwen2", torch.float32)
    model.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"no tokenizer\.json"):
        load_text_checkpoint(tmp_path)
    vocabulary = {**{c: i for i, c in enumerate("<|x|>", 0)}, **{f"t{i}": i for i in range(5, 60)}, "<|e|>": 60}
    tok = Tokenizer(models.BPE(vocabulary, []))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.add_special_tokens(["<|e|>"])
    tok.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 60]}))
    settings = {"eos_token": {"content": "<|e|>"}, "chat_template": "{{ messages[0].content }}{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = load_text_checkpoint(str(tmp_path))
    assert (found.format, found.ends) == ("safetensors", (7, 60))
    text = CausalText(found)
    assert (text.policy(chat=False).eos, text.policy(chat=True).eos) == (7, 7)  # the template names neither
    assert text.prepare(["x|"], chat=True).prompts == ((vocabulary["x"], vocabulary["|"], 60),)
    torch.testing.assert_close(root(found, [3, 4]), model(torch.tensor([[3, 4]])).logits[0, -1], rtol=1e-4, atol=1e-5)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|e|>{{ raise_exception('no') }}")
    text = CausalText(load_text_checkpoint(tmp_path))
    assert text.policy(chat=True).eos == 60
    with pytest.raises(SharpenError, match=r"chat template of .* fails"):
        text.prepare(["x"], chat=True)
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(SharpenError, match="chat template"):  # the sandbox refuses
        CausalText(load_text_checkpoint(tmp_path)).prepare(["x"], chat=True)


def test_names(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="run `sharpen models fetch stories15M`"):
        find_text("stories15M")
    with pytest.raises(WeightsError, match="no such file or directory, and not one of stories15M, smollm2-135m"):
        find_text("nonsense")
    with pytest.raises(WeightsError, match="holds no weights"):
        find_text(tmp_path)


def test_a_language_model_is_not_a_whisper_model():
    with pytest.raises(WeightsError, match="stories15M is a language model"):
        load_checkpoint("stories15M")


def test_pairs_and_halves_are_inverse():
    x = torch.arange(48.0).view(12, 4)
    assert torch.equal(halves(pairs(x, 3), 3), x)


@pytest.fixture(scope="module")
def stories(fetched_package):
    return load_text_checkpoint(fetched_package("stories15M", "llama2.c"))


def test_stories15m_is_transformers_llama(stories):
    """Every key matched, the same greedy story, and logits within rounding."""
    assert stories.verified
    config = LlamaConfig(**{key: value for key, value in stories.config.items() if key != "model_type"})
    model = LlamaForCausalLM(config).eval()
    tied = {**stories.tensors, "lm_head.weight": stories.tensors["model.embed_tokens.weight"]}
    model.load_state_dict(tied, strict=True)
    text = CausalText(stories)
    policy, prepared = text.policy(chat=False), text.prepare(["Once upon a time"], chat=False)
    assert prepared.prompts == ((1, 9038, 2501, 263, 931),)
    with torch.no_grad():
        (tree,) = greedy(policy, policy.encode(prepared), [40])
        out = model.generate(torch.tensor(prepared.prompts), max_new_tokens=40, do_sample=False, pad_token_id=0)
    y = tree.hypotheses[0]
    assert y.tokens == tuple(out[0, 5:].tolist())
    assert text.tokenizer.decode(y.content).startswith(", there was a little girl named Lily.")
    with pytest.raises(SharpenError, match="no chat template"):
        text.prepare(["Hello"], chat=True)


def test_a_story_ends(stories):
    text = CausalText(stories)
    policy = text.policy(chat=False)
    with torch.no_grad():
        (tree,) = greedy(policy, policy.encode(text.prepare(["Once upon a time"], chat=False)), [250])
    assert tree.hypotheses[0].finished


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_fetching_by_name(stories, fetched_package, tmp_path, monkeypatch):
    """What is in the cache is verified, listed and found by its name."""
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "stories15M"
    folder.mkdir(parents=True)
    shutil.copy(fetched_package("stories15M", "llama2.c"), folder)
    assert fetch("stories15M") == folder
    (listed,) = [entry for entry in catalog.available() if entry.name == "stories15M"]
    assert (listed.format, listed.verified, listed.parameters) == ("llama2.c", "yes", 15_191_712)
    assert sum(t.numel() for t in stories.tensors.values()) == listed.parameters
    source, label, _ = find_text("stories15M")
    assert (source.weights[0].parent, label) == (folder, str(folder))
