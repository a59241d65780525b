"""The tensors of an encoder-decoder text model ready to compute with, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sharpen.errors import WeightsError
from sharpen.method.norms import Norm, Side
from sharpen.models.causal_weights import ACTIVATIONS, GET_ANOTHER
from sharpen.models.linears import Converter, Make, Product, plain
from sharpen.models.seq2seq_families import Seq2SeqArchitecture, Stack
from sharpen.products import PackedLinear, packs

HEAD, BIAS, SHARED = "lm_head", "final_logits_bias", "shared"
IGNORED = ("EncDecAttention.relative_attention_bias.weight",)  # in old files of T5, which never used it


@dataclass(frozen=True)
class Seq2SeqLayer:
    """The products of one layer of the encoder or the decoder."""

    qkv: Product
    out: Product
    cross_query: Product | None
    cross_out: Product | None
    up: Product  # gate and up joined, where there is a gate
    down: Product


class Seq2SeqMatrices(Converter):
    """Shared by all views of a policy, each made when first needed and never written after."""

    def __init__(
        self, architecture: Seq2SeqArchitecture, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(device, dtype)
        self.a = architecture
        self._tensors = {name.removeprefix(architecture.prefix): tensor for name, tensor in tensors.items()}
        if architecture.activation not in ACTIVATIONS:
            raise WeightsError(f"activation {architecture.activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[architecture.activation]
        self._check()
        self.norms = {norm.name: norm for norm in self._list_norms()}  # in the order the input meets them

    @cached_property
    def encoder(self) -> Sequence[Seq2SeqLayer]:
        return self._stack(self.a.encoder, plain)

    @cached_property
    def scoring(self) -> Sequence[Seq2SeqLayer]:
        """The decoder for rows with gradients."""
        return self._stack(self.a.decoder, plain)

    @cached_property
    def searching(self) -> Sequence[Seq2SeqLayer]:
        """The decoder for rows without."""
        return self._stack(self.a.decoder, PackedLinear) if packs(self.device, self.dtype) else self.scoring

    @cached_property
    def cross(self) -> Sequence[Product]:
        """What makes each decoder layer's keys and values from the encoder's states."""
        names = self.a.decoder.names.cross_qkv[1:]
        return [self._joined(i, names, plain) for i in range(self.a.decoder.layers)]

    @cached_property
    def vocabulary(self) -> Tensor:
        """The output matrix W, with the scale of the logits in it: (V, d)."""
        return self._cast(self._head()) * self.a.logit_scale

    @cached_property
    def project(self) -> Product:
        """h W^T + b for rows without gradients."""
        bias = self._tensors.get(BIAS)  # (1, V)
        make: Make = PackedLinear if packs(self.device, self.dtype) else plain
        return make(self.vocabulary, None if bias is None else self._cast(bias)[0])

    @cached_property
    def relative(self) -> Mapping[str, Tensor]:
        """The bias of each bucket and head, for each side: (buckets, heads)."""
        names = {"encoder": self.a.encoder.names.relative, "decoder": self.a.decoder.names.relative}
        return {side: self._cast(self._tensors[f"{name}.weight"]) for side, name in names.items() if name is not None}

    def embed(self, stack: Stack, tokens: Tensor, positions: Tensor) -> Tensor:
        """(b, n) tokens and their positions -> (b, n, d)."""
        x = self._lookup(self._table(stack), tokens.to(self._table(stack).device)).to(self.device)
        if self.a.embed_scale != 1.0:
            x = x * torch.tensor(self.a.embed_scale, dtype=self.dtype, device=self.device)
        table = self._positions.get(stack.names.positions or "")
        return x if table is None else x + table[positions + self.a.first_position]

    @cached_property
    def _positions(self) -> Mapping[str, Tensor]:
        tables = {}
        for name in (self.a.encoder.names.positions, self.a.decoder.names.positions):
            if name is not None:
                stored = self._tensors.get(f"{name}.weight")
                tables[name] = self._cast(self._sinusoids() if stored is None else stored)
        return tables

    def _sinusoids(self) -> Tensor:
        """Marian's: sines in the first half of the numbers, cosines in the second."""
        assert self.a.positions is not None
        half = torch.arange(0, self.a.d, 2, dtype=torch.float64) / self.a.d
        angles = torch.arange(self.a.positions, dtype=torch.float64)[:, None] / 10000**half
        return torch.cat([angles.sin(), angles.cos()], dim=1).float()  # as transformers rounds them

    def _table(self, stack: Stack) -> Tensor:
        """An embedding: a file may hold one for both sides, and under any of its names."""
        for name in (stack.names.embed, SHARED, *((HEAD,) if self.a.tied else ())):
            if f"{name}.weight" in self._tensors:
                return self._tensors[f"{name}.weight"]
        raise WeightsError(f"the weights have no {SHARED}.weight; {GET_ANOTHER}")

    def _head(self) -> Tensor:
        own = self._tensors.get(f"{HEAD}.weight")  # a file that has one may differ from the embedding, tied or not
        if own is None and not self.a.tied:
            raise WeightsError(f"the weights have no {HEAD}.weight; {GET_ANOTHER}")
        return self._table(self.a.decoder) if own is None else own

    def _stack(self, stack: Stack, make: Make) -> Sequence[Seq2SeqLayer]:
        n = stack.names
        return [
            Seq2SeqLayer(
                qkv=self._joined(i, n.qkv, make),
                out=self._joined(i, (n.out,), make),
                cross_query=self._joined(i, n.cross_qkv[:1], make) if n.cross_norm else None,
                cross_out=self._joined(i, (n.cross_out,), make) if n.cross_norm else None,
                up=self._joined(i, n.up, make),
                down=self._joined(i, (n.down,), make),
            )
            for i in range(stack.layers)
        ]

    def _joined(self, i: int, names: Sequence[str], make: Make) -> Product:
        weights = [self._tensors[f"{name.format(i)}.weight"] for name in names]
        biases = [self._tensors.get(f"{name.format(i)}.bias") for name in names]
        if all(bias is None for bias in biases):
            return make(self._cast(*weights), None)
        filled = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
        return make(self._cast(*weights), self._cast(*filled))

    def _list_norms(self) -> Iterator[Norm]:
        sides: tuple[tuple[Side, Stack], ...] = (("encoder", self.a.encoder), ("decoder", self.a.decoder))
        for side, stack in sides:
            for name, layer in _norms_of(stack):
                weight, bias = self._tensors[f"{name}.weight"], self._tensors.get(f"{name}.bias")
                own = None if bias is None else self._cast(bias)
                yield Norm(name, side, self.a.norm, self.a.eps, self._cast(weight), own, layer)

    def _check(self) -> None:
        """Refuses a checkpoint that lacks a tensor, has one of another shape, or has one that nothing would use."""
        expected = {name: shape for stack in (self.a.encoder, self.a.decoder) for name, shape in self._expected(stack)}
        optional = dict(self._optional())
        for name, shape in {**expected, **optional}.items():
            if name not in self._tensors:
                if name in expected:
                    raise WeightsError(f"the weights have no {name}; {GET_ANOTHER}")
                continue
            found = tuple(self._tensors[name].shape)
            if found != shape:
                raise WeightsError(f"{name} has the shape {found}, expected {shape}; {GET_ANOTHER}")
        for name, tensor in self._tensors.items():
            module, _, part = name.rpartition(".")
            known = name in expected or name in optional or (part == "bias" and f"{module}.weight" in expected)
            if not known and not name.endswith(IGNORED):
                raise WeightsError(f"the weights have {name}, which no {self.a.family} has; {GET_ANOTHER}")
            if known and not tensor.dtype.is_floating_point:
                raise WeightsError(f"{name} is stored as {tensor.dtype}: quantised weights of this kind are not read")
        self._table(self.a.encoder)
        self._head()

    def _expected(self, stack: Stack) -> Iterator[tuple[str, tuple[int, ...]]]:
        a, n, width = self.a, stack.names, stack.heads * stack.head_size
        if n.relative is not None:
            yield f"{n.relative}.weight", (a.buckets, stack.heads)
        if n.positions is not None and not a.sinusoidal:
            yield f"{n.positions}.weight", ((a.positions or 0) + a.first_position, a.d)
        for i in range(stack.layers):
            cross = ((*n.cross_qkv, n.cross_out),) if n.cross_norm else ()
            for q, k, v, out in ((*n.qkv, n.out), *cross):
                yield from ((f"{name.format(i)}.weight", (width, a.d)) for name in (q, k, v))
                yield f"{out.format(i)}.weight", (a.d, width)
            yield from ((f"{up.format(i)}.weight", (stack.inner, a.d)) for up in n.up)
            yield f"{n.down.format(i)}.weight", (a.d, stack.inner)
        yield from ((f"{name}.weight", (a.d,)) for name, _ in _norms_of(stack))

    def _optional(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """What a file may leave out, because it is elsewhere in it, computed or zero."""
        a, V = self.a, self.a.decoder.vocabulary
        yield f"{HEAD}.weight", (V, a.d)
        yield BIAS, (1, V)
        for stack in (a.encoder, a.decoder):
            yield f"{stack.names.embed}.weight", (stack.vocabulary, a.d)
            if a.sinusoidal:
                yield f"{stack.names.positions}.weight", (a.positions or 0, a.d)
        yield f"{SHARED}.weight", (a.encoder.vocabulary, a.d)


def _norms_of(stack: Stack) -> Iterator[tuple[str, int]]:
    """Each norm of a stack and its layer, in the order the input meets them."""
    n = stack.names
    if n.embed_norm is not None:
        yield n.embed_norm, 0
    for i in range(stack.layers):
        yield from ((name.format(i), i) for name in (n.attention_norm, n.cross_norm, n.mlp_norm) if name)
    if n.norm is not None:
        yield n.norm, stack.layers
