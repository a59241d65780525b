"""What the policies of encoder-decoder models, of speech and of text, share: a search over an append-only cache, one
pass over packed trees, and norms that differ between inputs.

A model family says what its layers compute, in `_layers` (the encoder's) and `_decode`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.method.norms import Affine, Norm
from sharpen.method.tree import PackedTrees
from sharpen.models.cache import TreeCache, additive
from sharpen.models.dot_product import attention
from sharpen.models.linears import Product
from sharpen.models.states import EncodedSpeech, PreparedSpeech, SpeechState


class SharedMatrices(Protocol):
    """What every family's matrices have."""

    @property
    def vocabulary(self) -> Tensor:
        """The output matrix W: (V, d)."""

    @property
    def project(self) -> Product:
        """h W^T for rows without gradients."""

    @property
    def cross(self) -> Sequence[Product]:
        """What makes each decoder layer's keys and values from the encoder's states."""


class EncoderDecoderPolicy(ABC):
    """Frozen weights behind the calls of `method.policy.Policy`; a family fills the attributes in."""

    device: torch.device
    dtype: torch.dtype
    eos: int
    forbidden: Tensor  # (F, V) bool
    heads: int  # of the decoder
    head_size: int
    max_positions: int  # of the decoder
    encoder_layers: int
    last_norm: str  # the name of the norm before the output matrix
    encoder_norm: str = "encoder.layer_norm"  # and of that after the encoder's last layer
    _known: Mapping[str, Norm]  # in the order the input meets them
    _own: Mapping[str, Affine]  # of this view

    @property
    @abstractmethod
    def _shared(self) -> SharedMatrices:
        """Those of all views."""

    @property
    def vocabulary(self) -> Tensor:
        return self._shared.vocabulary

    @abstractmethod
    def _layers(self, prepared: PreparedSpeech, end: int) -> Tensor:
        """The encoder's layers up to `end`, without those that the stem went through already: -> (B, S, d)."""

    @abstractmethod
    def _decode(
        self,
        tokens: Tensor,  # (b, n)
        positions: Tensor,  # (b, n)
        bias: Tensor,  # (b, 1, n, m): which nodes a node sees
        cross: Sequence[tuple[Tensor, Tensor]],
        frame_bias: Tensor | None,
        rows: Tensor,  # (b,) which utterances of the batch these are
        cache: TreeCache | None,
    ) -> Tensor:
        """Nodes through the decoder's layers, without its last norm: -> (b, n, d).

        With a cache there is no gradient, and keys and values are written into it; without one a node sees only the
        others, and gradients flow.
        """

    def mask(self, depths: Tensor) -> Tensor:
        return (depths == 0).long()

    def norms(self) -> list[Norm]:
        return list(self._known.values())

    def adapted(self, norms: Mapping[str, Affine]) -> Self:
        view = copy.copy(self)
        view._own = {**self._own, **norms}
        return view

    def capacity(self, encoded: EncodedSpeech) -> list[int]:
        return [self.max_positions - len(prompt) + 1 for prompt in encoded.prompts]  # the last token is never fed back

    @torch.no_grad()
    def ahead(self, prepared: PreparedSpeech, norms: Collection[str]) -> PreparedSpeech:
        """The same utterances after the encoder's layers below the first of these norms."""
        names = self._known
        own = (names[name].layer for name in norms if names[name].side == "encoder")
        first = min(own, default=self.encoder_layers)
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

    def _encode(self, prepared: PreparedSpeech) -> EncodedSpeech:
        states = self.encoder_states(prepared)
        cross = []
        for keys_and_values in self._shared.cross:
            k, v = split_heads(keys_and_values(states), 2, self.heads)
            cross.append((k.contiguous(), v.contiguous()))  # every level of a search reads them
        return EncodedSpeech(tuple(cross), prepared.prompts, prepared.frames, prepared.bias)

    def encoder_states(self, prepared: PreparedSpeech) -> Tensor:
        """The encoder's output: (B, S, d)."""
        return self._norm(self.encoder_norm, self._layers(prepared, self.encoder_layers))

    def begin(self, encoded: EncodedSpeech) -> SpeechState:
        B, lengths = len(encoded.prompts), [len(prompt) for prompt in encoded.prompts]
        P = max(lengths)
        tokens = torch.zeros(B, P, dtype=torch.int64)
        visible = torch.zeros(B, P, P, dtype=torch.bool)
        visible |= torch.ones(P, P, dtype=torch.bool).tril()
        for b, prompt in enumerate(encoded.prompts):
            tokens[b, : len(prompt)] = torch.tensor(prompt)
        last = torch.tensor(lengths, device=self.device) - 1
        cache = TreeCache.empty(len(encoded.cross), B, self.heads, self.head_size, self.device, self.dtype)
        cache = cache.grown(visible.to(self.device))
        positions = torch.arange(P, device=self.device).expand(B, P)
        rows = torch.arange(B, device=self.device)
        hidden = self._search(tokens.to(self.device), positions, cache, encoded.cross, encoded.bias, rows)  # (B, P, d)
        cache = cache.narrowed(last[:, None])  # the root is the last prompt position; padding behind it is never seen
        return SpeechState(hidden[rows, last][:, None], cache, encoded.cross, encoded.bias, last + 1, rows)

    def read(self, state: SpeechState, tokens: Tensor) -> SpeechState:
        """Appends tokens (B, n) to the prompts of a state that `begin` returned; the last one is the new root."""
        B, n = tokens.shape
        causal = torch.ones(n, n, dtype=torch.bool, device=self.device).tril()
        cache = state.cache.grown(causal.expand(B, n, n))
        positions = state.positions[:, None] + torch.arange(n, device=self.device)
        hidden = self._search(tokens.to(self.device), positions, cache, state.cross, state.frame_bias, state.rows)
        root = torch.full((B, 1), n - 1, device=self.device)
        return replace(state, hidden=hidden[:, -1:], cache=cache.narrowed(root), positions=state.positions + n)

    def extend(self, state: SpeechState, parents: Tensor, tokens: Tensor) -> SpeechState:
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
        hidden[state.rows] = self._search(tokens, positions, cache, state.cross, state.frame_bias, state.rows)
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
        rows = torch.arange(B, device=self.device)
        bias = additive(mask, self.dtype)
        x = self._decode(tokens, positions, bias, encoded.cross, encoded.bias, rows, None)
        return self._norm(self.last_norm, x[:, P:], rows)

    def project(self, hidden: Tensor) -> Tensor:
        return self._shared.project(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the whole vocabulary, nothing forbidden, at least float32: (..., d) -> (..., V)."""
        z = self._shared.project(hidden.reshape(-1, hidden.shape[-1]))
        return z.to(torch.promote_types(z.dtype, torch.float32)).view(*hidden.shape[:-1], -1)

    def _search(
        self,
        tokens: Tensor,  # (b, n)
        positions: Tensor,  # (b, n)
        cache: TreeCache,
        cross: Sequence[tuple[Tensor, Tensor]],
        frame_bias: Tensor | None,
        rows: Tensor,
    ) -> Tensor:
        """Runs new nodes through the decoder and puts their keys and values into the cache: -> (b, n, d)."""
        bias = additive(cache.visible[:, :, : cache.used], self.dtype)
        return self._norm(self.last_norm, self._decode(tokens, positions, bias, cross, frame_bias, rows, cache), rows)

    def _row(self, b: int) -> Self:
        """A view with the norms of one utterance of the batch."""
        return self.adapted({name: own.row(b) for name, own in self._own.items()})

    def _norm(self, name: str, x: Tensor, rows: Tensor | None = None) -> Tensor:
        own = self._own.get(name)
        everyone = own is None or rows is None or len(rows) == len(own.weight)  # they are always in order
        return self._known[name].apply(x, own, None if everyone else rows)


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Joined projections (B, n, parts * d) as `parts` tensors (B, heads, n, d/heads)."""
    B, n, _ = x.shape
    return tuple(part.transpose(1, 2) for part in x.view(B, n, parts, heads, -1).unbind(2))


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    return attention(q, k, v, bias, scale).transpose(1, 2).flatten(2)  # (B, n, d)
