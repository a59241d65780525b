"""Small language models in the formats that are read, written by the tests."""

import struct
from pathlib import Path

import numpy as np
import torch
from models.weights.quantisers import CODES, ggml

from sharpen.models.causal import CausalPolicy
from sharpen.models.weights.llama2c import _LAYER


def pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From two halves of a head to pairs side by side: what converters do before they write."""
    rows = weight.shape[0]
    return weight.view(heads, 2, rows // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


@torch.no_grad()
def root(checkpoint, prompt):
    """The logits after a prompt."""
    policy = CausalPolicy.of(checkpoint.config, checkpoint.tensors, ends=checkpoint.ends)
    return policy.project(policy.encode(policy.prepare([prompt])).each[0].root[0])[0]


def write_llama2c(model, path: Path, words: list[bytes], tied: bool) -> Path:
    """A transformers Llama as llama2.c has it, its tokeniser behind it; `words` follow the 259 fixed tokens."""
    c, state = model.config, model.state_dict()
    head = -c.vocab_size if not tied else c.vocab_size
    sizes = (c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads)
    parts = [struct.pack("<7i", *sizes, head, c.max_position_embeddings)]

    def put(tensor):
        parts.append(tensor.float().contiguous().numpy().tobytes())

    put(state["model.embed_tokens.weight"])
    for name in _LAYER:
        for i in range(c.num_hidden_layers):
            tensor = state[f"model.layers.{i}.{name}.weight"]
            heads = {"self_attn.q_proj": c.num_attention_heads, "self_attn.k_proj": c.num_key_value_heads}.get(name)
            put(pairs(tensor, heads) if heads else tensor)
    put(state["model.norm.weight"])
    put(torch.zeros(2, c.max_position_embeddings, c.head_dim // 2))
    if not tied:
        put(state["lm_head.weight"])
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([b]) for b in range(256)), *words]
    assert len(tokens) == c.vocab_size
    parts.append(struct.pack("<i", max(map(len, tokens))))
    parts += [struct.pack("<fi", -float(i), len(t)) + t for i, t in enumerate(tokens)]
    path.write_bytes(b"".join(parts))
    return path


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        inner = {str: 8, float: 6, int: 5}[type(value[0])]
        body = b"".join(_text(v) if inner == 8 else struct.pack("<f" if inner == 6 else "<i", v) for v in value)
        return struct.pack("<IIQ", 9, inner, len(value)) + body
    return struct.pack("<II", 4, value)


def write_gguf(path: Path, metadata: dict, tensors: dict[str, tuple[np.ndarray, str]]) -> Path:
    """`tensors` are arrays with the type to store them in, such as "float16" or "q4_k". None is no metadata."""
    metadata = {name: value for name, value in metadata.items() if value is not None}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(name) + _value(value) for name, value in metadata.items())
    data = bytearray()
    for name, (array, kind) in tensors.items():
        head += _text(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *array.shape[::-1]) + struct.pack("<IQ", CODES[kind], len(data))
        data += array.astype(kind).tobytes() if kind.startswith("float") else ggml(array, kind)
        data += bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def gguf_of(model, path: Path, kinds: dict[str, str] | None = None, **metadata) -> Path:
    """A Llama, Qwen2 or Gemma 3 of transformers as llama.cpp's converter writes it.

    `kinds` is the type of the tensors whose name ends so; others are float32. `metadata` is added.
    """
    c, tensors = model.config, {}
    architecture = c.model_type.removesuffix("_text")
    for name, tensor in model.state_dict().items():
        module, _, part = name.removeprefix("model.").rpartition(".")
        block = ""
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            block = f"blk.{number}."
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        heads = {"self_attn.q_proj": c.num_attention_heads, "self_attn.k_proj": c.num_key_value_heads}.get(module)
        if architecture == "llama" and heads:
            tensor = pairs(tensor, heads)
        if architecture == "gemma3" and "norm" in module:
            tensor = tensor + 1
        ours = f"{block}{(GEMMA3 if architecture == 'gemma3' else BLOCKS)[module]}.{part}"
        kind = next((kind for end, kind in (kinds or {}).items() if ours.endswith(end)), "float32")
        tensors[ours] = tensor.numpy(), kind
    sizes = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
    }
    if architecture == "gemma3":
        sizes |= {"attention.key_length": c.head_dim, "attention.value_length": c.head_dim}
        sizes |= {"attention.sliding_window": c.sliding_window, "rope.freq_base": 1e6}
    else:
        sizes["rope.freq_base"] = c.rope_parameters["rope_theta"]
    own = {f"{architecture}.{key}": value for key, value in sizes.items()}
    return write_gguf(path, {"general.architecture": architecture, **own, **BYTE_LEVEL, **metadata}, tensors)


BLOCKS = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA3 = BLOCKS | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "<|go|>", "a", "b", "Ġ", "Ġa", "1", "2", "12", "Ã", "©", "Ċ"],
    "tokenizer.ggml.token_type": [3, 3, *[1] * 10],
    "tokenizer.ggml.merges": ["Ġ a", "1 2"],
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{% for m in messages %}<|go|>{{ m['content'] }}{% endfor %}<|end|>",
}
# Gemma's own words are as converters write them: with spaces.
_PIECES = [("▁", -9.0), ("a", -10.0), ("b", -11.0), ("▁a", -1.0), ("ab", -2.0), ("▁ab", -3.0), ("é", -12.0)]
_PIECES += [("ba", -4.0)]
_FIRST = ["<pad>", "<eos>", "<bos>", "<unk>", "<go>", "\n\n", "  ", "   "]
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": [*_FIRST, *(f"<0x{byte:02X}>" for byte in range(256)), *(piece for piece, _ in _PIECES)],
    "tokenizer.ggml.scores": [*[-1000.0] * len(_FIRST), *[0.0] * 256, *(score for _, score in _PIECES)],
    "tokenizer.ggml.token_type": [3, 3, 3, 3, 3, 4, 4, 4, *[6] * 256, *[1] * len(_PIECES)],
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.add_space_prefix": False,
}
