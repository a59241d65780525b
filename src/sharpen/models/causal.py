"""Causal language models as a policy: the checkpoint's weights, run by our own loop over the layers.

One loop serves every family that `models.families` describes. A prompt is read once for each set of norms, with its
gradient: search and scoring both continue from its keys and values, and its last position is the root of the tree. A
node's position is the prompt's last position plus its depth. `adapted(norms)` is a view of the same frozen weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.norms import Affine, Norm
from sharpen.method.tree import PackedTrees
from sharpen.models.architecture import Architecture, Rotary
from sharpen.models.cache import FIRST_CAPACITY, TreeCache, additive
from sharpen.models.causal_states import CausalState, PreparedText, ReadPrompt, ReadPrompts
from sharpen.models.causal_weights import CausalLayer, CausalMatrices
from sharpen.models.dot_product import attention
from sharpen.models.families import describe
from sharpen.models.weights.tensors import Weight

Keep = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes a layer's keys and values of new nodes, (b, kv_heads, n, size), and returns all that they may see."""


class CausalPolicy:
    """A causal language model behind the calls of `method.policy.Policy`."""

    def __init__(
        self,
        architecture: Architecture,
        tensors: Mapping[str, Weight],
        ends: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not dtype.is_floating_point:
            raise TypeError(f"expected a floating point dtype, got {dtype}")
        self.architecture, self.device, self.dtype = architecture, torch.device(device), dtype
        unknown = [end for end in ends if not 0 <= end < architecture.vocabulary]
        if not ends or unknown:
            raise SharpenError(f"end tokens {list(ends)}: expected some of the {architecture.vocabulary} tokens")
        self.ends = tuple(ends)
        self._matrices = CausalMatrices(architecture, tensors, self.device, dtype)
        self._own: Mapping[str, Affine] = {}
        self.eos, self.forbidden = self._ending(self.ends[0])

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Mapping[str, Weight], **more: Any) -> CausalPolicy:
        """From a `config.json` and tensors under Hugging Face's names, such as `model.state_dict()`."""
        ends = config.get("eos_token_id")
        ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return cls(describe(config), tensors, more.pop("ends", ends), **more)

    @property
    def vocabulary(self) -> Tensor:
        return self._matrices.vocabulary

    def mask(self, depths: Tensor) -> Tensor:
        return torch.zeros_like(depths)

    def norms(self) -> list[Norm]:
        return list(self._matrices.norms.values())

    def adapted(self, norms: Mapping[str, Affine]) -> CausalPolicy:
        view = copy.copy(self)
        view._own = {**self._own, **norms}
        return view

    def ending(self, eos: int) -> CausalPolicy:
        """The same model whose outputs end with this one of its end tokens; pi is without the others."""
        view = copy.copy(self)
        view.eos, view.forbidden = self._ending(eos)
        return view

    def _ending(self, eos: int) -> tuple[int, Tensor]:
        forbidden = torch.zeros(1, self.architecture.vocabulary, dtype=torch.bool, device=self.device)
        forbidden[0, [end for end in self.ends if end != eos]] = True
        return eos, forbidden

    def prepare(self, prompts: Sequence[Sequence[int]]) -> PreparedText:
        """Prompts of one or more tokens each."""
        for b, prompt in enumerate(prompts):
            unknown = [token for token in prompt if not 0 <= token < self.architecture.vocabulary]
            if not prompt or unknown:
                raise SharpenError(
                    f"prompt {b} has "
                    + (f"the token {unknown[0]}" if unknown else "no tokens")
                    + f"; expected one or more of the {self.architecture.vocabulary} tokens"
                )
        return PreparedText(tuple(tuple(prompt) for prompt in prompts))

    def ahead(self, prepared: PreparedText, norms: Collection[str]) -> PreparedText:
        return prepared

    def capacity(self, encoded: ReadPrompts) -> list[int]:
        return [self.architecture.positions - one.length + 1 for one in encoded.each]  # the last token is not fed back

    def encode(self, prepared: PreparedText) -> ReadPrompts:
        """Reads the prompts, one after the other."""
        return ReadPrompts(tuple(self._row(b)._read(prompt) for b, prompt in enumerate(prepared.prompts)))

    def begin(self, encoded: ReadPrompts) -> CausalState:
        """The prompts side by side in one cache; nothing is computed."""
        a, B = self.architecture, len(encoded)
        lengths = torch.tensor([one.length for one in encoded.each], device=self.device)
        P = int(lengths.max())
        shape = a.layers, B, a.kv_heads, P + FIRST_CAPACITY, a.head_size
        keys = torch.zeros(shape, device=self.device, dtype=self.dtype)
        values = torch.zeros_like(keys)
        for b, one in enumerate(encoded.each):
            keys[:, b, :, : one.length] = torch.cat(one.keys)
            values[:, b, :, : one.length] = torch.cat(one.values)
        columns = torch.arange(shape[3], device=self.device)
        cache = TreeCache(keys, values, (columns < lengths[:, None])[:, None], P)
        hidden = torch.cat([one.root for one in encoded.each])
        return CausalState(hidden, cache, lengths, torch.arange(B, device=self.device))

    def extend(self, state: CausalState, parents: Tensor, tokens: Tensor) -> CausalState:
        B, n = tokens.shape
        live = (parents[state.rows] >= 0).any(1)  # (b,)
        if 2 * int(live.sum()) <= len(live):  # an ended prompt costs as much as a live one until it is dropped
            keep = live.nonzero()[:, 0]
            state = replace(
                state, cache=state.cache.selected(keep), positions=state.positions[keep], rows=state.rows[keep]
            )
        cache = state.cache.extended(parents[state.rows])
        positions = state.positions[:, None].expand(-1, n)
        hidden = state.hidden.new_zeros(B, n, state.hidden.shape[-1])
        seen = cache.visible[:, :, : cache.used]
        x = self._run(tokens[state.rows], positions, seen, cache.write, self._matrices.searching, state.rows)
        hidden[state.rows] = self._norm(self.architecture.names.norm, x, state.rows)
        return replace(state, hidden=hidden, cache=cache, positions=state.positions + 1)

    def score(self, encoded: ReadPrompts, trees: PackedTrees) -> Tensor:
        """The nodes of every tree in one pass each, after its prompt; gradients flow through the prompt as well."""
        N = trees.tokens.shape[1]
        scored = [self._row(b)._score(one, trees.alone(b)) for b, one in enumerate(encoded.each)]
        return torch.cat([F.pad(hidden, (0, 0, 0, N - hidden.shape[1])) for hidden in scored])

    def project(self, hidden: Tensor) -> Tensor:
        return self._matrices.project(hidden)

    def _row(self, b: int) -> CausalPolicy:
        """A view with the norms of one input of the batch."""
        return self.adapted({name: own.row(b) for name, own in self._own.items()}) if self._own else self

    def _read(self, prompt: tuple[int, ...]) -> ReadPrompt:
        P = len(prompt)
        tokens = torch.tensor([prompt], device=self.device)
        seen = torch.ones(1, P, P, dtype=torch.bool, device=self.device).tril()
        keys, values = list[Tensor](), list[Tensor]()

        def keep(i: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            keys.append(k)
            values.append(v)
            return k, v

        layers = self._matrices.scoring if torch.is_grad_enabled() else self._matrices.searching
        x = self._run(tokens, torch.arange(P, device=self.device)[None], seen, keep, layers)
        return ReadPrompt(tuple(keys), tuple(values), self._norm(self.architecture.names.norm, x[:, -1:]))

    def _score(self, prompt: ReadPrompt, tree: PackedTrees) -> Tensor:
        """The root was computed with the prompt; the other nodes see the prompt, their ancestors and themselves."""
        n = tree.tokens.shape[1] - 1
        if n == 0:
            return prompt.root
        seen = torch.cat([tree.ancestors.new_ones(1, n, prompt.length), tree.ancestors[:, 1:, 1:]], dim=2)

        def behind(i: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cat([prompt.keys[i], k], dim=2), torch.cat([prompt.values[i], v], dim=2)

        positions = tree.depths[:, 1:] + prompt.length - 1
        x = self._run(tree.tokens[:, 1:], positions, seen, behind, self._matrices.scoring)
        return torch.cat([prompt.root, self._norm(self.architecture.names.norm, x)], dim=1)

    def _run(
        self,
        tokens: Tensor,  # (b, n)
        positions: Tensor,  # (b, n)
        seen: Tensor,  # (b, n, m) bool: which columns a node sees, its own included, in the order of their positions
        keep: Keep,
        layers: Sequence[CausalLayer],
        rows: Tensor | None = None,  # (b,) which inputs these are; None: all of this view
    ) -> Tensor:
        """New nodes through all layers, without the last norm: -> (b, n, d)."""
        a = self.architecture
        together = a.heads // a.kv_heads  # queries that share the head of a key lie below each other
        masks = {
            window: additive(_within(seen, window), self.dtype).repeat(1, 1, together, 1) for window in set(a.windows)
        }
        turns = {rotary: _turn(rotary, positions, self.dtype) for rotary in set(a.rotary)}
        x = self._matrices.embed(tokens, positions)
        for i, layer in enumerate(layers):
            norm = partial(self._layer_norm, i, rows=rows)
            y = norm(a.names.attention_norm, x)
            attended = self._attend(i, layer, y, turns[a.rotary[i]], masks[a.windows[i]], keep, norm)
            attended = norm(a.names.attention_after, attended) * a.residual_scale
            x, before = x + attended, x
            y = norm(a.names.mlp_norm, before if a.parallel else x)
            x = x + norm(a.names.mlp_after, layer.down(self._inner(layer.up(y)))) * a.residual_scale
        return x

    def _attend(
        self,
        i: int,
        layer: CausalLayer,
        y: Tensor,  # (b, n, d)
        turn: tuple[Tensor, Tensor] | None,
        mask: Tensor,  # (b, 1, heads / kv_heads * n, m)
        keep: Keep,
        norm: Callable[[str | None, Tensor], Tensor],
    ) -> Tensor:
        a, (b, n, _) = self.architecture, y.shape
        heads = layer.qkv(y).view(b, n, a.heads + 2 * a.kv_heads, a.head_size)
        q, k, v = torch.split(heads, [a.heads, a.kv_heads, a.kv_heads], dim=2)
        q, k = norm(a.names.query_norm, q).transpose(1, 2), norm(a.names.key_norm, k).transpose(1, 2)
        if turn is not None:
            q, k = _turned(q, turn), _turned(k, turn)
        k, v = keep(i, k, v.transpose(1, 2))
        q = q.reshape(b, a.kv_heads, -1, a.head_size)  # so keys and values are never repeated
        out = attention(q, k, v, mask, a.scale)
        return layer.out(out.view(b, a.heads, n, a.head_size).transpose(1, 2).flatten(2))

    def _inner(self, x: Tensor) -> Tensor:
        if len(self.architecture.names.up) == 1:
            return self._matrices.activation(x)
        gate, up = x.chunk(2, dim=-1)
        return self._matrices.activation(gate) * up

    def _layer_norm(self, i: int, name: str | None, x: Tensor, rows: Tensor | None) -> Tensor:
        return x if name is None else self._norm(name.format(i), x, rows)

    def _norm(self, name: str, x: Tensor, rows: Tensor | None = None) -> Tensor:
        own = self._own.get(name)
        everyone = own is None or rows is None or len(rows) == len(own.weight)  # they are always in order
        return self._matrices.norms[name].apply(x, own, None if everyone else rows)


def _within(seen: Tensor, window: int | None) -> Tensor:
    """What a node sees of the last `window` positions: its ancestors are in order, so it is the last that it sees."""
    if window is None:
        return seen
    return seen & (seen.flip(-1).cumsum(-1).flip(-1) <= window)


def _turn(rotary: Rotary | None, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Cosine and sine for (b, n) positions: (b, 1, n, size / 2) each."""
    if rotary is None:
        return None
    angles = rotary.angles(positions)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """The first numbers of each head, in two halves, turned by the angles: (b, heads, n, size)."""
    cos, sin = turn
    half = cos.shape[-1]
    one, two, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], dim=-1)
