"""The append-only key/value cache of a growing tree.

A node keeps its column: reordering a beam changes which columns a row sees, never a key or a value. A new level takes
the next n columns of every utterance; where an utterance has fewer new nodes, the rest of its columns are padding that
no row sees. When the frontier sees fewer than half of the columns, the others are removed, so that the dead branches of
a wide beam cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_CAPACITY = 64  # columns; doubled whenever they run out


@dataclass(frozen=True)
class TreeCache:
    """Keys and values of B utterances' nodes, and which of them the frontier sees."""

    keys: Tensor  # (layers, B, heads, capacity, d/heads)
    values: Tensor  # (layers, B, heads, capacity, d/heads)
    visible: Tensor  # (B, n, capacity) bool: row j of the frontier sees a column
    used: int  # columns in use, the same number for every utterance
    fresh: int = 0  # how many of them belong to the newest level, which the current pass writes

    @classmethod
    def empty(
        cls, layers: int, B: int, heads: int, head_size: int, device: torch.device, dtype: torch.dtype
    ) -> TreeCache:
        shape = (layers, B, heads, FIRST_CAPACITY, head_size)
        keys, values = torch.empty(shape, device=device, dtype=dtype), torch.empty(shape, device=device, dtype=dtype)
        return cls(keys, values, torch.zeros(B, 1, FIRST_CAPACITY, dtype=torch.bool, device=device), 0)

    def grown(self, visible: Tensor) -> TreeCache:
        """Takes n new columns for more of a prompt: the new rows see (B, n, n) of them, and what the root sees."""
        _, n, _ = visible.shape
        cache = self._with_room(n)
        seen = cache.visible[:, :1].repeat(1, n, 1)
        seen[:, :, cache.used : cache.used + n] = visible
        return TreeCache(cache.keys, cache.values, seen, cache.used + n, n)

    def extended(self, parents: Tensor) -> TreeCache:
        """Takes a level of new columns; row j sees what its parent row sees, and itself."""
        cache = self._compacted(parents)._with_room(parents.shape[1])
        B, n = parents.shape
        rows = torch.arange(B, device=parents.device)[:, None]
        seen = cache.visible[rows, parents.clamp(min=0)] & (parents >= 0)[:, :, None]  # (B, n, capacity)
        new = torch.arange(n, device=parents.device)
        seen[:, new, cache.used + new] = True  # padding sees only itself, which keeps its softmax finite
        return TreeCache(cache.keys, cache.values, seen, cache.used + n, n)

    def narrowed(self, rows: Tensor) -> TreeCache:
        """Keeps only the given rows (B, m) of the frontier."""
        B = rows.shape[0]
        visible = self.visible[torch.arange(B, device=rows.device)[:, None], rows]
        return TreeCache(self.keys, self.values, visible, self.used)

    def selected(self, utterances: Tensor) -> TreeCache:
        """Keeps only the given utterances."""
        return TreeCache(self.keys[:, utterances], self.values[:, utterances], self.visible[utterances], self.used)

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the newest level's keys and values; returns those of all columns: (B, heads, used, d/heads)."""
        start = self.used - self.fresh
        self.keys[layer][:, :, start : self.used] = k
        self.values[layer][:, :, start : self.used] = v
        return self.keys[layer][:, :, : self.used], self.values[layer][:, :, : self.used]

    def _with_room(self, n: int) -> TreeCache:
        capacity = self.keys.shape[3]
        if self.used + n <= capacity:
            return self
        larger = max(2 * capacity, self.used + n)
        keys = self.keys.new_empty(*self.keys.shape[:3], larger, self.keys.shape[4])
        values = torch.empty_like(keys)
        keys[:, :, :, : self.used] = self.keys[:, :, :, : self.used]
        values[:, :, :, : self.used] = self.values[:, :, :, : self.used]
        visible = self.visible.new_zeros(*self.visible.shape[:2], larger)
        visible[:, :, :capacity] = self.visible
        return TreeCache(keys, values, visible, self.used)

    def _compacted(self, parents: Tensor) -> TreeCache:
        """Removes the columns that no surviving row sees, if they are more than half."""
        if self.used <= FIRST_CAPACITY:
            return self
        B = parents.shape[0]
        rows = torch.arange(B, device=parents.device)[:, None]
        surviving = self.visible[rows, parents.clamp(min=0)] & (parents >= 0)[:, :, None]
        live = surviving.any(1)[:, : self.used]  # (B, used)
        width = int(live.sum(1).max())
        if 2 * width >= self.used:
            return self
        order = live.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :width]  # (B, width)
        index = order[None, :, None, :, None].expand(*self.keys.shape[:3], width, self.keys.shape[4])
        visible = self.visible.gather(2, order[:, None, :].expand(-1, self.visible.shape[1], -1))
        return TreeCache(self.keys.gather(3, index), self.values.gather(3, index), visible, width)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as a term to add to attention logits, made once for all layers: (B, n, m) -> (B, 1, n, m)."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)[:, None]
