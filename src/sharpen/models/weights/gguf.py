"""llama.cpp's GGUF files of the Llama architecture: metadata, tokeniser and tensors, dequantised to float16 or float32.

u32 magic and version, u64 counts of tensors and of metadata; the metadata (name, u32 type, value); for each tensor its
name, u32 rank, u64 x rank shape with the fastest axis first, u32 type, u64 offset; then, aligned, the data. A quantised
row is a sequence of blocks of 32 numbers: a float16 step, for some types a float16 minimum, and the small integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.quantised import BLOCK, BLOCK_BYTES, Blocks
from sharpen.models.weights.rotary_order import halves
from sharpen.models.weights.stored import Content, Reader

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"GGUF"
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9  # the other types of metadata
_MOST = 1 << 24  # entries of a list, bytes of a text

_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_QUANTISED = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"}  # by the type's number
_FLOATS = {0: "float32", 1: "float16"}


class GGUF:
    """A parsed file; tensors are dequantised when they are taken."""

    def __init__(self, content: Content, where: str) -> None:
        self._reader = reader = Reader(content, where)
        if bytes(reader.take(4, "the magic number")) != MAGIC:
            raise WeightsError(f"{where}: not a GGUF file; {GET_AGAIN}")
        version, tensors, entries = reader.numbers("IQQ", "the header")
        if version not in (2, 3):
            raise WeightsError(f"{where}: GGUF version {version}, expected 2 or 3")
        self.metadata = {self._text(): self._value() for _ in range(entries)}
        self._tensors = dict(self._info() for _ in range(tensors))
        alignment = self.metadata.get("general.alignment", 32)
        self._start = -(-reader.offset // alignment) * alignment
        self.where = where

    @property
    def quantised(self) -> str:
        """The types of its quantised tensors, such as "Q4_1 and Q8_0"; nothing for float16 and float32."""
        kinds = {_QUANTISED[kind].upper() for _, kind, _ in self._tensors.values() if kind in _QUANTISED}
        return " and ".join(sorted(kinds))

    def config(self) -> dict[str, Any]:
        """As a `config.json` of Hugging Face."""
        meta = self.metadata
        family = meta.get("general.architecture")
        if family != "llama":
            raise WeightsError(
                f"{self.where}: a GGUF file of the architecture {family!r}; only llama is read: use the safetensors "
                "directory of this model"
            )
        keys = {
            "hidden_size": "embedding_length",
            "intermediate_size": "feed_forward_length",
            "num_hidden_layers": "block_count",
            "num_attention_heads": "attention.head_count",
            "num_key_value_heads": "attention.head_count_kv",
            "max_position_embeddings": "context_length",
            "rms_norm_eps": "attention.layer_norm_rms_epsilon",
            "rope_theta": "rope.freq_base",
        }
        config = {ours: meta[f"llama.{theirs}"] for ours, theirs in keys.items() if f"llama.{theirs}" in meta}
        if meta.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self._tensors:
            raise WeightsError(f"{self.where}: scaled rotary positions are not read from GGUF files")
        tied = "output.weight" not in self._tensors
        tokens = len(meta.get("tokenizer.ggml.tokens", ()))
        return {"model_type": "llama", "vocab_size": tokens, "tie_word_embeddings": tied, **config}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors under Hugging Face's names."""
        heads = {"attn_q": self.metadata["llama.attention.head_count"]}
        heads["attn_k"] = self.metadata.get("llama.attention.head_count_kv", heads["attn_q"])
        found = {}
        for name in self._tensors:
            stem, _, part = name.rpartition(".")
            layer, block = "", stem
            if stem.startswith("blk."):
                _, number, block = stem.split(".", 2)
                layer = f"layers.{number}."
            if block not in _NAMES:
                raise WeightsError(f"{self.where}: unknown tensor {name}; {GET_AGAIN}")
            tensor = self._tensor(name)
            head = "" if block == "output" else "model."
            found[f"{head}{layer}{_NAMES[block]}.{part}"] = halves(tensor, heads[block]) if block in heads else tensor
        return found

    def _tensor(self, name: str) -> Tensor:
        shape, kind, offset = self._tensors[name]
        count, reader = int(np.prod(shape, dtype=np.int64)), self._reader
        if kind in _FLOATS:
            reader.offset = self._start + offset
            return reader.tensor(_FLOATS[kind], shape, name).tensor()
        if kind not in _QUANTISED or count % BLOCK:
            known = ", ".join(["F32", "F16", *(dtype.upper() for dtype in _QUANTISED.values())])
            raise WeightsError(f"{self.where}: {name} has the type {kind}; only {known} are read")
        dtype = _QUANTISED[kind]
        reader.offset = self._start + offset
        return Blocks(dtype, shape, reader.take(count // BLOCK * BLOCK_BYTES[dtype], name)).tensor()

    def _info(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._text()
        (rank,) = self._reader.numbers("I", name)
        if not 0 < rank <= 4:
            raise WeightsError(f"{self._reader.name}: damaged: {name} has {rank} axes; {GET_AGAIN}")
        shape = self._reader.numbers(f"{rank}Q", name)[::-1]
        kind, offset = self._reader.numbers("IQ", name)
        return name, (shape, kind, offset)

    def _text(self) -> str:
        (length,) = self._reader.numbers("Q", "a text")
        return self._reader.text(length, "a text")

    def _value(self, kind: int | None = None) -> Any:
        if kind is None:
            (kind,) = self._reader.numbers("I", "a type")
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._reader.numbers("IQ", "a list")
            if count > _MOST:
                raise WeightsError(f"{self._reader.name}: damaged: a list of {count} entries; {GET_AGAIN}")
            return [self._value(inner) for _ in range(count)]
        if kind not in _NUMBERS:
            raise WeightsError(f"{self._reader.name}: damaged: metadata of type {kind}; {GET_AGAIN}")
        return self._reader.numbers(_NUMBERS[kind], "a number")[0]


def tokenizer(metadata: Mapping[str, Any], where: str) -> Any:
    """The byte-level tokeniser of a file, as the `tokenizers` library has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, before = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if (kind, before) not in {("gpt2", "smollm"), ("gpt2", "gpt-2")}:
        raise WeightsError(f"{where}: a tokeniser {kind!r} with {before!r}; expected 'gpt2' with 'smollm' or 'gpt-2'")
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if before == "smollm" else []
    tok.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    types = metadata.get("tokenizer.ggml.token_type", ())
    special = [AddedToken(token, special=True) for token, kind in zip(tokens, types, strict=False) if kind == 3]
    tok.add_special_tokens(special)
    return tok
