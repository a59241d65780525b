"""The objectives: the coefficients of every token's log pi and every prefix's entropy in the loss.

    L = ( sum_edges a(e) log pi(e)  +  sum_nodes c(n) Ent(n) ) / Z

`a` and `c` are constants under the gradient. Z is the group's token count, sum_i |y_i| (the paper's), or G, with which
the objectives over samples are exactly unbiased.

    H_seq(y) = -sum_t log pi(y_t | y_<t)
    H_tok(y) =  sum_t Ent(pi(. | y_<t))
    A_i      =  c_i - mean_{j != i} c_j        leave-one-out; with one hypothesis A = c
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from sharpen.errors import SharpenError

Array = NDArray[np.float64]
Search = Literal["greedy", "sample", "beam"]
Normalise = Literal["tokens", "group"]


@dataclass(frozen=True)
class Group:
    """The G hypotheses of one input, position by position, as plain arrays without gradient."""

    entropies: Array  # (G, T) Ent(pi(. | y_<t)), 0 beyond a hypothesis' end
    logprobs: Array  # (G, T) log pi(y_t | y_<t), 0 beyond its end
    inside: Array  # (G, T) 1 up to and with the last token, 0 beyond

    @property
    def H_tok(self) -> Array:  # noqa: N802
        return np.asarray(self.entropies.sum(1))  # (G,)

    @property
    def H_seq(self) -> Array:  # noqa: N802
        return np.asarray(-self.logprobs.sum(1))  # (G,)


@dataclass(frozen=True)
class Coefficients:
    """What multiplies log pi(y_t | y_<t) and Ent(pi(. | y_<t)) of every hypothesis in the loss, before 1/Z."""

    edges: Array  # (G, T)
    nodes: Array  # (G, T)


class Objective(Protocol):
    """A loss, as coefficients. `baseline=False` uses the plain cost in place of the leave-one-out advantage."""

    def __call__(self, group: Group, baseline: bool = True) -> Coefficients: ...


def leave_one_out(cost: Array, baseline: bool = True) -> Array:
    """A_i = c_i - mean over the others, along the first axis; a single hypothesis has no others and no baseline."""
    G = len(cost)
    if G == 1 or not baseline:
        return cost
    return np.asarray(cost - (cost.sum(0) - cost) / (G - 1))


def em_seq(group: Group, baseline: bool = True) -> Coefficients:
    """A_seq log pi(y): the exact gradient through the one-sample estimator; its other part has mean zero."""
    A = leave_one_out(group.H_seq, baseline)  # (G,)
    return Coefficients(A[:, None] * group.inside, np.zeros_like(group.inside))


def pg_tok(group: Group, baseline: bool = True) -> Coefficients:
    """A_tok log pi(y): the policy-gradient part alone."""
    A = leave_one_out(group.H_tok, baseline)  # (G,)
    return Coefficients(A[:, None] * group.inside, np.zeros_like(group.inside))


def ent_tok(group: Group, baseline: bool = True) -> Coefficients:
    """H_tok(y): the entropy part alone."""
    return Coefficients(np.zeros_like(group.inside), group.inside)


def em_tok(group: Group, baseline: bool = True) -> Coefficients:
    """A_tok log pi(y) + H_tok(y): both parts."""
    return Coefficients(pg_tok(group, baseline).edges, ent_tok(group).nodes)


def em_tok_togo(group: Group, baseline: bool = True) -> Coefficients:
    """em_tok where token t pays for the entropy of later steps only: it cannot change earlier ones."""
    to_go = group.entropies[:, ::-1].cumsum(1)[:, ::-1] - group.entropies  # (G, T) sum_{s>t} Ent_s, 0 once ended
    return Coefficients(leave_one_out(to_go, baseline) * group.inside, group.inside)


@dataclass(frozen=True)
class Method:
    """A row of METHODS: how hypotheses are searched, and what is minimised over them. No search: nothing adapts."""

    search: Search | None
    objective: Objective | None
    decode: Literal["greedy", "beam"] = "greedy"  # how the final answer is searched

    def __post_init__(self) -> None:
        for name, values in (("search", (None, *get_args(Search))), ("decode", ("greedy", "beam"))):
            if getattr(self, name) not in values:
                raise SharpenError(f"{name} is {getattr(self, name)!r}; expected one of {values}")
        if (self.search is None) != (self.objective is None):
            raise SharpenError("a method needs both a search and an objective, or neither")


METHODS: dict[str, Method] = {
    "source": Method(None, None),
    "beam": Method(None, None, decode="beam"),
    "greedy-em": Method("greedy", ent_tok),
    "em-seq": Method("sample", em_seq),
    "em-tok": Method("sample", em_tok),
    "em-tok-b": Method("beam", em_tok),
    "pg-tok": Method("sample", pg_tok),
    "ent-tok": Method("sample", ent_tok),
    "pg-tok-b": Method("beam", pg_tok),
    "ent-tok-b": Method("beam", ent_tok),
    "em-tok-togo": Method("sample", em_tok_togo),
    "em-tok-togo-b": Method("beam", em_tok_togo),
}


def of_frames(group: Group, baseline: bool = True) -> NoReturn:
    """In place of an objective: those of CTC (method.ctc) have no hypothesis tree."""
    raise SharpenError(
        f"{' and '.join(CTC_METHODS)} are for CTC models; a model that writes token by token has em-tok-b"
    )


# A CTC model's frames are independent: "greedy" stands for no samples, "sample" for G paths at each step.
CTC_METHODS: dict[str, Method] = {"ctc-frame": Method("greedy", of_frames), "ctc-collapse": Method("sample", of_frames)}
EVERY_METHOD: Mapping[str, Method] = ChainMap(CTC_METHODS, METHODS)  # it lists the last of them first


def normaliser(group: Group, normalise: Normalise) -> float:
    """Z of one input's own group, never of a batch."""
    return float(group.inside.sum()) if normalise == "tokens" else float(len(group.inside))
