"""The calls a model must answer so that the method can search it, score it and adapt it.

`pi` is one distribution everywhere: the softmax over the tokens that decoding allows, in search and in scoring alike.
The batch axis B runs over inputs (utterances), never over hypotheses: the hypotheses of an input are nodes of its tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.norms import Affine, Norm
from sharpen.method.tree import PackedTrees

LONGEST = 444  # tokens of an output, unless a caller gives limits


class Prepared(Protocol):
    """Inputs with everything computed that adaptation cannot change, such as features and prompts."""

    def __len__(self) -> int: ...
    def select(self, inputs: Sequence[int]) -> Self:
        """Some of the inputs, in the order given."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The inputs of all parts as one batch."""


class Encoded(Protocol):
    """What the model computes for each input before it outputs anything.

    If only decoder norms adapt, and the model has encoder norms too, it is computed once, when an input joins.
    """

    def detach(self) -> Self:
        """The same values without their gradient, for the search that precedes scoring."""

    def select(self, inputs: Sequence[int]) -> Self:
        """Some of the inputs, in the order given."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The inputs of all parts as one batch."""


class Frontier(Protocol):
    """A search in progress: the append-only cache and the nodes that were extended last."""

    @property
    def hidden(self) -> Tensor:
        """Last hidden states of the frontier's nodes: (B, n, d)."""


P = TypeVar("P", bound=Prepared)
E = TypeVar("E", bound=Encoded)
S = TypeVar("S", bound=Frontier)


class Policy(Protocol[P, E, S]):
    """An autoregressive model with its input side, seen through the few calls that the method needs.

    Its logits must be h W^T, with or without a constant bias: the gradient enters there in closed form. The model must
    be deterministic (no dropout). `method.conformance.check_policy` checks a policy against this description.
    """

    @property
    def eos(self) -> int:
        """The token that ends an output."""

    @property
    def vocabulary(self) -> Tensor:
        """The output matrix W: (V, d)."""

    def project(self, hidden: Tensor) -> Tensor:
        """The logits h W^T, plus a bias if there is one, without gradient: (n, d) -> (n, V).

        The caller may overwrite the result, so it must be a new tensor.
        """

    @property
    def forbidden(self) -> Tensor:
        """The masks of tokens that decoding removes from pi: (F, V) bool, all false where it removes nothing."""

    def mask(self, depths: Tensor) -> Tensor:
        """Which row of `forbidden` applies at nodes of these depths: int64 of the same shape."""

    def norms(self) -> Sequence[Norm]:
        """Every norm of the model, in the order the input meets them."""

    def adapted(self, norms: Mapping[str, Affine]) -> Self:
        """A view of the same frozen weights with other parameters for some norms, one row per input.

        Neither this policy nor the model is written. Norms that are not given keep the values they have here.
        """

    def ahead(self, prepared: P, norms: Collection[str]) -> P:
        """The same inputs with what lies before the first of these norms computed once; a policy may return them as is.

        Only these norms will be adapted.
        """

    def encode(self, prepared: P) -> E:
        """The input side, with gradients to the adapted norms where grad is enabled."""

    def capacity(self, encoded: E) -> list[int]:
        """For each input, how many tokens the model can output after its prompt."""

    def begin(self, encoded: E) -> S:
        """Reads the prompts; the frontier is then the root of each tree: (B, 1)."""

    def extend(self, state: S, parents: Tensor, tokens: Tensor) -> S:
        """Appends nodes: row j of input b continues row parents[b, j] of the last frontier with tokens[b, j].

        A negative parent is padding. An input whose rows are all padding has ended and may be dropped from the
        computation. The state passed in must not be used again.
        """

    def score(self, encoded: E, trees: PackedTrees) -> Tensor:
        """Last hidden states of every node of every tree in one pass, with gradients where enabled: (B, N, d)."""


def log_pi(policy: Policy[Any, Any, Any], hidden: Tensor, depth: int) -> Tensor:
    """log pi(. | node) for nodes of one depth, float32 or better, -inf where forbidden: (n, d) -> (n, V)."""
    z = policy.project(hidden)
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    row = policy.forbidden[int(policy.mask(torch.tensor([depth], device=hidden.device))[0])]  # (V,)
    removed = row.nonzero()[:, 0]  # few tokens: much faster than a mask over every row
    return z.index_fill_(-1, removed, -torch.inf).log_softmax(-1)


def generator(seed: int, name: str) -> torch.Generator:
    """The random source of one input; its draws do not depend on batch, order or resume."""
    digest = hashlib.sha256(f"{seed}\x00{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def check_limits(limits: Sequence[int], capacity: Sequence[int]) -> list[int]:
    """Each input's length limit, capped at what the model has positions for."""
    if len(limits) != len(capacity):
        raise ValueError(f"{len(limits)} length limits for {len(capacity)} inputs; give one per input")
    invalid = next((limit for limit in limits if not isinstance(limit, Integral) or limit < 1), None)
    if invalid is not None:
        raise ValueError(f"a length limit is a whole number of tokens, at least 1, not {invalid}")
    full = next((b for b, room in enumerate(capacity) if room < 1), None)
    if full is not None:
        raise SharpenError(f"the prompt of input {full} leaves no room for an output; shorten it")
    return [min(limit, room) for limit, room in zip(limits, capacity, strict=True)]
