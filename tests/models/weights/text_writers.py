"""Small language models in the formats that are read, written by the tests."""

import struct
from pathlib import Path

import numpy as np
import torch

from sharpen.models.weights.llama2c import _LAYER


def pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From two halves of a head to pairs side by side: what converters do before they write."""
    rows = weight.shape[0]
    return weight.view(heads, 2, rows // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


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


def quantise(x: np.ndarray, kind: int) -> bytes:
    """Blocks of 32 numbers, as the formats describe them."""
    blocks = x.reshape(-1, 32).astype(np.float32)
    out = bytearray()
    for block in blocks:
        if kind == 8:
            step = np.float16(np.abs(block).max() / 127 or 1)
            out += step.tobytes() + np.round(block / np.float32(step)).astype(np.int8).tobytes()
            continue
        low = np.float16(block.min()) if kind == 3 else np.float16(0)
        widest = block.max() - np.float32(low) if kind == 3 else np.abs(block).max() * 2
        step = np.float16(widest / 15 or 1)
        q = np.round((block - np.float32(low)) / np.float32(step)) + (0 if kind == 3 else 8)
        q = q.clip(0, 15).astype(np.uint8)
        out += step.tobytes() + (low.tobytes() if kind == 3 else b"") + (q[:16] | (q[16:] << 4)).tobytes()
    return bytes(out)


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
        inner = 8 if isinstance(value[0], str) else 5
        body = b"".join(_text(v) if inner == 8 else struct.pack("<i", v) for v in value)
        return struct.pack("<IIQ", 9, inner, len(value)) + body
    return struct.pack("<II", 4, value)


def write_gguf(path: Path, metadata: dict, tensors: dict[str, tuple[np.ndarray, int]]) -> Path:
    """`tensors` are arrays with the type to store them in: 0 float32, 1 float16, 2 Q4_0, 3 Q4_1, 8 Q8_0."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_text(name) + _value(value) for name, value in metadata.items())
    data = bytearray()
    for name, (array, kind) in tensors.items():
        head += _text(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *array.shape[::-1]) + struct.pack("<IQ", kind, len(data))
        plain = {0: np.float32, 1: np.float16}.get(kind)
        data += quantise(array, kind) if plain is None else array.astype(plain).tobytes()
        data += bytes(-len(data) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path
