"""Whisper as a policy: the checkpoint's weights, run by our own loop over the layers.

A stock implementation cannot do what the method needs: a cache that is only appended to while a tree grows, a tree mask
in one scoring pass, encoder states and cross-attention keys computed once per utterance whatever the number of
hypotheses, and norm parameters that differ between utterances. `adapted(norms)` gives a view of the same frozen weights
with other norms; the weights are never written.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.method.norms import Affine, Norm
from sharpen.method.tree import PackedTrees
from sharpen.models.cache import TreeCache, additive
from sharpen.models.linears import Layer, Matrices
from sharpen.models.padding import EVERY, condense
from sharpen.models.states import EncodedSpeech, PreparedSpeech, WhisperState
from sharpen.models.weights.checkpoint import Checkpoint


class WhisperPolicy:
    """A Whisper checkpoint behind the calls of `method.policy.Policy`."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.checkpoint, self.device, self.dtype = checkpoint, torch.device(device), dtype
        self.eos = checkpoint.tokenizer.eot
        self.heads = checkpoint.dimensions.text_heads
        self.max_positions = checkpoint.dimensions.text_ctx
        self._matrices = Matrices(checkpoint.weights, self.device, dtype)
        self._own: Mapping[str, Affine] = {}
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
    def vocabulary(self) -> Tensor:
        return self._matrices.vocabulary

    @property
    def seconds_per_frame(self) -> float:
        """How far two encoder frames are apart: frame n of a window is at n times this."""
        return 2 * self.checkpoint.mel.hop_length / self.checkpoint.mel.sampling_rate

    def mask(self, depths: Tensor) -> Tensor:
        return (depths == 0).long()

    def norms(self) -> list[Norm]:
        return list(self._matrices.norms.values())

    def adapted(self, norms: Mapping[str, Affine]) -> WhisperPolicy:
        view = copy.copy(self)
        view._own = {**self._own, **norms}
        return view

    def timestamped(self) -> WhisperPolicy:
        """The same weights with timestamp tokens allowed, for decoding with `TimestampRules`."""
        view = copy.copy(self)
        view.forbidden = self._with_timestamps
        return view

    def capacity(self, encoded: EncodedSpeech) -> list[int]:
        return [self.max_positions - len(prompt) + 1 for prompt in encoded.prompts]  # the last token is never fed back

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

    @torch.no_grad()
    def ahead(self, prepared: PreparedSpeech, norms: Collection[str]) -> PreparedSpeech:
        """The same utterances after the encoder's layers below the first of these norms."""
        names = self._matrices.norms
        first = min(
            (names[name].layer for name in norms if names[name].side == "encoder"), default=len(self._matrices.encoder)
        )
        if first <= prepared.layers:
            return prepared
        alone = [self._layers(prepared.select([b]), first) for b in range(len(prepared))]
        parts = [replace(prepared.select([b]), stem=x, layers=first) for b, x in enumerate(alone)]
        return PreparedSpeech.join(parts)

    def encode(self, prepared: PreparedSpeech) -> EncodedSpeech:
        """Every decoder layer's keys and values of the encoder's states.

        On a CPU one utterance after the other: one is enough to keep the products busy, and with one set of norms its
        backward pass is a fifth faster.
        """
        if len(prepared) == 1 or self.device.type != "cpu" or not self._own:
            return self._encode(prepared)
        alone = [self._row(b)._encode(prepared.select([b])) for b in range(len(prepared))]
        with torch.no_grad():  # scoring takes them one by one, with their gradient
            return EncodedSpeech.join(alone)

    def _row(self, b: int) -> WhisperPolicy:
        """A view with the norms of one utterance of the batch."""
        return self.adapted({name: own.row(b) for name, own in self._own.items()})

    def _encode(self, prepared: PreparedSpeech) -> EncodedSpeech:
        states = self.encoder_states(prepared)
        cross = []
        for keys_and_values in self._matrices.cross:
            k, v = _heads(keys_and_values(states), 2, self.heads)
            cross.append((k, v))
        return EncodedSpeech(tuple(cross), prepared.prompts, prepared.frames, prepared.bias)

    def encoder_states(self, prepared: PreparedSpeech) -> Tensor:
        """The encoder's output: (B, S, d)."""
        return self._norm("encoder.layer_norm", self._layers(prepared, len(self._matrices.encoder)))

    def _layers(self, prepared: PreparedSpeech, end: int) -> Tensor:
        """The encoder's layers up to `end`, without those that the stem went through already."""
        x = prepared.stem
        for i, layer in enumerate(self._matrices.encoder[prepared.layers : end], prepared.layers):
            name = f"encoder.layers.{i}"
            y = self._norm(f"{name}.self_attn_layer_norm", x)
            q, k, v = _heads(layer.qkv(y), 3, self.checkpoint.dimensions.audio_heads)
            x = x + layer.out(_attend(q, k, v, prepared.bias))
            x = x + layer.mlp(self._norm(f"{name}.final_layer_norm", x))
        return x

    def begin(self, encoded: EncodedSpeech) -> WhisperState:
        B, lengths = len(encoded.prompts), [len(prompt) for prompt in encoded.prompts]
        P = max(lengths)
        tokens = torch.zeros(B, P, dtype=torch.int64)
        visible = torch.zeros(B, P, P, dtype=torch.bool)
        visible |= torch.ones(P, P, dtype=torch.bool).tril()
        for b, prompt in enumerate(encoded.prompts):
            tokens[b, : len(prompt)] = torch.tensor(prompt)
        last = torch.tensor(lengths, device=self.device) - 1
        cache = TreeCache.empty(len(encoded.cross), B, self.heads, self._head_size, self.device, self.dtype)
        cache = cache.grown(visible.to(self.device))
        positions = torch.arange(P, device=self.device).expand(B, P)
        rows = torch.arange(B, device=self.device)
        hidden = self._decode(tokens.to(self.device), positions, cache, encoded.cross, encoded.bias, rows)  # (B, P, d)
        cache = cache.narrowed(last[:, None])  # the root is the last prompt position; padding behind it is never seen
        return WhisperState(hidden[rows, last][:, None], cache, encoded.cross, encoded.bias, last + 1, rows)

    def read(self, state: WhisperState, tokens: Tensor) -> WhisperState:
        """Appends tokens (B, n) to the prompts of a state that `begin` returned; the last one is the new root."""
        B, n = tokens.shape
        causal = torch.ones(n, n, dtype=torch.bool, device=self.device).tril()
        cache = state.cache.grown(causal.expand(B, n, n))
        positions = state.positions[:, None] + torch.arange(n, device=self.device)
        hidden = self._decode(tokens.to(self.device), positions, cache, state.cross, state.frame_bias, state.rows)
        root = torch.full((B, 1), n - 1, device=self.device)
        return replace(state, hidden=hidden[:, -1:], cache=cache.narrowed(root), positions=state.positions + n)

    def extend(self, state: WhisperState, parents: Tensor, tokens: Tensor) -> WhisperState:
        B, n = tokens.shape
        live = (parents[state.rows] >= 0).any(1)  # (b,)
        if 2 * int(live.sum()) <= len(live):  # an ended utterance costs as much as a live one until it is dropped
            keep = live.nonzero()[:, 0]
            state = replace(
                state,
                cache=state.cache.selected(keep),
                cross=tuple((k[keep], v[keep]) for k, v in state.cross),
                frame_bias=None if state.frame_bias is None else state.frame_bias[keep],
                positions=state.positions[keep],
                rows=state.rows[keep],
            )
        parents, tokens = parents[state.rows], tokens[state.rows]
        cache = state.cache.extended(parents)
        positions = state.positions[:, None].expand(-1, n)
        hidden = state.hidden.new_zeros(B, n, state.hidden.shape[-1])
        hidden[state.rows] = self._decode(tokens, positions, cache, state.cross, state.frame_bias, state.rows)
        return replace(state, hidden=hidden, cache=cache, positions=state.positions + 1)

    def score(self, encoded: EncodedSpeech, trees: PackedTrees) -> Tensor:
        """One pass over prompts and trees together; gradients flow to the norms and to the encoder.

        On a CPU one utterance after the other: trees differ in size, and a padded node costs as much as a real one.
        """
        B, N = trees.tokens.shape
        if B > 1 and self.device.type == "cpu":
            alone = encoded.alone or [encoded.select([b]) for b in range(B)]
            scored = [self._row(b).score(one, trees.alone(b)) for b, one in enumerate(alone)]
            return torch.cat([F.pad(hidden, (0, 0, 0, N - hidden.shape[1])) for hidden in scored])
        lengths = torch.tensor([len(prompt) for prompt in encoded.prompts], device=self.device)
        P = int(lengths.max()) - 1  # columns for the prompts without their last token, which is the root
        tokens = torch.cat([torch.zeros(B, P, dtype=torch.int64, device=self.device), trees.tokens], dim=1)
        real = torch.zeros(B, P, dtype=torch.bool, device=self.device)
        for b, prompt in enumerate(encoded.prompts):
            tokens[b, : len(prompt) - 1] = torch.tensor(prompt[:-1], dtype=torch.int64)
            tokens[b, P] = prompt[-1]
            real[b, : len(prompt) - 1] = True
        mask = torch.zeros(B, P + N, P + N, dtype=torch.bool, device=self.device)
        mask[:, :P, :P] = torch.ones(P, P, dtype=torch.bool, device=self.device).tril()
        mask[:, P:, :P] = real[:, None, :]
        mask[:, P:, P:] = trees.ancestors
        positions = torch.cat(
            [torch.arange(P, device=self.device).expand(B, P), trees.depths + (lengths - 1)[:, None]], dim=1
        ).clamp(max=self.max_positions - 1)  # only padding could lie beyond
        bias = additive(mask, self.dtype)
        rows = torch.arange(B, device=self.device)
        x = self._matrices.embed(tokens) + self._matrices.text_positions[positions]
        for i, layer in enumerate(self._matrices.scoring):
            x = self._decoder_layer(i, layer, x, bias, encoded.cross[i], encoded.bias, rows, None)
        return self._norm("decoder.layer_norm", x[:, P:], rows)

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
        scale: float = self._head_size**-0.5
        return torch.stack([q @ k.T for q, k in pairs]) * scale

    def project(self, hidden: Tensor) -> Tensor:
        return self._matrices.project(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the whole vocabulary, nothing forbidden, at least float32: (..., d) -> (..., V)."""
        z = self._matrices.project(hidden.reshape(-1, hidden.shape[-1]))
        return z.to(torch.promote_types(z.dtype, torch.float32)).view(*hidden.shape[:-1], -1)

    @property
    def _head_size(self) -> int:
        return self.checkpoint.dimensions.state // self.heads

    def _decode(
        self,
        tokens: Tensor,  # (b, n)
        positions: Tensor,  # (b, n)
        cache: TreeCache,
        cross: tuple[tuple[Tensor, Tensor], ...],
        frame_bias: Tensor | None,
        rows: Tensor,
    ) -> Tensor:
        """Runs new nodes through the decoder and puts their keys and values into the cache: -> (b, n, d)."""
        x = self._matrices.embed(tokens) + self._matrices.text_positions[positions]
        bias = additive(cache.visible[:, :, : cache.used], self.dtype)
        for i, layer in enumerate(self._matrices.searching):
            x = self._decoder_layer(i, layer, x, bias, cross[i], frame_bias, rows, cache)
        return self._norm("decoder.layer_norm", x, rows)

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
        q, k, v = _heads(layer.qkv(y), 3, self.heads)
        if cache is not None:
            k, v = cache.write(i, k, v)
        x = x + layer.out(_attend(q, k, v, bias))
        y = self._norm(f"{name}.encoder_attn_layer_norm", x, rows)
        (q,) = _heads(layer.cross_query(y), 1, self.heads)
        if queries is not None:
            queries.append(q)
        x = x + layer.cross_out(_attend(q, *cross, frame_bias))
        return x + layer.mlp(self._norm(f"{name}.final_layer_norm", x, rows))

    def _norm(self, name: str, x: Tensor, rows: Tensor | None = None) -> Tensor:
        own = self._own.get(name)
        everyone = own is None or rows is None or len(rows) == len(own.weight)  # they are always in order
        return self._matrices.norms[name].apply(x, own, None if everyone else rows)


def _heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Joined projections (B, n, parts * d) as `parts` tensors (B, heads, n, d/heads)."""
    B, n, _ = x.shape
    return tuple(part.transpose(1, 2) for part in x.view(B, n, parts, heads, -1).unbind(2))


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is not None:
        bias = bias.expand(-1, -1, q.shape[2], -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).flatten(2)  # (B, n, d)
