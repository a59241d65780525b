"""Whisper as a policy: the checkpoint's weights, run by our own loop over the layers.

The loop exists because the stock modules cannot do what the method needs: a cache that is only appended to while a
tree grows, a tree mask in one scoring pass, encoder states and cross-attention keys computed once per utterance
whatever the number of hypotheses, and norm parameters that differ from utterance to utterance.
`adapted(norms)` gives a view of the same frozen weights with other norms; nothing is ever written to the model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sharpen.method.norms import Affine, Norm, Side
from sharpen.method.tree import PackedTrees
from sharpen.models import linears
from sharpen.models.cache import TreeCache
from sharpen.models.linears import Layer
from sharpen.models.packed import PackedLinear
from sharpen.models.padding import EVERY, condense
from sharpen.models.states import Encoded, Prepared, WhisperState
from sharpen.models.weights.checkpoint import Checkpoint


class WhisperPolicy:
    """Answers the calls of `method.policy.Policy` with a Whisper checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.model: Any = checkpoint.model  # transformers' classes carry no types
        config = self.model.config
        self.eos = checkpoint.tokenizer.eot
        self.heads = int(config.decoder_attention_heads)
        self.encoder_heads = int(config.encoder_attention_heads)
        self.max_positions = int(config.max_target_positions)
        self._norms = {norm.name: norm for norm in _list_norms(self.model.model)}
        encoder, decoder = self.model.model.encoder, self.model.model.decoder
        self._encoder = [linears.layer(module) for module in encoder.layers]
        self._scoring = [linears.layer(module) for module in decoder.layers]  # with gradients
        self._searching = [linears.packed(module) for module in decoder.layers]  # without
        self._project = PackedLinear(self.vocabulary)
        self._own: Mapping[str, Affine] = {}
        words = checkpoint.tokenizer
        written = [words.is_text(t) or words.is_timestamp(t) or t == self.eos for t in range(config.vocab_size)]
        forbidden = ~torch.tensor([written, written])  # row 0: later steps, row 1: the first step
        forbidden[:, list(checkpoint.suppress)] = True
        forbidden[1, list(checkpoint.suppress_first)] = True
        self._with_timestamps = forbidden.to(self.device)
        self.forbidden = self._with_timestamps.clone()
        self.forbidden[:, words.timestamp_begin : words.timestamp_end] = True

    @property
    def device(self) -> torch.device:
        return self.model.proj_out.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.proj_out.weight.dtype  # type: ignore[no-any-return]

    @property
    def vocabulary(self) -> Tensor:
        return self.model.proj_out.weight  # type: ignore[no-any-return]

    def mask(self, depths: Tensor) -> Tensor:
        return (depths == 0).long()

    def norms(self) -> list[Norm]:
        return list(self._norms.values())

    def adapted(self, norms: Mapping[str, Affine]) -> WhisperPolicy:
        view = copy.copy(self)
        view._own = {**self._own, **norms}
        return view

    def timestamped(self) -> WhisperPolicy:
        """The same weights with timestamp tokens allowed, to be decoded under `TimestampRules`."""
        view = copy.copy(self)
        view.forbidden = self._with_timestamps
        return view

    def capacity(self, encoded: Encoded) -> list[int]:
        return [self.max_positions - len(prompt) + 1 for prompt in encoded.prompts]  # the last token is never fed back

    @torch.no_grad()
    def prepare(
        self,
        features: Tensor,
        prompts: Sequence[Sequence[int]],
        speech: Sequence[int] | None = None,
        every: int = EVERY["condensed"],
    ) -> Prepared:
        """The convolutions and positions, computed once whatever adapts: (B, mels, 3000) -> (B, S, d).

        `speech` says how many of each utterance's feature frames are not padding: given, the padding is condensed, one
        frame standing for `every`.
        """
        encoder = self.model.model.encoder
        x = F.gelu(encoder.conv1(features.to(self.device, self.dtype)))
        x = F.gelu(encoder.conv2(x)).transpose(1, 2)
        stem = x + encoder.embed_positions.weight[: x.shape[1]]
        bias = None
        if speech is not None:
            kept = condense([-(-frames // 2) for frames in speech], stem.shape[1], every)  # a convolution halves them
            stem, bias = kept.of(stem), kept.bias.to(self.device, self.dtype)[:, None, None]
        return Prepared(stem, tuple(tuple(prompt) for prompt in prompts), bias)

    def encode(self, prepared: Prepared) -> Encoded:
        """Encoder states and every decoder layer's cross-attention keys and values.

        On a CPU one utterance after the other: products are long enough with one, and with norms of its own its
        backward pass is a fifth faster.
        """
        if len(prepared) == 1 or self.device.type != "cpu" or not self._own:
            return self._encode(prepared)
        alone = [self._row(b)._encode(prepared.alone(b)) for b in range(len(prepared))]
        return Encoded.joined(alone, prepared.bias)

    def _row(self, b: int) -> WhisperPolicy:
        """With the norms of one utterance of the batch."""
        return self.adapted({name: own.row(b) for name, own in self._own.items()})

    def _encode(self, prepared: Prepared) -> Encoded:
        x = prepared.stem
        for i, layer in enumerate(self._encoder):
            name = f"encoder.layers.{i}"
            y = self._norm(f"{name}.self_attn_layer_norm", x)
            q, k, v = _heads(layer.attention.qkv(y), 3, self.encoder_heads)
            x = x + layer.attention.out(_attend(q, k, v, prepared.bias))
            x = x + layer.mlp(self._norm(f"{name}.final_layer_norm", x))
        states = self._norm("encoder.layer_norm", x)
        cross = []
        for layer in self._scoring:
            assert layer.cross is not None
            k, v = _heads(layer.cross.kv(states), 2, self.heads)
            cross.append((k, v))
        return Encoded(states, tuple(cross), prepared.prompts, prepared.bias)

    def begin(self, encoded: Encoded) -> WhisperState:
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
        return WhisperState(hidden[rows, last][:, None], hidden, cache, encoded.cross, encoded.bias, last + 1, rows)

    def read(self, state: WhisperState, tokens: Tensor) -> WhisperState:
        """Continues the prompts of a search that has only begun with tokens (B, n); the last is the new root."""
        B, n = tokens.shape
        causal = torch.ones(n, n, dtype=torch.bool, device=self.device).tril()
        cache = state.cache.grown(causal.expand(B, n, n))
        positions = state.positions[:, None] + torch.arange(n, device=self.device)
        hidden = self._decode(tokens.to(self.device), positions, cache, state.cross, state.heard, state.rows)
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
                heard=None if state.heard is None else state.heard[keep],
                positions=state.positions[keep],
                rows=state.rows[keep],
            )
        parents, tokens = parents[state.rows], tokens[state.rows]
        cache = state.cache.extended(parents)
        positions = state.positions[:, None].expand(-1, n)
        hidden = state.hidden.new_zeros(B, n, state.hidden.shape[-1])
        hidden[state.rows] = self._decode(tokens, positions, cache, state.cross, state.heard, state.rows)
        return replace(state, hidden=hidden, cache=cache, positions=state.positions + 1)

    def score(self, encoded: Encoded, trees: PackedTrees) -> Tensor:
        """One pass over prompts and trees together; gradients flow to the norms and to the encoder.

        On a CPU one utterance after the other: trees differ much in size, and padding costs as much as nodes.
        """
        B, N = trees.tokens.shape
        if B > 1 and self.device.type == "cpu":
            alone = encoded.alone or [encoded.select([b]) for b in range(B)]
            found = [self._row(b).score(one, trees.alone(b)) for b, one in enumerate(alone)]
            return torch.cat([F.pad(hidden, (0, 0, 0, N - hidden.shape[1])) for hidden in found])
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
        bias = _additive(mask, self.dtype)
        rows = torch.arange(B, device=self.device)
        decoder = self.model.model.decoder
        x = decoder.embed_tokens(tokens) + decoder.embed_positions.weight[positions]
        for i, layer in enumerate(self._scoring):
            x = self._decoder_layer(i, layer, x, bias, encoded.cross[i], encoded.bias, rows, None)
        return self._norm("decoder.layer_norm", x[:, P:], rows)

    def project(self, hidden: Tensor) -> Tensor:
        return self._project(hidden)

    def log_pi(self, hidden: Tensor, depth: int) -> Tensor:
        forbidden = self.forbidden[int(depth == 0)].nonzero()[:, 0]  # few: much faster than a mask over every row
        return self.logits(hidden).index_fill_(-1, forbidden, -torch.inf).log_softmax(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """The whole vocabulary, nothing forbidden, float32: (..., d) -> (..., V)."""
        z = self._project(hidden.reshape(-1, hidden.shape[-1]))
        return z.to(torch.promote_types(z.dtype, torch.float32)).view(*hidden.shape[:-1], -1)

    @property
    def _head_size(self) -> int:
        return int(self.model.config.d_model) // self.heads

    def _decode(
        self,
        tokens: Tensor,  # (b, n)
        positions: Tensor,  # (b, n)
        cache: TreeCache,
        cross: tuple[tuple[Tensor, Tensor], ...],
        heard: Tensor | None,
        rows: Tensor,
    ) -> Tensor:
        """Runs new columns through the decoder, their keys and values going into the cache: -> (b, n, d)."""
        decoder = self.model.model.decoder
        x = decoder.embed_tokens(tokens) + decoder.embed_positions.weight[positions]
        bias = _additive(cache.visible[:, :, : cache.used], self.dtype)
        for i, layer in enumerate(self._searching):
            x = self._decoder_layer(i, layer, x, bias, cross[i], heard, rows, cache)
        return self._norm("decoder.layer_norm", x, rows)

    def _decoder_layer(
        self,
        i: int,
        layer: Layer,
        x: Tensor,  # (b, n, d)
        bias: Tensor,  # (b, 1, n, m): which nodes a node sees
        cross: tuple[Tensor, Tensor],
        heard: Tensor | None,
        rows: Tensor,
        cache: TreeCache | None,
    ) -> Tensor:
        name = f"decoder.layers.{i}"
        assert layer.cross is not None
        y = self._norm(f"{name}.self_attn_layer_norm", x, rows)
        q, k, v = _heads(layer.attention.qkv(y), 3, self.heads)
        if cache is not None:
            k, v = cache.write(i, k, v)
        x = x + layer.attention.out(_attend(q, k, v, bias))
        y = self._norm(f"{name}.encoder_attn_layer_norm", x, rows)
        (q,) = _heads(layer.cross.query(y), 1, self.heads)
        x = x + layer.cross.out(_attend(q, *cross, heard))
        return x + layer.mlp(self._norm(f"{name}.final_layer_norm", x, rows))

    def _norm(self, name: str, x: Tensor, rows: Tensor | None = None) -> Tensor:
        own = self._own.get(name)
        everyone = own is None or rows is None or len(rows) == len(own.weight)  # they are always in order
        return self._norms[name].apply(x, own, None if everyone else rows)


def _list_norms(model: Any) -> Iterator[Norm]:
    sides: tuple[Side, ...] = ("encoder", "decoder")
    for side in sides:
        for name, module in getattr(model, side).named_modules(prefix=side):
            if isinstance(module, nn.LayerNorm):
                yield Norm(name, side, "layer", module.eps, module.weight, module.bias)


def _heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Joined projections (B, n, parts * d) as so many tensors (B, heads, n, d/heads)."""
    B, n, _ = x.shape
    return tuple(part.transpose(1, 2) for part in x.view(B, n, parts, heads, -1).unbind(2))


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is not None:
        bias = bias.expand(-1, -1, q.shape[2], -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).flatten(2)  # (B, n, d)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as the term that attention adds, made once for all layers: (B, n, m) -> (B, 1, n, m)."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)[:, None]
