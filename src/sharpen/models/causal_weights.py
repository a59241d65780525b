"""The tensors of a causal language model ready to compute with, each made when it is first needed.

As for Whisper (`models.linears`): a search runs on packed matrices, scoring on plain ones, and both are copies in
torch's own memory, so neither the checkpoint nor a module that the tensors came from is ever written. The matrices of a
quantised file keep its few bits a number until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.errors import WeightsError
from sharpen.method.norms import Norm
from sharpen.models.architecture import Architecture
from sharpen.models.linears import Converter, Make, Product, plain
from sharpen.models.weights.quantised import Quantised
from sharpen.models.weights.tensors import Weight, numbers
from sharpen.products import PackedLinear, packs

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
GET_ANOTHER = "is this file of the family that its config.json names?"


@dataclass(frozen=True)
class CausalLayer:
    """The products of one layer."""

    qkv: Product  # queries, keys and values, one behind the other
    out: Product
    up: Product  # gate and up joined, where there is a gate
    down: Product


class CausalMatrices(Converter):
    """Shared by all views of a policy; nothing in it is written after it was made."""

    def __init__(
        self, architecture: Architecture, tensors: Mapping[str, Weight], device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(device, dtype)
        self.a = architecture
        prefix = architecture.names.prefix
        self._tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        if "lm_head.weight" in self._tensors:  # what newer files call the head in every family
            self._tensors[f"{architecture.names.head}.weight"] = self._tensors.pop("lm_head.weight")
        if architecture.activation not in ACTIVATIONS:
            raise WeightsError(f"activation {architecture.activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[architecture.activation]
        self._check()
        self.norms = {norm.name: norm for norm in self._list_norms()}  # in the order the input meets them

    @cached_property
    def scoring(self) -> Sequence[CausalLayer]:
        """The layers for rows with gradients."""
        return [self._layer(i, plain) for i in range(self.a.layers)]

    @cached_property
    def searching(self) -> Sequence[CausalLayer]:
        """The layers for rows without."""
        if not packs(self.device, self.dtype):
            return self.scoring
        return [self._layer(i, PackedLinear) for i in range(self.a.layers)]

    @cached_property
    def vocabulary(self) -> Tensor:
        """The output matrix W, with the scale of the logits in it: (V, d)."""
        return self._head()

    @cached_property
    def project(self) -> Product:
        """h W^T for rows without gradients."""
        if not packs(self.device, self.dtype):
            return plain(self.vocabulary, None)
        return PackedLinear(self._head())  # the plain matrix is not kept: only scoring needs it

    def _head(self) -> Tensor:
        head = self.a.names.embed if self.a.tied else self.a.names.head
        return self._cast(self._tensors[f"{head}.weight"]).mul_(self.a.logit_scale)

    @cached_property
    def _embedding(self) -> Weight:
        table = self._tensors[f"{self.a.names.embed}.weight"]
        return table if self.device.type == "cpu" else self._cast(table)  # a few rows of the file need no copy

    @cached_property
    def _positions(self) -> Tensor | None:
        name = self.a.names.positions
        return None if name is None else self._cast(self._tensors[f"{name}.weight"])

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(b, n) tokens and their positions -> (b, n, d)."""
        x = self._lookup(self._embedding, tokens)
        if self.a.embed_scale != 1.0:
            x = x * torch.tensor(self.a.embed_scale, dtype=self.dtype, device=self.device)
        return x if self._positions is None else x + self._positions[positions]

    def _layer(self, i: int, make: Make) -> CausalLayer:
        names = self.a.names
        return CausalLayer(
            qkv=self._joined(i, names.qkv, make),
            out=self._joined(i, (names.out,), make),
            up=self._joined(i, names.up, make),
            down=self._joined(i, (names.down,), make),
        )

    def _joined(self, i: int, names: tuple[str, ...], make: Make) -> Product:
        """The product of several matrices of layer i, one below the other."""
        weights, biases = [], []
        for name in names:
            weight, bias = self._linear(name.format(i))
            if names == self.a.names.qkv and self.a.interleaved:
                weight, bias = self._apart(numbers(weight)), None if bias is None else self._apart(numbers(bias))
            weights.append(weight)
            biases.append(bias)
        if all(bias is None for bias in biases):
            return make(self._cast(*weights), None)
        filled = [torch.zeros(w.shape[0]) if b is None else b for w, b in zip(weights, biases, strict=True)]
        return make(self._cast(*weights), self._cast(*filled))

    def _linear(self, name: str) -> tuple[Weight, Weight | None]:
        """The matrix (out, in) and its bias."""
        weight = self._tensors[f"{name}.weight"]
        return numbers(weight).T if self.a.transposed else weight, self._tensors.get(f"{name}.bias")

    def _apart(self, x: Tensor) -> Tensor:
        """All queries, then all keys, then all values, where they lie together for each head."""
        return x.view(self.a.heads, 3, self.a.head_size, *x.shape[1:]).transpose(0, 1).reshape(x.shape)

    def _list_norms(self) -> Iterator[Norm]:
        n = self.a.names
        for i in range(self.a.layers):
            within = (n.attention_norm, n.query_norm, n.key_norm, n.attention_after, n.mlp_norm, n.mlp_after)
            for name in within:
                if name is not None:
                    yield self._norm(name.format(i), i)
        yield self._norm(n.norm, self.a.layers)

    def _norm(self, name: str, layer: int) -> Norm:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors.get(f"{name}.bias")
        own = None if bias is None else self._cast(bias)
        return Norm(name, "decoder", self.a.norm, self.a.eps, self._cast(weight), own, layer)

    def _check(self) -> None:
        """Refuses a checkpoint that lacks a tensor, has one of another shape, or has one that nothing would use."""
        expected = dict(self._expected())
        for name, shape in expected.items():
            if name not in self._tensors:
                raise WeightsError(f"the weights have no {name}; {GET_ANOTHER}")
            found = tuple(self._tensors[name].shape)
            if found != shape:
                raise WeightsError(f"{name} has the shape {found}, expected {shape}; {GET_ANOTHER}")
        for name, tensor in self._tensors.items():
            module, _, part = name.rpartition(".")
            ignored = name.endswith(self.a.ignored) or (self.a.tied and module == self.a.names.head)
            known = name in expected or (part == "bias" and f"{module}.weight" in expected)
            if not (known or ignored):
                raise WeightsError(f"the weights have {name}, which no {self.a.family} has; {GET_ANOTHER}")
            if known and not isinstance(tensor, Quantised) and not tensor.dtype.is_floating_point:
                raise WeightsError(f"{name} is stored as {tensor.dtype}: quantised weights of this kind are not read")

    def _expected(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        a, n = self.a, self.a.names
        queries, keys = a.heads * a.head_size, a.kv_heads * a.head_size
        yield f"{n.embed}.weight", (a.vocabulary, a.d)
        if n.positions is not None:
            yield f"{n.positions}.weight", (a.positions, a.d)
        if not a.tied:
            yield f"{n.head}.weight", (a.vocabulary, a.d)
        rows = (queries, keys, keys) if len(n.qkv) == 3 else (queries + 2 * keys,)
        for i in range(a.layers):
            matrices = [*zip(n.qkv, rows, (a.d,) * 3, strict=False), (n.out, a.d, queries), (n.down, a.d, a.inner)]
            for name, out, into in [*matrices, *((up, a.inner, a.d) for up in n.up)]:
                yield f"{name.format(i)}.weight", (into, out) if a.transposed else (out, into)
            for norm in (n.attention_norm, n.attention_after, n.mlp_norm, n.mlp_after):
                if norm is not None:
                    yield f"{norm.format(i)}.weight", (a.d,)
            for norm in (n.query_norm, n.key_norm):
                if norm is not None:
                    yield f"{norm.format(i)}.weight", (a.head_size,)
        yield f"{n.norm}.weight", (a.d,)
