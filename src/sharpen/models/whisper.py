"""Whisper as a policy: the checkpoint's weights, run by our own loop over the layers.

A stock implementation cannot do what the method needs: a cache that is only appended to while a tree grows, a tree mask
in one scoring pass, encoder states and cross-attention keys computed once per utterance whatever the number of
hypotheses, and norm parameters that differ between utterances. `adapted(norms)` gives a view of the same frozen weights
with other norms; the weights are never written.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.models.cache import TreeCache, additive
from sharpen.models.encoder_decoder import EncoderDecoderPolicy, attend, split_heads
from sharpen.models.linears import Layer, Matrices
from sharpen.models.padding import EVERY, condense
from sharpen.models.states import EncodedSpeech, PreparedSpeech
from sharpen.models.weights.checkpoint import Checkpoint


class WhisperPolicy(EncoderDecoderPolicy):
    """A Whisper checkpoint behind the calls of `method.policy.Policy`."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.checkpoint, self.device, self.dtype = checkpoint, torch.device(device), dtype
        self.eos = checkpoint.tokenizer.eot
        self.heads = checkpoint.dimensions.text_heads
        self.head_size = checkpoint.dimensions.state // self.heads
        self.max_positions = checkpoint.dimensions.text_ctx
        self._matrices = Matrices(checkpoint.weights, self.device, dtype)
        self._known, self._own, self.last_norm = self._matrices.norms, {}, "decoder.layer_norm"
        self.encoder_layers = checkpoint.dimensions.audio_layers
        tokenizer = checkpoint.tokenizer
        allowed = torch.from_numpy(tokenizer.text_mask())
        allowed[tokenizer.timestamp_begin : tokenizer.timestamp_end] = True
        allowed[self.eos] = True
        forbidden = ~torch.stack([allowed, allowed])  # row 0: later steps, row 1: the first step
        forbidden[:, list(checkpoint.suppress)] = True
        forbidden[1, list(checkpoint.suppress_first)] = True
        self._with_timestamps = forbidden.to(self.device)
        self.forbidden = self._with_timestamps.clone()
        self.forbidden[:, tokenizer.timestamp_begin : tokenizer.timestamp_end] = True

    @property
    def _shared(self) -> Matrices:
        return self._matrices

    @property
    def seconds_per_frame(self) -> float:
        """How far two encoder frames are apart: frame n of a window is at n times this."""
        return 2 * self.checkpoint.mel.hop_length / self.checkpoint.mel.sampling_rate

    def timestamped(self) -> WhisperPolicy:
        """The same weights with timestamp tokens allowed, for decoding with `TimestampRules`."""
        view = copy.copy(self)
        view.forbidden = self._with_timestamps
        return view

    @torch.no_grad()
    def prepare(
        self,
        features: Tensor,
        prompts: Sequence[Sequence[int]],
        speech: Sequence[int] | None = None,
        every: int = EVERY["condensed"],
    ) -> PreparedSpeech:
        """The convolutions and positions, which no adaptation changes: (B, mels, 3000) -> (B, S, d).

        With `speech`, the number of feature frames of each utterance that are not padding, the padding is condensed:
        one frame stands for `every`.
        """
        conv1, conv2 = self._matrices.convolutions
        x = F.gelu(F.conv1d(features.to(self.device, self.dtype), *conv1, padding=1))
        x = F.gelu(F.conv1d(x, *conv2, stride=2, padding=1)).transpose(1, 2)
        stem = x + self._matrices.audio_positions[: x.shape[1]]
        own = tuple(tuple(prompt) for prompt in prompts)
        if speech is None:
            return PreparedSpeech(stem, own, torch.arange(stem.shape[1], device=self.device).repeat(len(stem), 1))
        kept = condense([-(-frames // 2) for frames in speech], stem.shape[1], every)  # a convolution halves them
        bias = kept.bias.to(self.device, self.dtype)[:, None, None]
        return PreparedSpeech(kept.of(stem), own, kept.frames.to(self.device), bias)

    def _layers(self, prepared: PreparedSpeech, end: int) -> Tensor:
        x = prepared.stem
        for i, layer in enumerate(self._matrices.encoder[prepared.layers : end], prepared.layers):
            name = f"encoder.layers.{i}"
            y = self._norm(f"{name}.self_attn_layer_norm", x)
            q, k, v = split_heads(layer.qkv(y), 3, self.checkpoint.dimensions.audio_heads)
            x = x + layer.out(attend(q, k, v, prepared.bias))
            x = x + layer.mlp(self._norm(f"{name}.final_layer_norm", x))
        return x

    @torch.no_grad()
    def cross_attention(
        self, encoded: EncodedSpeech, b: int, tokens: Sequence[int], heads: Sequence[tuple[int, int]]
    ) -> Tensor:
        """The attention of some heads, (layer, head) each, from `tokens` to the frames of utterance b.

        Logits, before the softmax over the frames and without their bias, at least float32: (heads, n, S).
        """
        one, view, n = encoded.select([b]), self._row(b), len(tokens)
        positions = torch.arange(n, device=self.device).clamp(max=self.max_positions - 1)  # EOS may lie beyond
        x = self._matrices.embed(torch.tensor([tokens], device=self.device)) + self._matrices.text_positions[positions]
        bias = additive(torch.ones(1, n, n, dtype=torch.bool, device=self.device).tril(), self.dtype)
        row, queries = torch.zeros(1, dtype=torch.int64, device=self.device), list[Tensor]()
        for i, layer in enumerate(self._matrices.searching[: 1 + max(layer for layer, _ in heads)]):
            x = view._decoder_layer(i, layer, x, bias, one.cross[i], one.bias, row, None, queries)
        wide = torch.promote_types(self.dtype, torch.float32)
        pairs = [(queries[i][0, h].to(wide), one.cross[i][0][0, h].to(wide)) for i, h in heads]
        scale: float = self.head_size**-0.5
        return torch.stack([q @ k.T for q, k in pairs]) * scale

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
        x = self._matrices.embed(tokens) + self._matrices.text_positions[positions]
        for i, layer in enumerate(self._matrices.scoring if cache is None else self._matrices.searching):
            x = self._decoder_layer(i, layer, x, bias, cross[i], frame_bias, rows, cache)
        return x

    def _decoder_layer(
        self,
        i: int,
        layer: Layer,
        x: Tensor,  # (b, n, d)
        bias: Tensor,  # (b, 1, n, m): which nodes a node sees
        cross: tuple[Tensor, Tensor],
        frame_bias: Tensor | None,
        rows: Tensor,
        cache: TreeCache | None,
        queries: list[Tensor] | None = None,  # gets those of the attention to the frames, (b, heads, n, d/heads)
    ) -> Tensor:
        name = f"decoder.layers.{i}"
        assert layer.cross_query is not None
        assert layer.cross_out is not None
        y = self._norm(f"{name}.self_attn_layer_norm", x, rows)
        q, k, v = split_heads(layer.qkv(y), 3, self.heads)
        if cache is not None:
            k, v = cache.write(i, k, v)
        x = x + layer.out(attend(q, k, v, bias))
        y = self._norm(f"{name}.encoder_attn_layer_norm", x, rows)
        (q,) = split_heads(layer.cross_query(y), 1, self.heads)
        if queries is not None:
            queries.append(q)
        x = x + layer.cross_out(attend(q, *cross, frame_bias))
        return x + layer.mlp(self._norm(f"{name}.final_layer_norm", x, rows))
