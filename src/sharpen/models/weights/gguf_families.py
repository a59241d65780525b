"""The model in a GGUF file as Hugging Face has it: its `config.json` and its tensors under other names.

llama.cpp writes an architecture's settings as `ARCHITECTURE.SETTING`. One that is not known here is refused by name:
passed over, it would give a model that is almost right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.weights.blocks import Blocks
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.gguf import GGUF
from sharpen.models.weights.rotary_order import halves

if TYPE_CHECKING:
    from torch import Tensor

_KEYS = {  # a setting of llama.cpp: its name in a config.json
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
}
# Handled below, or without meaning for the result: the shapes of the tensors are checked in any case.
_OTHERS = ("attention.value_length", "rope.dimension_count", "vocab_size", "tensor_data_layout")
_SCALING = ("rope.scaling.type", "rope.scaling.factor")
_SCALING_NOTES = ("rope.scaling.finetuned", "rope.scaling.original_context_length")  # of no effect on linear scaling

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


@dataclass(frozen=True)
class Family:
    """How llama.cpp writes one architecture."""

    model_type: str  # Hugging Face's
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)  # of modules
    keys: Mapping[str, str] = field(default_factory=dict)  # settings of its own
    needed: tuple[str, ...] = ()  # settings for which a config.json has a default that need not be this model's
    pairs: bool = False  # the rows of queries and keys are in the order of pairs
    plus_one: bool = False  # norms are stored as 1 + w


FAMILIES = {
    "llama": Family("llama", pairs=True),
    "qwen2": Family("qwen2"),
    "gemma3": Family(
        "gemma3_text",
        names={
            **_NAMES,
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        keys={
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "sliding_window_pattern",  # every so many layers one sees all
            "rope.freq_base_swa": "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        needed=("attention.key_length", "attention.sliding_window"),
        plus_one=True,
    ),
}
_GEMMA3_27B = 62  # layers


def config(file: GGUF) -> dict[str, Any]:
    """As a `config.json` of Hugging Face."""
    architecture, family = _family(file)
    meta = {key.removeprefix(f"{architecture}."): value for key, value in file.metadata.items()}
    keys = {**_KEYS, **family.keys}
    own = [key.removeprefix(f"{architecture}.") for key in file.metadata if key.startswith(f"{architecture}.")]
    for key in own:
        if key not in (*keys, *_OTHERS, *_SCALING, *_SCALING_NOTES) and meta[key]:
            raise WeightsError(
                f"{file.where}: {architecture}.{key} is {meta[key]!r}, a setting that is not read from GGUF files: use "
                "the safetensors directory of this model"
            )
        if key in keys and not isinstance(meta[key], int | float):
            raise WeightsError(f"{file.where}: {architecture}.{key} is {str(meta[key])[:60]}, expected one number")
    for key in family.needed:
        if key not in own:
            raise WeightsError(f"{file.where}: there is no {architecture}.{key}; {GET_AGAIN}")
    found = {
        "model_type": family.model_type,
        "vocab_size": len(meta.get("tokenizer.ggml.tokens", ())),
        "tie_word_embeddings": "output.weight" not in file.names,
        "rope_theta": 10000.0,  # llama.cpp's default; some families have another
        **{theirs: meta[key] for key, theirs in keys.items() if key in own},
        **_scaling(file, meta),
    }
    if family.model_type == "gemma3_text":
        found["query_pre_attn_scalar"] = _query_scalar(found)
    _check_heads(file, meta, found)
    return found


def tensors(file: GGUF) -> dict[str, Tensor | Blocks]:
    """All tensors under Hugging Face's names; quantised ones as they lie in the file."""
    architecture, family = _family(file)
    heads = {}
    if family.pairs:
        heads["attn_q"] = file.metadata[f"{architecture}.attention.head_count"]
        heads["attn_k"] = file.metadata.get(f"{architecture}.attention.head_count_kv", heads["attn_q"])
    found: dict[str, Tensor | Blocks] = {}
    for name in file.names:
        stem, _, part = name.rpartition(".")
        layer, block = "", stem
        if stem.startswith("blk."):
            _, number, block = stem.split(".", 2)
            layer = f"layers.{number}."
        if block not in family.names:
            raise WeightsError(f"{file.where}: unknown tensor {name}; {GET_AGAIN}")
        tensor = file.tensor(name)
        if block in heads:
            rows = partial(halves, heads=heads[block])
            tensor = tensor.reordered(rows) if isinstance(tensor, Blocks) else rows(tensor)
        if family.plus_one and block.endswith("norm"):
            tensor = (tensor.tensor() if isinstance(tensor, Blocks) else tensor) - 1
        head = "" if block == "output" else "model."
        found[f"{head}{layer}{family.names[block]}.{part}"] = tensor
    return found


def _family(file: GGUF) -> tuple[str, Family]:
    architecture = file.metadata.get("general.architecture")
    if architecture not in FAMILIES:
        raise WeightsError(
            f"{file.where}: a GGUF file of the architecture {architecture!r}; read are {', '.join(FAMILIES)}: use the "
            "safetensors directory of this model"
        )
    return architecture, FAMILIES[architecture]


def _scaling(file: GGUF, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Of rotary positions; in Gemma 3 that of the layers without a window."""
    kind = meta.get("rope.scaling.type", "none")
    if kind not in ("none", "linear") or "rope_freqs.weight" in file.names:
        found = "rope_freqs.weight" if kind in ("none", "linear") else kind
        raise WeightsError(f"{file.where}: scaled rotary positions ({found}) are not read from GGUF files, but linear")
    if kind == "none":
        return {}
    factor = meta.get("rope.scaling.factor")
    if not isinstance(factor, int | float) or factor <= 0:
        raise WeightsError(f"{file.where}: rope.scaling.factor is {factor!r}, expected a positive number; {GET_AGAIN}")
    return {"rope_scaling": {"rope_type": "linear", "factor": float(factor)}}


def _query_scalar(found: Mapping[str, Any]) -> int:
    """What a product of query and key is divided by, squared: it is in no file, and llama.cpp knows it by the size."""
    if found.get("num_hidden_layers") == _GEMMA3_27B:
        return int(found["hidden_size"] // found["num_attention_heads"])
    return int(found["head_dim"])


def _check_heads(file: GGUF, meta: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Heads that are turned in part, or whose values have a size of their own, are not what the families compute."""
    d, heads = found.get("hidden_size"), found.get("num_attention_heads")
    size = found.get("head_dim") or (d // heads if d and heads else None)
    for key in ("rope.dimension_count", "attention.value_length"):
        if key in meta and meta[key] != size:
            raise WeightsError(f"{file.where}: {key} is {meta[key]}, expected {size}, the size of a head")
