"""Moonshine's weights as frozen dataclasses of tensors, which are views of the checkpoint's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from sharpen.models.weights.assemble import Taker
from sharpen.models.weights.moonshine import MoonshineDimensions
from sharpen.models.weights.stored import Stored
from sharpen.models.weights.tensors import Linear, Weight


@dataclass(frozen=True, eq=False)
class MoonshineStem:
    """Three convolutions, and a norm over time and features after the first."""

    weights: tuple[Tensor, Tensor, Tensor]  # (d, 1, 127), (2 d, d, 7), (d, 2 d, 3)
    biases: tuple[None, Tensor, Tensor]
    norm: tuple[Tensor, Tensor]  # weight and bias, (d,) each


@dataclass(frozen=True, eq=False)
class MoonshineLayer:
    norms: Mapping[str, Tensor]  # weights (d,) by name; they have no biases
    qkv: Linear  # queries, keys and values of self-attention
    out: Linear
    cross_query: Linear | None  # the decoder's attention to the encoder's states
    cross_kv: Linear | None
    cross_out: Linear | None
    fc1: Linear
    fc2: Linear


@dataclass(frozen=True, eq=False)
class MoonshineWeights:
    stem: MoonshineStem
    encoder: tuple[MoonshineLayer, ...]
    encoder_norm: Tensor
    tokens: Weight  # (V, d) the embedding, which is the output matrix too
    decoder: tuple[MoonshineLayer, ...]
    decoder_norm: Tensor


def assemble(dims: MoonshineDimensions, tensors: Mapping[str, Stored | Tensor], where: str) -> MoonshineWeights:
    """Every tensor in its place; WeightsError where one is missing, left over or of another shape."""
    take, d = Taker(tensors, where, "Moonshine"), dims.state
    enc = "model.encoder"
    weights = MoonshineWeights(
        stem=MoonshineStem(
            weights=(
                take(f"{enc}.conv1.weight", d, 1, 127),
                take(f"{enc}.conv2.weight", 2 * d, d, 7),
                take(f"{enc}.conv3.weight", d, 2 * d, 3),
            ),
            biases=(None, take(f"{enc}.conv2.bias", 2 * d), take(f"{enc}.conv3.bias", d)),
            norm=(take(f"{enc}.groupnorm.weight", d), take(f"{enc}.groupnorm.bias", d)),
        ),
        encoder=tuple(_layer(take, f"{enc}.layers.{i}", dims, cross=False) for i in range(dims.audio_layers)),
        encoder_norm=take(f"{enc}.layer_norm.weight", d),
        tokens=take.matrix("model.decoder.embed_tokens.weight", dims.vocab_size, d),
        decoder=tuple(_layer(take, f"model.decoder.layers.{i}", dims, cross=True) for i in range(dims.text_layers)),
        decoder_norm=take("model.decoder.norm.weight", d),
    )
    take.finish()
    return weights


def _layer(take: Taker, name: str, dims: MoonshineDimensions, cross: bool) -> MoonshineLayer:
    d = dims.state
    names = ("input_layernorm", "post_attention_layernorm", *(("final_layernorm",) if cross else ()))

    def attention(part: str, letters: str) -> Linear:
        weights = tuple(take.matrix(f"{name}.{part}.{letter}_proj.weight", d, d) for letter in letters)
        return Linear(weights, (None,) * len(letters))

    def linear(part: str, out: int, into: int) -> Linear:
        return Linear((take.matrix(f"{name}.mlp.{part}.weight", out, into),), (take(f"{name}.mlp.{part}.bias", out),))

    return MoonshineLayer(
        norms={norm: take(f"{name}.{norm}.weight", d) for norm in names},
        qkv=attention("self_attn", "qkv"),
        out=attention("self_attn", "o"),
        cross_query=attention("encoder_attn", "q") if cross else None,
        cross_kv=attention("encoder_attn", "kv") if cross else None,
        cross_out=attention("encoder_attn", "o") if cross else None,
        fc1=linear("fc1", dims.ffn * (2 if cross else 1), d),
        fc2=linear("fc2", d, dims.ffn),
    )
