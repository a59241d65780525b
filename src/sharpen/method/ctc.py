"""The non-autoregressive case: CTC, where frames are independent and outputs are collapsed frame paths.

A path x_1 … x_T takes one symbol for each frame; collapsing it (merge repeats, drop blanks) gives the output y, and
pi(y) is the sum over all its paths. Two objectives:

    frames     mean_t Ent(p_t)              the entropy of the path, exact and without samples, blind to the collapse
    collapse   sum_i A_i log pi(y_i) / G    the entropy of the output: paths are sampled and collapsed, cost -log pi(y)

As for `em_seq`, the second part of the collapse-aware gradient has mean zero. A temperature other than 1 and the
non-blank mask are heuristics: they change what is minimised, so those variants are biased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.entropy import entropy
from sharpen.method.objectives import leave_one_out

CTCObjective = Literal["frames", "collapse"]
CTCParameters = Literal["norms", "norms+features"]
Output = tuple[int, ...]
NEVER = -1e30  # finite stand-in for log 0


@dataclass(frozen=True)
class CTCAdaptation:
    """How to adapt a CTC model; steps, samples and lr are the paper's for autoregressive models."""

    objective: CTCObjective = "collapse"  # the entropy of collapsed outputs, or "frames": of each frame
    steps: int = 10  # updates of the parameters
    samples: int = 16  # G: paths sampled at each step; "frames" samples none
    lr: float = 1e-3  # AdamW's learning rate
    weight_decay: float = 0.0  # AdamW's
    temperature: float = 1.0  # divides the logits, in sampling and in scoring alike; SUTA uses 2.5
    non_blank: bool = False  # "frames" counts only frames whose best symbol is not the blank, as SUTA does
    parameters: CTCParameters = "norms"  # what adapts: every LayerNorm, or also the convolutions before them
    seed: int = 0  # of the samples

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("samples", 1)):
            if getattr(self, name) < least:
                raise SharpenError(f"{name} is {getattr(self, name)}; expected at least {least}")
        for name, example in (("lr", "1e-3"), ("temperature", "1, or SUTA's 2.5")):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise SharpenError(f"{name} is {getattr(self, name)}; expected a positive number, such as {example}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise SharpenError(f"weight_decay is {self.weight_decay}; expected 0 or more")
        allowed = {"objective": ("frames", "collapse"), "parameters": ("norms", "norms+features")}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise SharpenError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(values)}")
        if self.non_blank and self.objective == "collapse":
            raise SharpenError("non_blank needs objective 'frames': a collapsed path contains its blanks")


def distributions(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Each frame's distribution, float32 or better: (..., V) -> (..., V)."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (wide / temperature).log_softmax(-1)


def collapse(path: Sequence[int], blank: int) -> Output:
    """Merges repeats, then drops blanks; nothing may be left."""
    return tuple(symbol for symbol, _ in groupby(path) if symbol != blank)


def greedy(logits: Tensor, lengths: Sequence[int], blank: int) -> list[Output]:
    """The most probable path of each input, collapsed: (B, T, V) -> B outputs."""
    best = logits.argmax(-1).tolist()
    return [collapse(path[:T], blank) for path, T in zip(best, lengths, strict=True)]


def frame_entropy(log_p: Tensor, lengths: Sequence[int], blank: int, *, non_blank: bool = False) -> Tensor:
    """Mean entropy of the frames that count, those of the padding never: (B, T, V) -> (B,); 0 where none counts."""
    counted = _inside(log_p, lengths)  # (B, T)
    if non_blank:
        counted &= log_p.argmax(-1) != blank
    return entropy(log_p).where(counted, 0).sum(1) / counted.sum(1).clamp(min=1)


@torch.no_grad()
def sample_paths(
    log_p: Tensor, lengths: Sequence[int], samples: int, generators: Sequence[torch.Generator]
) -> list[list[list[int]]]:
    """G paths for each input from its own generator, each frame by inverting its distribution: B x G x T_b symbols."""
    paths: list[list[list[int]]] = []
    for b, (T, g) in enumerate(zip(lengths, generators, strict=True)):
        cdf = log_p[b, :T].exp().cumsum(-1, dtype=torch.float64)  # (T, V)
        u = torch.rand(samples, T, generator=g, dtype=torch.float64).to(cdf.device)  # whatever the batch is padded to
        drawn = torch.searchsorted(cdf, (u * cdf[:, -1]).T.contiguous(), right=True)  # (T, G); never one of p = 0
        paths.append(drawn.clamp_(max=cdf.shape[-1] - 1).T.tolist())  # a NaN frame gives some symbol
    return paths


@dataclass(frozen=True)
class Collapsed:
    """The distinct outputs of B inputs' paths, numbered through the batch."""

    outputs: list[Output]  # N of them
    owner: list[int]  # the input of each
    drawn: list[list[int]]  # for each input, the output of each of its G paths

    @classmethod
    def of(cls, paths: Sequence[Sequence[Sequence[int]]], blank: int) -> Collapsed:
        number: dict[tuple[int, Output], int] = {}
        drawn = [
            [number.setdefault((b, collapse(path, blank)), len(number)) for path in group]
            for b, group in enumerate(paths)
        ]
        return cls([y for _, y in number], [b for b, _ in number], drawn)


def negative_log_likelihood(log_p: Tensor, lengths: Sequence[int], collapsed: Collapsed, blank: int) -> Tensor:
    """-log pi(y) of each distinct output, summed over all its paths: (B, T, V) -> (N,).

    `log_p` must come from a log-softmax: the backward of `ctc_loss` is that of the logits, and only a log-softmax in
    front of it leaves it unchanged. A sampled output is never impossible, so an infinity here is an error that must
    surface, not become zero. Symbols with probability 0 (-inf) are clamped: the backward would compute 0 * inf.
    """
    targets = torch.zeros(len(collapsed.outputs), max(1, *map(len, collapsed.outputs)), dtype=torch.int64)
    for n, y in enumerate(collapsed.outputs):
        targets[n, : len(y)] = torch.tensor(y, dtype=torch.int64)
    return F.ctc_loss(
        log_p[collapsed.owner].transpose(0, 1).clamp(min=NEVER),  # (T, N, V)
        targets.to(log_p.device),
        torch.tensor([lengths[b] for b in collapsed.owner]),
        torch.tensor([len(y) for y in collapsed.outputs]),
        blank=blank,
        reduction="none",
        zero_infinity=False,
    )


def reinforce(nll: Tensor, drawn: Sequence[int], baseline: bool = True) -> Tensor:
    """sum_i A_i log pi(y_i) / G of one input whose G samples are `drawn` of the N outputs: (N,) -> ().

    `nll` is the cost, stopped, and with its sign changed the log-probability.
    """
    A = leave_one_out(nll.detach().double().cpu().numpy()[list(drawn)], baseline)  # (G,)
    a = np.zeros(len(nll))
    np.add.at(a, list(drawn), A / len(drawn))  # several samples may be the same output
    return -(nll @ torch.from_numpy(a).to(nll))


def _inside(log_p: Tensor, lengths: Sequence[int]) -> Tensor:
    frames = torch.arange(log_p.shape[1], device=log_p.device)
    return frames < torch.tensor(lengths, device=log_p.device)[:, None]  # (B, T)
