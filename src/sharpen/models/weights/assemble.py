"""From the tensors of a file, by their Hugging Face names, to `WhisperWeights`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions
from sharpen.models.weights.quantised import Quantised
from sharpen.models.weights.stored import FLOATS, Stored
from sharpen.models.weights.tensors import (
    Convolution,
    CrossAttention,
    DecoderWeights,
    EncoderWeights,
    LayerNorm,
    LayerWeights,
    Linear,
    SelfAttention,
    Weight,
    WhisperWeights,
    numbers,
)


def assemble(dims: Dimensions, tensors: Mapping[str, Stored | Tensor], where: str) -> WhisperWeights:
    """Every tensor in its place; WeightsError where one is missing, left over, of another shape or of whole numbers."""
    take = Taker(tensors, where, "Whisper")
    d = dims.state
    weights = WhisperWeights(
        EncoderWeights(
            conv1=_convolution(take, "model.encoder.conv1", d, dims.n_mels),
            conv2=_convolution(take, "model.encoder.conv2", d, d),
            positions=take("model.encoder.embed_positions.weight", dims.audio_ctx, d),
            layers=tuple(
                _layer(take, f"model.encoder.layers.{i}", d, dims.audio_ffn, cross=False)
                for i in range(dims.audio_layers)
            ),
            norm=_norm(take, "model.encoder.layer_norm", d),
        ),
        DecoderWeights(
            tokens=take.matrix("model.decoder.embed_tokens.weight", dims.vocab_size, d),
            positions=take("model.decoder.embed_positions.weight", dims.text_ctx, d),
            layers=tuple(
                _layer(take, f"model.decoder.layers.{i}", d, dims.text_ffn, cross=True) for i in range(dims.text_layers)
            ),
            norm=_norm(take, "model.decoder.layer_norm", d),
        ),
    )
    take.finish()
    return weights


class Taker:
    """Takes the tensors of a kind of model out of a mapping one by one and checks them."""

    def __init__(self, tensors: Mapping[str, Stored | Tensor], where: str, kind: str) -> None:
        self.left, self.where, self.kind = dict(tensors), where, kind
        self.missing: list[str] = []

    def __call__(self, name: str, *shape: int) -> Tensor:
        return numbers(self.matrix(name, *shape))

    def matrix(self, name: str, *shape: int) -> Weight:
        """As it is in the file, also where it is quantised."""
        tensor = self.left.pop(name, None)
        if tensor is None:
            self.missing.append(name)
            return torch.empty(shape, device="meta")  # `finish` raises
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{self.where}: {name} has shape {tuple(tensor.shape)}, expected {shape}; {GET_AGAIN}")
        if isinstance(tensor, Quantised):
            return tensor
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in FLOATS:
            raise WeightsError(f"{self.where}: {name} is {dtype}, expected one of {', '.join(FLOATS)}")
        return tensor.tensor() if isinstance(tensor, Stored) else tensor.detach()

    def finish(self) -> None:
        if self.missing:
            raise WeightsError(
                f"{self.where}: {len(self.missing)} tensors are missing, such as {self.missing[0]}; {GET_AGAIN}"
            )
        if self.left:
            raise WeightsError(
                f"{self.where}: {len(self.left)} tensors are not part of {self.kind}, such as {min(self.left)}"
            )


def _norm(take: Taker, name: str, d: int) -> LayerNorm:
    return LayerNorm(take(f"{name}.weight", d), take(f"{name}.bias", d))


def _convolution(take: Taker, name: str, out: int, into: int) -> Convolution:
    return Convolution(take.matrix(f"{name}.weight", out, into, 3), take(f"{name}.bias", out))


def _linear(take: Taker, name: str, out: int, into: int) -> Linear:
    return Linear((take.matrix(f"{name}.weight", out, into),), (take(f"{name}.bias", out),))


def _projections(take: Taker, name: str, letters: str, d: int) -> Linear:
    return Linear(
        tuple(take.matrix(f"{name}.{letter}_proj.weight", d, d) for letter in letters),
        tuple(None if letter == "k" else take(f"{name}.{letter}_proj.bias", d) for letter in letters),
    )


def _layer(take: Taker, name: str, d: int, ffn: int, cross: bool) -> LayerWeights:
    own, other = f"{name}.self_attn", f"{name}.encoder_attn"
    return LayerWeights(
        SelfAttention(
            norm=_norm(take, f"{own}_layer_norm", d),
            qkv=_projections(take, own, "qkv", d),
            out=_linear(take, f"{own}.out_proj", d, d),
        ),
        CrossAttention(
            norm=_norm(take, f"{other}_layer_norm", d),
            query=_projections(take, other, "q", d),
            kv=_projections(take, other, "kv", d),
            out=_linear(take, f"{other}.out_proj", d, d),
        )
        if cross
        else None,
        norm=_norm(take, f"{name}.final_layer_norm", d),
        fc1=_linear(take, f"{name}.fc1", ffn, d),
        fc2=_linear(take, f"{name}.fc2", d, ffn),
    )
