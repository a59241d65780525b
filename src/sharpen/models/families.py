"""The families of causal language models: from a checkpoint's `config.json` to an `Architecture`.

A new family is a function here and a line in FAMILIES (docs/new-model.md). It must handle or refuse, by name, every
setting that changes what the model computes; `models.causal_weights` refuses tensors that no name accounts for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sharpen.errors import WeightsError
from sharpen.models.architecture import Architecture, Kind, Names, Rotary

Config = Mapping[str, Any]

LLAMA = Names(
    embed="embed_tokens",
    norm="norm",
    head="lm_head",
    attention_norm="layers.{}.input_layernorm",
    mlp_norm="layers.{}.post_attention_layernorm",
    qkv=("layers.{}.self_attn.q_proj", "layers.{}.self_attn.k_proj", "layers.{}.self_attn.v_proj"),
    out="layers.{}.self_attn.o_proj",
    up=("layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"),
    down="layers.{}.mlp.down_proj",
)
HEAD_NORMS: dict[str, Any] = {"query_norm": "layers.{}.self_attn.q_norm", "key_norm": "layers.{}.self_attn.k_norm"}
SANDWICH: dict[str, Any] = {
    "attention_after": "layers.{}.post_attention_layernorm",
    "mlp_norm": "layers.{}.pre_feedforward_layernorm",
    "mlp_after": "layers.{}.post_feedforward_layernorm",
}
GPT2 = Names(
    embed="wte",
    positions="wpe",
    norm="ln_f",
    head="lm_head",
    attention_norm="h.{}.ln_1",
    mlp_norm="h.{}.ln_2",
    qkv=("h.{}.attn.c_attn",),
    out="h.{}.attn.c_proj",
    up=("h.{}.mlp.c_fc",),
    down="h.{}.mlp.c_proj",
    prefix="transformer.",
)
NEOX = Names(
    embed="embed_in",
    norm="final_layer_norm",
    head="embed_out",
    attention_norm="layers.{}.input_layernorm",
    mlp_norm="layers.{}.post_attention_layernorm",
    qkv=("layers.{}.attention.query_key_value",),
    out="layers.{}.attention.dense",
    up=("layers.{}.mlp.dense_h_to_4h",),
    down="layers.{}.mlp.dense_4h_to_h",
    prefix="gpt_neox.",
)


def describe(config: Config) -> Architecture:
    """The architecture of a checkpoint; a WeightsError names what is not supported."""
    kind = config.get("model_type")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        if config.get(key) or kind == "gemma2":
            raise WeightsError(
                f"{kind} caps its logits ({key}): the gradient of the method assumes logits h W^T, so it cannot be "
                "adapted; use a model without caps, such as gemma or gemma3_text"
            )
    if kind not in FAMILIES:
        raise WeightsError(f"model_type is {kind!r}: expected one of {', '.join(FAMILIES)}")
    for key in REFUSED:
        if config.get(key):
            raise WeightsError(f"{key} is {config[key]!r} in this {kind}, which is not supported")
    return FAMILIES[kind](config)


def _llama(config: Config, names: Names = LLAMA, norm: Kind = "rms", **more: Any) -> Architecture:
    """What Llama, Mistral, Qwen, Granite and Gemma have in common."""
    d, heads, layers = (number(config, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    size = config.get("head_dim") or d // heads
    return Architecture(
        **{
            "family": config["model_type"],
            "names": names,
            "layers": layers,
            "d": d,
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_size": size,
            "inner": number(config, "intermediate_size"),
            "vocabulary": number(config, "vocab_size"),
            "positions": config.get("max_position_embeddings", 2048),
            "norm": norm,
            "eps": config.get("rms_norm_eps", 1e-6),
            "activation": config.get("hidden_act", "silu"),
            "tied": config.get("tie_word_embeddings", False),
            "rotary": (_rotary(config, size),) * layers,
            "windows": (None,) * layers,
            **more,
        }
    )


def _mistral(config: Config) -> Architecture:
    layers = number(config, "num_hidden_layers")
    return _llama(config, windows=(config.get("sliding_window"),) * layers)


def _qwen2(config: Config) -> Architecture:
    return _llama(config, windows=_windows(config))


def _qwen3(config: Config) -> Architecture:
    size = config.get("head_dim") or 128
    layers = number(config, "num_hidden_layers")
    return _llama(
        config,
        replace(LLAMA, **HEAD_NORMS),
        head_size=size,
        rotary=(_rotary(config, size),) * layers,
        windows=_windows(config),
    )


def _windows(config: Config) -> tuple[int | None, ...]:
    """Qwen's: the upper layers see a window, where one is switched on."""
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    first = config.get("max_window_layers", 28)
    kinds = config.get("layer_types")
    layers = range(number(config, "num_hidden_layers"))
    slides = [kinds[i] == "sliding_attention" for i in layers] if kinds else [i >= first for i in layers]
    return tuple(window if slide else None for slide in slides)


