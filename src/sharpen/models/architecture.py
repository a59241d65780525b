"""What a causal language model computes, said in numbers and names: the one description that `models.causal` runs.

A family (`models.families`) turns the `config.json` of a checkpoint into an `Architecture`. What cannot be said here
cannot be run, and is refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["layer", "rms", "rms-plus-one"]


@dataclass(frozen=True)
class Rotary:
    """Positions as angles by which the queries and keys of a layer are turned."""

    theta: float
    size: int  # numbers of each head that are turned, in two halves; the others stay as they are
    stretch: float = 1.0  # positions are divided by this
    # Llama 3: slow angles are divided by the factor, fast ones are kept, those between are mixed.
    llama3: tuple[float, float, float, float] | None = None  # factor, low, high, positions of the original model

    def angles(self, positions: Tensor) -> Tensor:
        """(...) -> (..., size / 2), float32."""
        powers = torch.arange(0, self.size, 2, dtype=torch.float32, device=positions.device) / self.size
        speed = 1.0 / self.theta**powers / self.stretch
        if self.llama3 is not None:
            factor, low, high, original = self.llama3
            waves = original * speed / (2 * math.pi)  # how often an angle goes round in the original context
            kept = ((waves - low) / (high - low)).clamp(0, 1)
            speed = kept * speed + (1 - kept) * speed / factor
        return positions[..., None].float() * speed


@dataclass(frozen=True)
class Names:
    """The modules that hold the tensors: `NAME.weight`, and `NAME.bias` where there is one; {} is the layer."""

    embed: str
    norm: str
    head: str
    attention_norm: str
    mlp_norm: str
    qkv: tuple[str, ...]  # three matrices, or one that holds them all
    out: str
    up: tuple[str, ...]  # the gate and the matrix it gates, or one matrix without a gate
    down: str
    positions: str | None = None  # learned ones
    query_norm: str | None = None  # over each head
    key_norm: str | None = None
    attention_after: str | None = None  # a norm of what attention adds
    mlp_after: str | None = None
    prefix: str = "model."  # before all but the head; some files leave it out


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer."""

    family: str
    names: Names
    layers: int
    d: int
    heads: int
    kv_heads: int  # each serves heads / kv_heads queries
    head_size: int
    inner: int  # width between the matrices of the MLP
    vocabulary: int
    positions: int  # the longest text it knows, in tokens
    norm: Kind
    eps: float
    activation: str
    tied: bool  # the output matrix is the embedding
    rotary: tuple[Rotary | None, ...]  # of each layer
    windows: tuple[int | None, ...] = ()  # of each layer: how many tokens it sees, itself included; None: all
    parallel: bool = False  # attention and MLP read the same input, and both are added to it
    transposed: bool = False  # layer matrices are stored as (in, out)
    interleaved: bool = False  # query, key and value of a head lie together in the joined matrix
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / sqrt(head_size)
    logit_scale: float = 1.0
    ignored: tuple[str, ...] = field(default=("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias"), repr=False)
    # ^ buffers of old files: what they hold is computed

    @property
    def scale(self) -> float:
        """Of the product of query and key."""
        return self.head_size**-0.5 if self.attention_scale is None else self.attention_scale
