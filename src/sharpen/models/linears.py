"""A Whisper layer's matrices as calls: joined where one product can make several things, packed where a search runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.models.packed import PackedLinear

Linear = Callable[[Tensor], Tensor]  # (..., in) -> (..., out)
Make = Callable[[Tensor, Tensor | None], Linear]  # of a weight and a bias


@dataclass(frozen=True)
class Attention:
    """Self-attention: what makes queries, keys and values, one behind the other, and what follows."""

    qkv: Linear
    out: Linear


@dataclass(frozen=True)
class Cross:
    """Attention to the encoder's states."""

    query: Linear
    kv: Linear  # keys and values, of the states
    out: Linear


@dataclass(frozen=True)
class Layer:
    """One layer of the encoder or the decoder."""

    attention: Attention
    cross: Cross | None  # the decoder's
    fc1: Linear
    fc2: Linear

    def mlp(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


def plain(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product that carries gradients to its rows."""
    return partial(F.linear, weight=weight, bias=bias)


def layer(module: Any, make: Make = plain) -> Layer:
    """The layer of a transformers module; `make=PackedLinear` for rows without gradient."""
    attention = Attention(_joined(module.self_attn, "qkv", make), _joined(module.self_attn, ("out",), make))
    cross = None
    if hasattr(module, "encoder_attn"):
        heard = module.encoder_attn
        cross = Cross(_joined(heard, "q", make), _joined(heard, "kv", plain), _joined(heard, ("out",), make))
    return Layer(attention, cross, make(module.fc1.weight, module.fc1.bias), make(module.fc2.weight, module.fc2.bias))


def packed(module: Any) -> Layer:
    return layer(module, PackedLinear)


def _joined(attention: Any, parts: Any, make: Make) -> Linear:
    """Some of an attention's projections as one."""
    modules = [getattr(attention, f"{part}_proj") for part in parts]
    if len(modules) == 1:
        return make(modules[0].weight, modules[0].bias)
    biases = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in modules]
    return make(torch.cat([m.weight.detach() for m in modules]), torch.cat([bias.detach() for bias in biases]))