def _granite(config: Config) -> Architecture:
    return _llama(
        config,
        embed_scale=config.get("embedding_multiplier", 1.0),
        residual_scale=config.get("residual_multiplier", 1.0),
        attention_scale=config.get("attention_multiplier", 1.0),
        logit_scale=1.0 / config.get("logits_scaling", 1.0),
    )


def _gemma(config: Config) -> Architecture:
    return _llama(
        config,
        norm="rms-plus-one",
        activation="gelu_pytorch_tanh",  # old files say gelu and mean this
        tied=config.get("tie_word_embeddings", True),
        embed_scale=number(config, "hidden_size") ** 0.5,
    )


def _gemma3(config: Config) -> Architecture:
    layers, size = number(config, "num_hidden_layers"), config.get("head_dim", 256)
    pattern = config.get("sliding_window_pattern", 6)
    kinds = config.get("layer_types") or [
        "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)
    ]
    given = config.get("rope_parameters") or {}
    turns = {
        "sliding_attention": given.get("sliding_attention") or {"rope_theta": config.get("rope_local_base_freq", 1e4)},
        "full_attention": given.get("full_attention")
        or {**(config.get("rope_scaling") or {}), "rope_theta": config.get("rope_theta", 1e6)},
    }
    return _llama(
        config,
        replace(LLAMA, **HEAD_NORMS, **SANDWICH),
        norm="rms-plus-one",
        head_size=size,
        activation=config.get("hidden_activation", "gelu_pytorch_tanh"),
        tied=config.get("tie_word_embeddings", True),
        embed_scale=number(config, "hidden_size") ** 0.5,
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        rotary=tuple(_rotary(config, size, turns[kind]) for kind in kinds),
        windows=tuple(config.get("sliding_window", 4096) if kind == "sliding_attention" else None for kind in kinds),
    )


def _gpt2(config: Config) -> Architecture:
    d, heads, layers = (number(config, key) for key in ("n_embd", "n_head", "n_layer"))
    return Architecture(
        family="gpt2",
        names=GPT2,
        layers=layers,
        d=d,
        heads=heads,
        kv_heads=heads,
        head_size=d // heads,
        inner=config.get("n_inner") or 4 * d,
        vocabulary=number(config, "vocab_size"),
        positions=config.get("n_positions", 1024),
        norm="layer",
        eps=config.get("layer_norm_epsilon", 1e-5),
        activation=config.get("activation_function", "gelu_new"),
        tied=config.get("tie_word_embeddings", True),
        rotary=(None,) * layers,
        windows=(None,) * layers,
        transposed=True,
        attention_scale=None if config.get("scale_attn_weights", True) else 1.0,
    )


def _gpt_neox(config: Config) -> Architecture:
    d, heads, layers = (number(config, key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    share: float = given.get("partial_rotary_factor") or config.get("rotary_pct", 0.25)
    turn = {"rope_theta": config.get("rotary_emb_base", 10000.0), **given}
    return Architecture(
        family="gpt_neox",
        names=NEOX,
        layers=layers,
        d=d,
        heads=heads,
        kv_heads=heads,
        head_size=d // heads,
        inner=number(config, "intermediate_size"),
        vocabulary=number(config, "vocab_size"),
        positions=config.get("max_position_embeddings", 2048),
        norm="layer",
        eps=config.get("layer_norm_eps", 1e-5),
        activation=config.get("hidden_act", "gelu"),
        tied=config.get("tie_word_embeddings", False),
        rotary=(_rotary(config, int(d // heads * share), turn),) * layers,
        windows=(None,) * layers,
        parallel=config.get("use_parallel_residual", True),
        interleaved=True,
    )


FAMILIES: dict[str, Callable[[Config], Architecture]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "granite": _granite,
    "gemma": _gemma,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
REFUSED = (
    "quantization_config",
    "use_bidirectional_attention",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
)


def _rotary(config: Config, size: int, given: Config | None = None) -> Rotary:
    """The rotary positions of a layer, from `rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""
    given = given or config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta: float = given.get("rope_theta") or config.get("rope_theta", 10000.0)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return Rotary(theta, size)
    if kind == "linear":
        return Rotary(theta, size, stretch=given["factor"])
    if kind == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        factor, low, high, original = (float(given[key]) for key in keys)
        return Rotary(theta, size, llama3=(factor, low, high, original))
    raise WeightsError(f"rotary positions of type {kind!r} are not supported: expected default, linear or llama3")


def number(config: Config, key: str) -> int:
    """A size in a configuration."""
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise WeightsError(f"config.json has no number for {key} (found {value!r}); get the checkpoint again")
    return value
