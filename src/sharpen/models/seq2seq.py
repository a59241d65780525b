"""Encoder-decoder text models as a policy: the checkpoint's weights, run by one loop for all families.

The prompt goes through the encoder, and what every output begins with (the decoder's start token) is the root of the
tree. T5's relative positions do not keep a tree from being packed: how far a node is from one of its ancestors is how
many of its ancestors lie between, whatever columns they have.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.models.cache import TreeCache
from sharpen.models.encoder_decoder import EncoderDecoderPolicy, attend, split_heads
from sharpen.models.linears import Product
from sharpen.models.seq2seq_decoding import Decoding, decoding_of
from sharpen.models.seq2seq_families import Seq2SeqArchitecture, Stack, describe_seq2seq
from sharpen.models.seq2seq_weights import Seq2SeqLayer, Seq2SeqMatrices
from sharpen.models.states import PreparedSpeech

ENDLESS = 1 << 30  # positions of a decoder that knows only distances


class Seq2SeqPolicy(EncoderDecoderPolicy):
    """An encoder-decoder text model behind the calls of `method.policy.Policy`."""

    def __init__(
        self,
        architecture: Seq2SeqArchitecture,
        tensors: Mapping[str, Tensor],
        decoding: Decoding,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        a = self.architecture = architecture
        self.device, self.dtype, self.decoding = torch.device(device), dtype, decoding
        named = {"end": decoding.ends, "start": decoding.start, "suppressed": decoding.suppressed}
        for what, tokens in {**named, "first suppressed": decoding.suppressed_first}.items():
            if not all(0 <= token < a.decoder.vocabulary for token in tokens) or (what == "end" and not tokens):
                raise SharpenError(f"{what} tokens {list(tokens)}: expected some of the {a.decoder.vocabulary} tokens")
        self.heads, self.head_size = a.decoder.heads, a.decoder.head_size
        self.max_positions, self.encoder_layers = a.positions or ENDLESS, a.encoder.layers
        self.encoder_norm, self.last_norm = _last_norm(a.encoder), _last_norm(a.decoder)
        self._matrices = Seq2SeqMatrices(architecture, tensors, self.device, dtype)
        self._known, self._own = self._matrices.norms, {}
        self.eos, self.forbidden = self._ending(decoding.ends[0])

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        generation: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Seq2SeqPolicy:
        """From `config.json`, tensors under Hugging Face's names and, if there is one, `generation_config.json`."""
        return cls(describe_seq2seq(config), tensors, decoding_of(config, generation), **more)

    @property
    def _shared(self) -> Seq2SeqMatrices:
        return self._matrices

    def ending(self, eos: int) -> Seq2SeqPolicy:
        """The same model whose outputs end with this token; pi is without its other end tokens."""
        view = copy.copy(self)
        view.eos, view.forbidden = self._ending(eos)
        return view

    def _ending(self, eos: int) -> tuple[int, Tensor]:
        forbidden = torch.zeros(2, self.architecture.decoder.vocabulary, dtype=torch.bool, device=self.device)
        forbidden[:, [*self.decoding.suppressed, *(end for end in self.decoding.ends if end != eos)]] = True
        forbidden[1, list(self.decoding.suppressed_first)] = True  # row 0: later steps, row 1: the first step
        return eos, forbidden

    @torch.no_grad()
    def prepare(self, prompts: Sequence[Sequence[int]]) -> PreparedSpeech:
        """Prompts of one or more tokens each, embedded."""
        encoder, parts = self.architecture.encoder, []
        for b, prompt in enumerate(prompts):
            unknown = [token for token in prompt if not 0 <= token < encoder.vocabulary]
            if not prompt or unknown:
                raise SharpenError(
                    f"prompt {b} has "
                    + (f"the token {unknown[0]}" if unknown else "no tokens")
                    + f"; expected one or more of the {encoder.vocabulary} tokens"
                )
            if len(prompt) > self.max_positions:
                raise SharpenError(
                    f"prompt {b} has {len(prompt)} tokens; this {self.architecture.family} reads at most "
                    f"{self.max_positions}: shorten it"
                )
            positions = torch.arange(len(prompt), device=self.device)[None]
            stem = self._matrices.embed(encoder, torch.tensor([list(prompt)]), positions)
            parts.append(PreparedSpeech(stem, (self.decoding.start,), positions))
        return PreparedSpeech.join(parts)

    def _layers(self, prepared: PreparedSpeech, end: int) -> Tensor:
        stack, x, bias = self.architecture.encoder, prepared.stem, prepared.bias
        if prepared.layers == 0 and stack.names.embed_norm is not None:
            x = self._norm(stack.names.embed_norm, x)
        if "encoder" in self._matrices.relative:
            apart = prepared.frames[:, None, :] - prepared.frames[:, :, None]  # (B, S, S): behind is positive
            bias = self._relative("encoder", apart) + (0.0 if bias is None else bias)
        for i, layer in enumerate(self._matrices.encoder[prepared.layers : end], prepared.layers):
            x = self._self_attention(stack, i, layer, x, bias, None, None)
            x = self._mlp(stack, i, layer, x, None)
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
        stack, x = self.architecture.decoder, self._matrices.embed(self.architecture.decoder, tokens, positions)
        if stack.names.embed_norm is not None:
            x = self._norm(stack.names.embed_norm, x, rows)
        if "decoder" in self._matrices.relative:
            seen = (bias[:, 0] == 0).long()  # in the order of positions: what is seen after a column is between
            bias = bias + self._relative("decoder", seen - seen.flip(-1).cumsum(-1).flip(-1))
        for i, layer in enumerate(self._matrices.scoring if cache is None else self._matrices.searching):
            x = self._self_attention(stack, i, layer, x, bias, rows, cache)
            x = self._around(
                stack.names.cross_norm.format(i), x, partial(self._listen, layer, cross[i], frame_bias), rows
            )
            x = self._mlp(stack, i, layer, x, rows)
        return x

    def _self_attention(
        self,
        stack: Stack,
        i: int,
        layer: Seq2SeqLayer,
        x: Tensor,  # (b, n, d)
        bias: Tensor | None,
        rows: Tensor | None,
        cache: TreeCache | None,
    ) -> Tensor:
        def attended(y: Tensor) -> Tensor:
            q, k, v = split_heads(layer.qkv(y), 3, stack.heads)
            if cache is not None:
                k, v = cache.write(i, k, v)
            return layer.out(attend(q, k, v, bias, self.architecture.attention_scale))

        return self._around(stack.names.attention_norm.format(i), x, attended, rows)

    def _listen(
        self, layer: Seq2SeqLayer, cross: tuple[Tensor, Tensor], frame_bias: Tensor | None, y: Tensor
    ) -> Tensor:
        """Attention to the prompt."""
        assert layer.cross_query is not None
        assert layer.cross_out is not None
        (q,) = split_heads(layer.cross_query(y), 1, self.heads)
        return layer.cross_out(attend(q, *cross, frame_bias, self.architecture.attention_scale))

    def _mlp(self, stack: Stack, i: int, layer: Seq2SeqLayer, x: Tensor, rows: Tensor | None) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            y = layer.up(y)
            if len(stack.names.up) == 1:
                return layer.down(self._matrices.activation(y))
            gate, up = y.chunk(2, dim=-1)
            return layer.down(self._matrices.activation(gate) * up)

        return self._around(stack.names.mlp_norm.format(i), x, inner, rows)

    def _around(self, norm: str, x: Tensor, f: Product, rows: Tensor | None) -> Tensor:
        """A sum and its norm. The norm after the last sum is left to the caller, as `encoder_norm` or `last_norm`."""
        if not self.architecture.norm_after:
            return x + f(self._norm(norm, x, rows))
        x = x + f(x)
        return x if norm in (self.encoder_norm, self.last_norm) else self._norm(norm, x, rows)

    def _relative(self, side: str, apart: Tensor) -> Tensor:
        """The bias for distances (b, n, m), negative towards the past: -> (b, heads, n, m)."""
        a = self.architecture
        both = side == "encoder"
        half = a.buckets // 2 if both else a.buckets
        near = half // 2  # distances below it have a bucket each, the others share them by their logarithm
        far = apart.abs() if both else -apart.clamp(max=0)
        # In the order in which transformers rounds: 64 of 128 lies exactly between two buckets.
        share = torch.log(far.clamp(min=near).float() / near) / math.log(a.distance / near)
        shared = near + (share * (half - near)).long()
        bucket = torch.where(far < near, far, shared.clamp(max=half - 1)) + (half * (apart > 0) if both else 0)
        return self._matrices.relative[side][bucket].permute(0, 3, 1, 2)


def _last_norm(stack: Stack) -> str:
    """The norm that what a stack returns goes through last: a model with norms after sums has no other one."""
    return stack.names.norm or stack.names.mlp_norm.format(stack.layers - 1)
