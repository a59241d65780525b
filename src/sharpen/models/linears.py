"""A checkpoint's weights ready to compute with: on one device, in one number format, each made when first needed.

A search without gradients needs packed matrices, scoring needs plain ones, and plain transcription never scores: so
neither is made before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.method.norms import Norm, Side
from sharpen.models.weights.quantised import Quantised
from sharpen.models.weights.tensors import (
    DecoderWeights,
    EncoderWeights,
    LayerNorm,
    LayerWeights,
    Linear,
    Weight,
    WhisperWeights,
    numbers,
)
from sharpen.products import PackedLinear, linear, packs

EPS = 1e-5  # of every norm in Whisper
Product = Callable[[Tensor], Tensor]  # (..., in) -> (..., out)
Make = Callable[[Tensor, Tensor | None], Product]  # of a weight and a bias


@dataclass(frozen=True)
class Layer:
    """The products of one layer of the encoder or the decoder."""

    qkv: Product  # queries, keys and values of self-attention, one behind the other
    out: Product
    cross_query: Product | None  # the decoder's attention to the encoder's states
    cross_out: Product | None
    fc1: Product
    fc2: Product

    def mlp(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    """A product that carries gradients to its rows."""
    return partial(linear, weight=weight, bias=bias)


class Converter:
    """Weights of a file to tensors of one device and number format."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise TypeError(f"expected a floating point dtype, got {dtype}")
        self.device, self.dtype = device, dtype

    def _lookup(self, table: Weight, tokens: Tensor) -> Tensor:
        """Some rows of a table in the file: (...) int64 -> (..., d)."""
        rows = table.lines(tokens) if isinstance(table, Quantised) else table[tokens]
        return rows.to(self.dtype)

    def _product(self, linear: Linear, make: Make) -> Product:
        biases = [
            torch.zeros(weight.shape[0]) if bias is None else bias
            for weight, bias in zip(linear.weights, linear.biases, strict=True)
        ]
        return make(self._cast(*linear.weights), self._cast(*biases))

    def _cast(self, *parts: Weight) -> Tensor:
        """The parts one below the other in memory of torch's own: products round by how memory is aligned."""
        with torch.inference_mode(False):  # a tensor made inside of it could never take part in a gradient
            rows = sum(part.shape[0] for part in parts)
            whole = torch.empty(rows, *parts[0].shape[1:], device=self.device, dtype=self.dtype)
            start = 0
            for part in parts:
                end = start + part.shape[0]
                whole[start:end].copy_(numbers(part).detach())  # of a module they may be trainable
                start = end
            return whole


class Matrices(Converter):
    """Whisper's, shared by all views of a policy; nothing in it is ever written after it was made."""

    def __init__(self, weights: WhisperWeights, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.weights = weights
        self.norms = {norm.name: norm for norm in self._list_norms()}  # in the order the input meets them

    @cached_property
    def convolutions(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The weight and the bias of each."""
        one, two = self.weights.encoder.conv1, self.weights.encoder.conv2
        return (self._cast(one.weight), self._cast(one.bias)), (self._cast(two.weight), self._cast(two.bias))

    @cached_property
    def audio_positions(self) -> Tensor:
        return self._cast(self.weights.encoder.positions)  # (1500, d)

    @cached_property
    def text_positions(self) -> Tensor:
        return self._cast(self.weights.decoder.positions)  # (448, d)

    @cached_property
    def encoder(self) -> Sequence[Layer]:
        return [self._layer(layer, plain) for layer in self.weights.encoder.layers]

    @cached_property
    def cross(self) -> Sequence[Product]:
        """What makes each decoder layer's keys and values from the encoder's states."""
        crosses = [layer.cross for layer in self.weights.decoder.layers]
        return [self._product(cross.kv, plain) for cross in crosses if cross is not None]

    @cached_property
    def scoring(self) -> Sequence[Layer]:
        """The decoder for rows with gradients."""
        return [self._layer(layer, plain) for layer in self.weights.decoder.layers]

    @cached_property
    def searching(self) -> Sequence[Layer]:
        """The decoder for rows without."""
        if not packs(self.device, self.dtype):
            return self.scoring
        return [self._layer(layer, PackedLinear) for layer in self.weights.decoder.layers]

    @cached_property
    def vocabulary(self) -> Tensor:
        """The output matrix W: (V, d)."""
        return self._cast(self.weights.decoder.tokens)

    @cached_property
    def project(self) -> Product:
        """h W^T for rows without gradients."""
        if not packs(self.device, self.dtype):
            return plain(self.vocabulary, None)
        return PackedLinear(self._cast(self.weights.decoder.tokens))

    def embed(self, tokens: Tensor) -> Tensor:
        """(...) int64 -> (..., d). On a CPU the file's own rows are looked up: no other copy is needed for a few."""
        return self._lookup(self.weights.decoder.tokens if self.device.type == "cpu" else self.vocabulary, tokens)

    def _list_norms(self) -> Iterator[Norm]:
        sides: dict[Side, EncoderWeights | DecoderWeights] = {
            "encoder": self.weights.encoder,
            "decoder": self.weights.decoder,
        }
        for side, stack in sides.items():
            for i, layer in enumerate(stack.layers):
                name = f"{side}.layers.{i}"
                yield self._norm(f"{name}.self_attn_layer_norm", side, i, layer.attention.norm)
                if layer.cross is not None:
                    yield self._norm(f"{name}.encoder_attn_layer_norm", side, i, layer.cross.norm)
                yield self._norm(f"{name}.final_layer_norm", side, i, layer.norm)
            yield self._norm(f"{side}.layer_norm", side, len(stack.layers), stack.norm)

    def _norm(self, name: str, side: Side, layer: int, stored: LayerNorm) -> Norm:
        return Norm(name, side, "layer", EPS, self._cast(stored.weight), self._cast(stored.bias), layer)

    def _layer(self, layer: LayerWeights, make: Make) -> Layer:
        cross = layer.cross
        return Layer(
            qkv=self._product(layer.attention.qkv, make),
            out=self._product(layer.attention.out, make),
            cross_query=None if cross is None else self._product(cross.query, make),
            cross_out=None if cross is None else self._product(cross.out, make),
            fc1=self._product(layer.fc1, make),
            fc2=self._product(layer.fc2, make),
        )
