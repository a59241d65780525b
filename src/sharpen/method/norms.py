"""Per-input norm parameters over a model that is never written.

Each input owns a vector theta (P,), its copy of every adapted weight and bias; a batch stacks them into (B, P).
Dropping the vector is the reset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation

Side = Literal["encoder", "decoder"]


class Affine(NamedTuple):
    """Weight and bias of a norm, one row per input."""

    weight: Tensor  # (B, d)
    bias: Tensor | None  # (B, d)

    def row(self, b: int) -> Affine:
        """Those of input b."""
        return Affine(self.weight[b : b + 1], None if self.bias is None else self.bias[b : b + 1])

    @classmethod
    def cat(cls, parts: Sequence[Affine]) -> Affine:
        """The rows of several, one below the other."""
        biases = [part.bias for part in parts if part.bias is not None]
        return cls(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


@dataclass(frozen=True)
class Norm:
    """One norm of a frozen model."""

    name: str
    side: Side  # "encoder" where `Policy.encode` applies it; all "decoder" in a model that has no encoder
    kind: Literal["layer", "rms", "rms-plus-one"]  # rms-plus-one multiplies by 1 + weight, as Gemma does
    eps: float
    weight: Tensor  # (d,)
    bias: Tensor | None = None  # (d,)
    layer: int = 0  # of its side, from 0; the norm after the last layer has the number of layers

    def __post_init__(self) -> None:
        if self.side not in get_args(Side):
            raise SharpenError(f"norm {self.name!r} has the side {self.side!r}; expected encoder or decoder")

    def apply(self, x: Tensor, own: Affine | None = None, rows: Tensor | None = None) -> Tensor:
        """Normalises x (b, …, d) with the model's parameters, or per-input ones; `rows` says which inputs x holds.

        Per-input parameters are at least float32, and so is the product: half precision would round updates away.
        """
        if own is None:
            return self._normalise(x, self.weight, self.bias)
        weight, bias = own
        wide = x.to(weight.dtype)
        if len(weight) == 1:  # one input: the fused kernel applies, forward and backward
            return self._normalise(wide, weight[0], None if bias is None else bias[0]).to(x.dtype)
        if rows is not None:
            weight, bias = weight[rows], None if bias is None else bias[rows]
        if len(weight) != len(x):
            raise SharpenError(
                f"norm {self.name!r} has parameters for {len(weight)} inputs, but the batch has {len(x)}; pass "
                "those of the same inputs, such as `Affine.row(b)` for input b alone"
            )
        own_rows = len(weight), *[1] * (x.dim() - 2), weight.shape[1]
        y = self._normalise(wide, None, None) * self._scale(weight).view(own_rows)
        return (y if bias is None else y + bias.view(own_rows)).to(x.dtype)

    def _scale(self, weight: Tensor) -> Tensor:
        return 1 + weight if self.kind == "rms-plus-one" else weight

    def _normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        d = (x.shape[-1],)
        if self.kind == "layer":
            return F.layer_norm(x, d, weight, bias, self.eps)
        if self.kind not in ("rms", "rms-plus-one"):
            raise SharpenError(f"norm {self.name!r} is of kind {self.kind!r}; expected layer, rms or rms-plus-one")
        y = F.rms_norm(x, d, None if weight is None else self._scale(weight), self.eps)
        return y if bias is None else y + bias


def choose(norms: Sequence[Norm], which: str) -> list[Norm]:
    """The norms to adapt: "encoder+decoder", "encoder:3+decoder" (from layer 3 on), "decoder:half", and so on."""
    names = [norm.name for norm in norms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SharpenError(f"two norms are named {twice!r}; names must be unique")
    for norm in norms:
        for tensor in (norm.weight, norm.bias):
            if tensor is not None and tensor.dim() != 1:
                raise SharpenError(f"norm {norm.name!r} has parameters of shape {tuple(tensor.shape)}; expected (d,)")
    layers: dict[str, int] = {}
    for norm in norms:
        layers[norm.side] = max(norm.layer, layers.get(norm.side, 0))
    first: dict[str, float] = {}
    for part in which.split("+"):
        side, _, start = part.partition(":")
        first[side] = -(-layers.get(side, 0) // 2) if start == "half" else int(start or 0)
    chosen = [norm for norm in norms if norm.layer >= first.get(norm.side, math.inf)]
    if not chosen:
        have = ", ".join(f"{side} (layers 0 to {layers[side]})" for side in sorted(layers))
        raise SharpenError(f"the model has no norms in its {which}; it has norms in: {have or 'nothing'}")
    return chosen


def adapting(norms: Sequence[Norm], options: Adaptation) -> list[Norm]:
    """The norms that an episode with these options adapts; none for a method that only decodes."""
    return choose(norms, options.norms) if options.row.search is not None and options.steps > 0 else []


def initial(norms: Sequence[Norm], B: int) -> Tensor:
    """theta (B, P): every row the model's own parameters, at least float32."""
    flat = torch.cat([t.detach() for norm in norms for t in (norm.weight, norm.bias) if t is not None])
    return flat.to(torch.promote_types(flat.dtype, torch.float32)).expand(B, -1).clone()


def select(own: Mapping[str, Affine], rows: Sequence[int]) -> Mapping[str, Affine]:
    """The parameters of some inputs, in the order given."""
    chosen = list(rows)
    return {
        name: Affine(one.weight[chosen], None if one.bias is None else one.bias[chosen]) for name, one in own.items()
    }


def affine(norms: Sequence[Norm], theta: Tensor) -> Mapping[str, Affine]:
    """theta's rows as each norm's weights and biases, differentiable in theta."""
    sizes = [len(t) for norm in norms for t in (norm.weight, norm.bias) if t is not None]
    parts = iter(torch.split(theta, sizes, dim=1))
    own: dict[str, Affine] = {}
    for norm in norms:
        own[norm.name] = Affine(next(parts), None if norm.bias is None else next(parts))
    return own
