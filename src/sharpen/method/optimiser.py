"""AdamW over the rows of a matrix, each row at its own step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

B1, B2, EPS = 0.9, 0.999, 1e-8  # torch's defaults


class Moments(NamedTuple):
    """Running means of the gradient and of its square."""

    m: Tensor  # (B, parameters)
    v: Tensor  # (B, parameters)

    @classmethod
    def zeros(cls, theta: Tensor) -> Moments:
        return cls(torch.zeros_like(theta), torch.zeros_like(theta))


def adamw(
    theta: Tensor,  # (B, parameters)
    moments: Moments,
    gradient: Tensor,  # (B, parameters)
    t: Sequence[int],  # each row's step, from 1
    lr: Sequence[float],
    weight_decay: Sequence[float],
) -> tuple[Tensor, Moments]:
    """The next theta and moments; nothing is written. Rows never meet: everything is elementwise."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(theta)[:, None]  # (B, 1)

    m = moments.m * B1 + gradient * (1 - B1)
    v = moments.v * B2 + gradient.square() * (1 - B2)
    m_hat, v_hat = m / column([1 - B1**n for n in t]), v / column([1 - B2**n for n in t])
    decay = column([1 - rate * w for rate, w in zip(lr, weight_decay, strict=True)])
    return theta * decay - column(lr) * (m_hat / (v_hat.sqrt() + EPS)), Moments(m, v)
