"""llama2.c's files: seven numbers, the float32 weights of a Llama, and its tokeniser behind them or in a file beside.

7 x i32: d, inner, layers, heads, kv_heads, vocabulary (negative where the output matrix is a tensor of its own),
positions. The tokeniser: i32 length of the longest token, then for each a float32 score, i32 length, and bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.pieces import SPACE, byte_pairs
from sharpen.models.weights.rotary_order import halves
from sharpen.models.weights.stored import Content, Reader, open_content

if TYPE_CHECKING:
    from torch import Tensor

BOS, EOS = 1, 2
FIRST_BYTE = 3  # tokens 3 to 258 are single bytes
_LAYER = {  # in the order of the file: name, rows and columns as names of sizes
    "input_layernorm": ("d",),
    "self_attn.q_proj": ("queries", "d"),
    "self_attn.k_proj": ("keys", "d"),
    "self_attn.v_proj": ("keys", "d"),
    "self_attn.o_proj": ("d", "queries"),
    "post_attention_layernorm": ("d",),
    "mlp.gate_proj": ("inner", "d"),
    "mlp.down_proj": ("d", "inner"),
    "mlp.up_proj": ("inner", "d"),
}


def plausible(content: Content) -> bool:
    """Whether the first numbers could be those of a model; such a file has no magic number."""
    if len(content) < 28:
        return False
    d, inner, layers, heads, kv_heads, vocabulary, positions = Reader(content, "").numbers("7i", "the sizes")
    sizes = d, inner, layers, heads, kv_heads, abs(vocabulary), positions
    return all(0 < size < 1 << 20 for size in sizes) and layers < 512 and d % heads == 0 and heads % kv_heads == 0


def read(content: Content, where: str) -> tuple[dict[str, Any], dict[str, Tensor], Reader]:
    """A `config.json` of Hugging Face, the tensors under its names, and the reader, which is at the tokeniser."""
    if not plausible(content):
        raise WeightsError(f"{where}: not a file of llama2.c; {GET_AGAIN}")
    reader = Reader(content, where)
    d, inner, layers, heads, kv_heads, vocabulary, positions = reader.numbers("7i", "the sizes")
    sizes = {"d": d, "inner": inner, "queries": d, "keys": d // heads * kv_heads}
    tied, vocabulary = vocabulary > 0, abs(vocabulary)
    tensors = {"model.embed_tokens.weight": reader.tensor("float32", (vocabulary, d), "the embedding").tensor()}
    for name, axes in _LAYER.items():
        stacked = reader.tensor("float32", (layers, *(sizes[axis] for axis in axes)), name).tensor()
        for i, tensor in enumerate(stacked):
            turned = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}.get(name)
            tensors[f"model.layers.{i}.{name}.weight"] = halves(tensor, turned) if turned else tensor
    tensors["model.norm.weight"] = reader.tensor("float32", (d,), "the last norm").tensor()
    reader.tensor("float32", (2, positions, d // heads // 2), "cosines and sines")  # they are computed
    if not tied:
        tensors["lm_head.weight"] = reader.tensor("float32", (vocabulary, d), "the output matrix").tensor()
    config = {
        "model_type": "llama",
        "hidden_size": d,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
    }
    return config, tensors, reader


def tokenizer(reader: Reader, vocabulary: int, beside: Path) -> Any:
    """The tokeniser behind the weights, or in tokenizer.bin beside them, as the `tokenizers` library has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors

    if not reader.remaining:
        if not beside.is_file():
            raise WeightsError(f"{reader.name}: no tokeniser behind the weights, and no {beside.name} beside them")
        reader = Reader(open_content([beside]), str(beside))
    reader.numbers("i", "the length of the longest token")
    pieces, scores = [], {}
    for token in range(vocabulary):
        (score,), (length,) = reader.numbers("f", f"token {token}"), reader.numbers("i", f"token {token}")
        raw = bytes(reader.take(length, f"token {token}"))
        if FIRST_BYTE <= token < FIRST_BYTE + 256:
            pieces.append(f"<0x{token - FIRST_BYTE:02X}>")
        else:
            text = raw.decode("utf-8", "replace")
            pieces.append(text.strip("\n") if token < FIRST_BYTE else text.replace(" ", SPACE))
            scores[pieces[-1]] = score
    number = {piece: token for token, piece in enumerate(pieces)}
    tok = Tokenizer(byte_pairs(number, scores, "<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    strip = decoders.Strip(" ", 1, 0)
    tok.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    tok.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:FIRST_BYTE]])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tok
