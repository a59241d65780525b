"""The families of encoder-decoder text models: from a checkpoint's `config.json` to a `Seq2SeqArchitecture`.

As in `models.families`, a family is a description that one loop (`models.seq2seq`) runs, and what cannot be said here
is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sharpen.errors import WeightsError
from sharpen.models.architecture import Kind
from sharpen.models.families import number

Config = Mapping[str, Any]


@dataclass(frozen=True)
class StackNames:
    """The modules of an encoder or a decoder: `NAME.weight`, `NAME.bias` where there is one; {} is the layer."""

    embed: str  # where a file leaves it out, it is the one that both sides share
    attention_norm: str
    qkv: tuple[str, str, str]
    out: str
    mlp_norm: str
    up: tuple[str, ...]  # the gate and the matrix it gates, or one matrix without a gate
    down: str
    cross_norm: str = ""  # of the decoder
    cross_qkv: tuple[str, str, str] = ("", "", "")
    cross_out: str = ""
    positions: str | None = None  # a table
    relative: str | None = None  # a bias for each head and each range of distances, shared by all layers
    embed_norm: str | None = None  # before the first layer
    norm: str | None = None  # after the last


@dataclass(frozen=True)
class Stack:
    """The encoder or the decoder."""

    names: StackNames
    layers: int
    heads: int
    head_size: int
    inner: int  # width between the matrices of the MLP
    vocabulary: int


@dataclass(frozen=True)
class Seq2SeqArchitecture:
    """An encoder-decoder transformer over tokens."""

    family: str
    encoder: Stack
    decoder: Stack
    d: int
    norm: Kind
    eps: float
    activation: str
    norm_after: bool  # a norm follows each sum, x = norm(x + f(x)); otherwise it comes first, x = x + f(norm(x))
    positions: int | None  # the longest text on either side, in tokens; None: any
    first_position: int = 0  # rows of the table before it are never used
    sinusoidal: bool = False  # a table that the file leaves out is computed
    buckets: int = 0  # of relative positions
    distance: int = 0  # from which on all share a bucket
    tied: bool = True  # a file without lm_head means the decoder's embedding
    embed_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / sqrt(head_size)
    logit_scale: float = 1.0
    prefix: str = ""  # before all but the head


def _bart_names(side: str, embed_norm: bool) -> StackNames:
    """Of BART and Marian."""
    names = StackNames(
        embed=f"{side}.embed_tokens",
        positions=f"{side}.embed_positions",
        embed_norm=f"{side}.layernorm_embedding" if embed_norm else None,
        attention_norm=f"{side}.layers.{{}}.self_attn_layer_norm",
        qkv=_projections(f"{side}.layers.{{}}.self_attn", "q_proj", "k_proj", "v_proj"),
        out=f"{side}.layers.{{}}.self_attn.out_proj",
        mlp_norm=f"{side}.layers.{{}}.final_layer_norm",
        up=(f"{side}.layers.{{}}.fc1",),
        down=f"{side}.layers.{{}}.fc2",
    )
    if side == "encoder":
        return names
    return replace(
        names,
        cross_norm="decoder.layers.{}.encoder_attn_layer_norm",
        cross_qkv=_projections("decoder.layers.{}.encoder_attn", "q_proj", "k_proj", "v_proj"),
        cross_out="decoder.layers.{}.encoder_attn.out_proj",
    )


def _t5_names(side: str, gated: bool) -> StackNames:
    last = 1 if side == "encoder" else 2
    mlp = f"{side}.block.{{}}.layer.{last}.DenseReluDense"
    names = StackNames(
        embed=f"{side}.embed_tokens",
        relative=f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        norm=f"{side}.final_layer_norm",
        attention_norm=f"{side}.block.{{}}.layer.0.layer_norm",
        qkv=_projections(f"{side}.block.{{}}.layer.0.SelfAttention", "q", "k", "v"),
        out=f"{side}.block.{{}}.layer.0.SelfAttention.o",
        mlp_norm=f"{side}.block.{{}}.layer.{last}.layer_norm",
        up=(f"{mlp}.wi_0", f"{mlp}.wi_1") if gated else (f"{mlp}.wi",),
        down=f"{mlp}.wo",
    )
    if side == "encoder":
        return names
    return replace(
        names,
        cross_norm="decoder.block.{}.layer.1.layer_norm",
        cross_qkv=_projections("decoder.block.{}.layer.1.EncDecAttention", "q", "k", "v"),
        cross_out="decoder.block.{}.layer.1.EncDecAttention.o",
    )


def _projections(module: str, q: str, k: str, v: str) -> tuple[str, str, str]:
    return f"{module}.{q}", f"{module}.{k}", f"{module}.{v}"


def describe_seq2seq(config: Config) -> Seq2SeqArchitecture:
    """The architecture of a checkpoint; a WeightsError names what is not supported."""
    kind = config.get("model_type")
    if kind not in SEQ2SEQ:
        raise WeightsError(f"model_type is {kind!r}: expected one of {', '.join(SEQ2SEQ)}")
    if config.get("quantization_config"):
        raise WeightsError(f"quantization_config is set in this {kind}, which is not supported")
    return SEQ2SEQ[kind](config)


def _bart(config: Config) -> Seq2SeqArchitecture:
    """Old files may ask for norms in other places; their models are other ones (BART's ancestors, mBART)."""
    for key, value in (("normalize_before", True), ("add_final_layer_norm", True), ("normalize_embedding", False)):
        if config.get(key) is value:
            raise WeightsError(f"{key} is {value} in this {config['model_type']}, which is not supported")
    return _with_table(config, embed_norm=True, first_position=2)


def _marian(config: Config) -> Seq2SeqArchitecture:
    for key, value in (("normalize_before", True), ("add_final_layer_norm", True), ("normalize_embedding", True)):
        if config.get(key) is value:
            raise WeightsError(f"{key} is {value} in this {config['model_type']}, which is not supported")
    return _with_table(config, embed_norm=False, sinusoidal=True)


def _with_table(config: Config, embed_norm: bool, **more: Any) -> Seq2SeqArchitecture:
    """What BART and Marian have in common."""
    d, V = number(config, "d_model"), number(config, "vocab_size")

    def stack(side: str, vocabulary: int) -> Stack:
        heads = number(config, f"{side}_attention_heads")
        layers, inner = number(config, f"{side}_layers"), number(config, f"{side}_ffn_dim")
        return Stack(_bart_names(side, embed_norm), layers, heads, d // heads, inner, vocabulary)

    return Seq2SeqArchitecture(
        family=config["model_type"],
        encoder=stack("encoder", V),
        decoder=stack("decoder", config.get("decoder_vocab_size") or V),
        d=d,
        norm="layer",
        eps=1e-5,
        activation=config.get("activation_function", "gelu"),
        norm_after=True,
        positions=config.get("max_position_embeddings", 1024),
        tied=config.get("tie_word_embeddings", True),
        embed_scale=d**0.5 if config.get("scale_embedding") else 1.0,
        prefix="model.",
        **more,
    )


def _t5(config: Config) -> Seq2SeqArchitecture:
    """T5 1.0 scales its output where 1.1, which says that nothing is tied, does not."""
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    return _t5_like(config, logit_scale=number(config, "d_model") ** -0.5 if scaled else 1.0)


def _t5_like(config: Config, **more: Any) -> Seq2SeqArchitecture:
    d, heads, V = (number(config, key) for key in ("d_model", "num_heads", "vocab_size"))
    gate, _, name = config.get("feed_forward_proj", "relu").rpartition("-")
    if gate not in ("", "gated"):
        raise WeightsError(
            f"feed_forward_proj is {config['feed_forward_proj']!r}: expected ACTIVATION or gated-ACTIVATION"
        )
    size, inner, layers = (number(config, key) for key in ("d_kv", "d_ff", "num_layers"))
    below = config.get("num_decoder_layers") or layers
    return Seq2SeqArchitecture(
        family=config["model_type"],
        encoder=Stack(_t5_names("encoder", bool(gate)), layers, heads, size, inner, V),
        decoder=Stack(_t5_names("decoder", bool(gate)), below, heads, size, inner, V),
        d=d,
        norm="rms",
        eps=config.get("layer_norm_epsilon", 1e-6),
        activation="gelu_new" if (gate, name) == ("gated", "gelu") else name,
        norm_after=False,
        positions=None,
        buckets=config.get("relative_attention_num_buckets", 32),
        distance=config.get("relative_attention_max_distance", 128),
        attention_scale=1.0,
        **more,
    )


SEQ2SEQ: dict[str, Callable[[Config], Seq2SeqArchitecture]] = {
    "bart": _bart,
    "marian": _marian,
    "t5": _t5,
    "mt5": _t5_like,
}
