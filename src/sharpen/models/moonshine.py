"""Moonshine as a policy: an encoder-decoder with rotary positions that takes audio of any length, without padding.

Its stem normalises over time, so it is computed for each utterance alone; a batch fills the frames up after it, and the
filling is masked. The norms have weights and no biases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.norms import Norm, Side
from sharpen.models.cache import TreeCache
from sharpen.models.encoder_decoder import EncoderDecoderPolicy, attend, split_heads
from sharpen.models.linears import Converter, Make, Product, plain
from sharpen.models.states import PreparedSpeech
from sharpen.models.weights.moonshine import MoonshineCheckpoint
from sharpen.models.weights.moonshine_tensors import MoonshineLayer, MoonshineWeights
from sharpen.products import PackedLinear, packs

EPS = 1e-5  # of every norm
HOP = 64 * 3 * 2  # samples from one encoder frame to the next: the strides of the convolutions
SHORTEST = 127 + 64 * (7 + 3 * (3 - 1) - 1)  # samples that make one frame


class MoonshinePolicy(EncoderDecoderPolicy):
    """A Moonshine checkpoint behind the calls of `method.policy.Policy`."""

    def __init__(
        self, checkpoint: MoonshineCheckpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        dims, tokenizer = checkpoint.dimensions, checkpoint.tokenizer
        self.checkpoint, self.device, self.dtype = checkpoint, torch.device(device), dtype
        self.eos, self.heads, self.head_size = tokenizer.eos, dims.text_heads, dims.state // dims.text_heads
        self.max_positions, self.encoder_layers, self.last_norm = dims.text_ctx, dims.audio_layers, "decoder.norm"
        self._matrices = MoonshineMatrices(checkpoint.weights, self.device, dtype)
        self._known, self._own = self._matrices.norms, {}
        allowed = torch.from_numpy(tokenizer.text.copy())
        allowed[self.eos] = True  # also at once: there is no other way to say that nobody speaks
        self.forbidden = ~allowed[None].to(self.device)  # (1, V)
        self._angles = torch.arange(0, dims.rotated, 2, dtype=torch.float32) / dims.rotated
        self._angles = (1.0 / dims.theta**self._angles).to(self.device)  # (rotated / 2,)

    @property
    def _shared(self) -> MoonshineMatrices:
        return self._matrices

    @property
    def seconds_per_frame(self) -> float:
        return HOP / self.checkpoint.sampling_rate

    def mask(self, depths: Tensor) -> Tensor:
        return torch.zeros_like(depths)

    @torch.no_grad()
    def prepare(self, windows: Sequence[Tensor], prompts: Sequence[Sequence[int]]) -> PreparedSpeech:
        """The convolutions, which no adaptation changes: B windows of samples -> (B, S, d)."""
        parts = []
        for samples, prompt in zip(windows, prompts, strict=True):
            if len(samples) < SHORTEST:
                samples = F.pad(samples, (0, SHORTEST - len(samples)))
            stem = self._stem(samples.to(self.device, self.dtype)[None, None])  # (1, S, d)
            frames = torch.arange(stem.shape[1], device=self.device)[None]
            parts.append(PreparedSpeech(stem, (tuple(prompt),), frames))
        if not parts:
            raise SharpenError("no windows to prepare; expected at least one")
        return PreparedSpeech.join(parts)

    def _stem(self, x: Tensor) -> Tensor:
        """(1, 1, samples) -> (1, S, d)."""
        (w1, _), (w2, b2), (w3, b3) = self._matrices.convolutions
        x = F.conv1d(x, w1, stride=64).tanh()
        x = F.group_norm(x, 1, *self._matrices.stem_norm, eps=EPS)
        x = F.gelu(F.conv1d(x, w2, b2, stride=3))
        return F.gelu(F.conv1d(x, w3, b3, stride=2)).transpose(1, 2)

    def _layers(self, prepared: PreparedSpeech, end: int) -> Tensor:
        x, turn = prepared.stem, self._rotation(prepared.frames)
        for i, layer in enumerate(self._matrices.encoder[prepared.layers : end], prepared.layers):
            name = f"encoder.layers.{i}"
            q, k, v = split_heads(layer.qkv(self._norm(f"{name}.input_layernorm", x)), 3, self.heads)
            x = x + layer.out(attend(turn(q), turn(k), v, prepared.bias))
            x = x + layer.fc2(F.gelu(layer.fc1(self._norm(f"{name}.post_attention_layernorm", x))))
        return x

    def _decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        bias: Tensor,
        cross: Sequence[tuple[Tensor, Tensor]],
        frame_bias: Tensor | None,
        rows: Tensor,
        cache: TreeCache | None,
    ) -> Tensor:
        x, turn = self._matrices.embed(tokens), self._rotation(positions)
        for i, layer in enumerate(self._matrices.scoring if cache is None else self._matrices.searching):
            assert layer.cross_query is not None
            assert layer.cross_out is not None
            name = f"decoder.layers.{i}"
            q, k, v = split_heads(layer.qkv(self._norm(f"{name}.input_layernorm", x, rows)), 3, self.heads)
            q, k = turn(q), turn(k)
            if cache is not None:
                k, v = cache.write(i, k, v)
            x = x + layer.out(attend(q, k, v, bias))
            y = self._norm(f"{name}.post_attention_layernorm", x, rows)
            (q,) = split_heads(layer.cross_query(y), 1, self.heads)
            x = x + layer.cross_out(attend(q, *cross[i], frame_bias))
            value, gate = layer.fc1(self._norm(f"{name}.final_layernorm", x, rows)).chunk(2, dim=-1)
            x = x + layer.fc2(F.silu(gate) * value)
        return x

    def _rotation(self, positions: Tensor) -> Rotation:
        """By position (B, n): the same for all layers."""
        angles = positions[..., None].float() * self._angles  # (B, n, rotated / 2)
        return Rotation(angles.cos()[:, None].to(self.dtype), angles.sin()[:, None].to(self.dtype))


@dataclass(frozen=True, eq=False)
class Rotation:
    """Turns neighbouring pairs of the first features of each head by an angle for each position."""

    cos: Tensor  # (B, 1, n, rotated / 2)
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(B, heads, n, d/heads) -> the same shape."""
        rotated = 2 * self.cos.shape[-1]
        a, b = x[..., :rotated:2], x[..., 1:rotated:2]
        pairs = torch.stack([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1)
        return torch.cat([pairs.flatten(-2), x[..., rotated:]], dim=-1)


@dataclass(frozen=True)
class MoonshineProducts:
    """The products of one layer of the encoder or the decoder."""

    qkv: Product
    out: Product
    cross_query: Product | None
    cross_out: Product | None
    fc1: Product
    fc2: Product


class MoonshineMatrices(Converter):
    """Shared by all views of a policy, each made when first needed and never written after."""

    def __init__(self, weights: MoonshineWeights, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.weights = weights
        self.norms: Mapping[str, Norm] = {norm.name: norm for norm in self._list_norms()}

    @cached_property
    def convolutions(self) -> list[tuple[Tensor, Tensor | None]]:
        pairs = zip(self.weights.stem.weights, self.weights.stem.biases, strict=True)
        return [(self._cast(weight), None if bias is None else self._cast(bias)) for weight, bias in pairs]

    @cached_property
    def stem_norm(self) -> tuple[Tensor, Tensor]:
        weight, bias = self.weights.stem.norm
        return self._cast(weight), self._cast(bias)

    @cached_property
    def encoder(self) -> Sequence[MoonshineProducts]:
        return [self._products(layer, plain) for layer in self.weights.encoder]

    @cached_property
    def cross(self) -> Sequence[Product]:
        """What makes each decoder layer's keys and values from the encoder's states."""
        return [self._product(layer.cross_kv, plain) for layer in self.weights.decoder if layer.cross_kv is not None]

    @cached_property
    def scoring(self) -> Sequence[MoonshineProducts]:
        """The decoder for rows with gradients."""
        return [self._products(layer, plain) for layer in self.weights.decoder]

    @cached_property
    def searching(self) -> Sequence[MoonshineProducts]:
        """The decoder for rows without."""
        if not packs(self.device, self.dtype):
            return self.scoring
        return [self._products(layer, PackedLinear) for layer in self.weights.decoder]

    @cached_property
    def vocabulary(self) -> Tensor:
        return self._cast(self.weights.tokens)

    @cached_property
    def project(self) -> Product:
        if not packs(self.device, self.dtype):
            return plain(self.vocabulary, None)
        return PackedLinear(self._cast(self.weights.tokens))

    def embed(self, tokens: Tensor) -> Tensor:
        return self._lookup(self.weights.tokens if self.device.type == "cpu" else self.vocabulary, tokens)

    def _products(self, layer: MoonshineLayer, make: Make) -> MoonshineProducts:
        query, out = layer.cross_query, layer.cross_out
        return MoonshineProducts(
            qkv=self._product(layer.qkv, make),
            out=self._product(layer.out, make),
            cross_query=None if query is None else self._product(query, make),
            cross_out=None if out is None else self._product(out, make),
            fc1=self._product(layer.fc1, make),
            fc2=self._product(layer.fc2, make),
        )

    def _list_norms(self) -> Iterator[Norm]:
        sides: dict[Side, tuple[tuple[MoonshineLayer, ...], str, Tensor]] = {
            "encoder": (self.weights.encoder, "layer_norm", self.weights.encoder_norm),
            "decoder": (self.weights.decoder, "norm", self.weights.decoder_norm),
        }
        for side, (layers, last, weight) in sides.items():
            for i, layer in enumerate(layers):
                for name, own in layer.norms.items():
                    yield Norm(f"{side}.layers.{i}.{name}", side, "layer", EPS, self._cast(own), None, i)
            yield Norm(f"{side}.{last}", side, "layer", EPS, self._cast(weight), None, len(layers))
