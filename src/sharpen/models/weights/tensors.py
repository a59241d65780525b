"""Whisper's weights as frozen dataclasses of tensors.

The tensors are views of the checkpoint's file, mapped into memory and in its number format: nothing is copied or
converted here, and the matrices of a quantised file keep its few bits a number. Never write to one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sharpen.models.weights.quantised import Quantised

Weight = Tensor | Quantised


def numbers(weight: Weight) -> Tensor:
    """The numbers of a weight: a view of the file, or float32 where it is quantised."""
    return weight.tensor() if isinstance(weight, Quantised) else weight


@dataclass(frozen=True, eq=False)
class LayerNorm:
    weight: Tensor  # (d,)
    bias: Tensor  # (d,)


@dataclass(frozen=True, eq=False)
class Convolution:
    weight: Weight  # (out, in, 3)
    bias: Tensor  # (out,)


@dataclass(frozen=True, eq=False)
class Linear:
    """x W^T + b, for a matrix whose rows may come in parts: most formats store queries, keys and values apart."""

    weights: tuple[Weight, ...]  # (out, in) each, one below the other
    biases: tuple[Tensor | None, ...]  # (out,) each; None where there is none: Whisper's keys


@dataclass(frozen=True, eq=False)
class SelfAttention:
    norm: LayerNorm
    qkv: Linear  # queries, keys and values: (3 d, d)
    out: Linear


@dataclass(frozen=True, eq=False)
class CrossAttention:
    """The decoder's attention to the encoder's states."""

    norm: LayerNorm
    query: Linear
    kv: Linear  # keys and values, of the states: (2 d, d)
    out: Linear


@dataclass(frozen=True, eq=False)
class LayerWeights:
    attention: SelfAttention
    cross: CrossAttention | None  # the decoder's layers have one
    norm: LayerNorm  # before the two linear layers
    fc1: Linear
    fc2: Linear


@dataclass(frozen=True, eq=False)
class EncoderWeights:
    conv1: Convolution
    conv2: Convolution
    positions: Tensor  # (1500, d)
    layers: tuple[LayerWeights, ...]
    norm: LayerNorm


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    tokens: Weight  # (V, d) the embedding, which is the output matrix too
    positions: Tensor  # (448, d)
    layers: tuple[LayerWeights, ...]
    norm: LayerNorm


@dataclass(frozen=True, eq=False)
class WhisperWeights:
    encoder: EncoderWeights
    decoder: DecoderWeights
