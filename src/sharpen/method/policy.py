"""What a model must answer so that the method can search it, score it and adapt it.

`pi` is one distribution everywhere: the softmax over the tokens that decoding allows, in search and in scoring alike.
The batch axis B runs over inputs (utterances), never over hypotheses: hypotheses of one input are nodes of its tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.norms import Affine, Norm
from sharpen.method.tree import PackedTrees


class Prepared(Protocol):
    """Inputs with everything computed that no adaptation can change, such as features and prompts."""

    def __len__(self) -> int: ...
    def select(self, inputs: Sequence[int]) -> Self:
        """Some of the inputs."""


class Encoded(Protocol):
    """What the model computes for each input before it outputs anything.

    Where a model has norms on both sides and only the decoder's adapt, it is computed once for the whole episode.
    """

    def detach(self) -> Self:
        """The same values without their gradient, for searching before scoring."""

    def select(self, inputs: Sequence[int]) -> Self:
        """Some of the inputs."""


class Frontier(Protocol):
    """A search in progress: the append-only cache and the nodes that were extended last."""

    @property
    def hidden(self) -> Tensor:
        """Last hidden states of the frontier's nodes: (B, n, d)."""


P = TypeVar("P", bound=Prepared, contravariant=True)
E = TypeVar("E", bound=Encoded)
S = TypeVar("S", bound=Frontier)


class Policy(Protocol[P, E, S]):
    """An autoregressive model with its input side, seen through the few calls that the method needs.

    Its logits must be W h, or W h and a constant bias: there the gradient enters, in closed form. The model must be
    deterministic: no dropout. `method.conformance.check_policy` holds a policy to all that is said here.
    """

    @property
    def eos(self) -> int:
        """The token that ends an output."""

    @property
    def vocabulary(self) -> Tensor:
        """The output matrix W: (V, d)."""

    def project(self, hidden: Tensor) -> Tensor:
        """The logits, h W^T and a bias if there is one, as fast as they come, without gradient: (n, d) -> (n, V)."""

    @property
    def forbidden(self) -> Tensor:
        """What decoding removes from pi: the masks in use, (F, V) bool; all false where it removes nothing."""

    def mask(self, depths: Tensor) -> Tensor:
        """Which of those masks holds at nodes of these depths: int64 of the same shape."""

    def norms(self) -> Sequence[Norm]:
        """Every norm of the model, in the order the input meets them."""

    def adapted(self, norms: Mapping[str, Affine]) -> Self:
        """The same frozen weights seen through other parameters of some norms, one row for each input.

        A view of its own: neither this policy nor the model is written. Norms that are not given stay as they are here.
        """

    def encode(self, prepared: P) -> E:
        """The input side, with gradients to the adapted norms where grad is on."""

    def capacity(self, encoded: E) -> list[int]:
        """For each input, how many tokens the model can output at most after its prompt."""

    def begin(self, encoded: E) -> S:
        """Reads the prompts; the frontier is then the root of each tree, (B, 1)."""

    def extend(self, state: S, parents: Tensor, tokens: Tensor) -> S:
        """Appends nodes: row j of input b continues row parents[b, j] of the last frontier with tokens[b, j].

        A negative parent is padding. An input whose rows are all padding has ended and may be dropped from the work.
        The state passed in is spent.
        """

    def score(self, encoded: E, trees: PackedTrees) -> Tensor:
        """Last hidden states of every node of every tree in one pass, with gradients where grad is on: (B, N, d)."""

    def log_pi(self, hidden: Tensor, depth: int) -> Tensor:
        """log pi(. | node): log-softmax of `project` after `forbidden`, float32 or better: (n, d) -> (n, V)."""


def generator(seed: int, utterance: str) -> torch.Generator:
    """The random source of one utterance; its draws do not depend on batch, order or resume."""
    digest = hashlib.sha256(f"{seed}\x00{utterance}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


LONGEST = 444  # tokens of any output


def default_limit(seconds: float, per_second: int = 15) -> int:
    """The longest output considered for an input of that duration: 15 tokens a second, at least 32, at most LONGEST."""
    return min(LONGEST, max(32, round(per_second * seconds)))


def check_limits(limits: Sequence[int], capacity: Sequence[int]) -> list[int]:
    """Each input's length limit, held to what the model has positions for."""
    if len(limits) != len(capacity):
        raise ValueError(f"{len(limits)} length limits for {len(capacity)} inputs: give one for each")
    odd = next((limit for limit in limits if not isinstance(limit, Integral) or limit < 1), None)
    if odd is not None:
        raise ValueError(f"a length limit is a whole number of tokens, at least 1, not {odd}")
    full = next((b for b, room in enumerate(capacity) if room < 1), None)
    if full is not None:
        raise SharpenError(f"the prompt of input {full} leaves no room for an output; shorten it")
    return [min(limit, room) for limit, room in zip(limits, capacity, strict=True)]
