"""Entropies of the next-token distribution."""

from __future__ import annotations

from torch import Tensor


def entropy(log_pi: Tensor) -> Tensor:
    """Ent(pi) = -sum_v pi(v) log pi(v) over the last axis; forbidden tokens (-inf) contribute nothing."""
    return -(log_pi.exp() * log_pi.clamp(min=-1e30)).sum(-1)  # 0 * -inf would be NaN, 0 * -1e30 is 0
