"""The limit of the machine: its rates of matrix products and of reading memory, and an episode at those rates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sharpen.models.weights.checkpoint import Dimensions
from sharpen.products import linear

STAGES = ("stem", "encode", "search", "score", "backward", "optimiser", "decode")


@dataclass(frozen=True)
class Machine:
    """Measured once, in the run that uses it."""

    flops: float  # multiplications and additions per second, in a large float32 matrix product
    bandwidth: float  # bytes per second, summing an array larger than any cache
    threads: int


@dataclass(frozen=True)
class Work:
    """The size of one step of one utterance."""

    frames: int  # S of the encoder
    nodes: int  # of the tree, all of them scored
    levels: int  # of the search
    searched: int  # nodes that the search visits, on all levels
    greedy_levels: int  # of the final decode


@torch.no_grad()
def measure() -> Machine:
    """The best of several attempts for each rate."""
    a = torch.randn(2048, 2048)
    big = torch.ones(1 << 26)  # 256 MB
    return Machine(
        flops=2 * 2048**3 / min(_fastest(lambda: a @ a), _fastest(lambda: linear(a, a))),  # torch's way, or ours
        bandwidth=4 * len(big) / _fastest(lambda: big.sum()),
        threads=torch.get_num_threads(),
    )


def limit(machine: Machine, dims: Dimensions, work: Work, batch: int = 1) -> dict[str, float]:
    """Seconds that each stage needs at least.

    Matrix products run at the rate of large ones. In a search, where few rows meet all the weights, the weights are
    also read once per level, for the whole batch.
    """
    d, f, V, S = dims.state, dims.audio_ffn, dims.vocab_size, work.frames
    E, D = dims.audio_layers, dims.text_layers
    linear = E * S * 2 * (4 * d * d + 2 * d * f)
    attention = E * 4 * S * S * d
    cross = D * S * 4 * d * d  # keys and values for the decoder
    layer = 2 * (6 * d * d + 2 * d * dims.text_ffn)  # one node in one decoder layer
    attended = 4 * S * d  # cross-attention of one node in one decoder layer
    weights = 4 * (D * layer // 2 + V * d)  # bytes read at every level of a search
    keys = 4 * D * 2 * S * d  # bytes of cross-attention keys and values, read at every level

    def searching(nodes: int, levels: int) -> float:
        products = nodes * (D * (layer + attended) + 2 * V * d)
        return products / machine.flops + levels * (weights / batch + keys) / machine.bandwidth

    convolutions = 2 * 3 * d * (2 * S * dims.n_mels + S * d)
    forward = linear + attention + cross
    return {
        "stem": convolutions / machine.flops,
        "encode": forward / machine.flops,
        "search": searching(work.searched, work.levels),
        "score": work.nodes * D * (layer + attended) / machine.flops,
        # Weights have no gradient: a linear layer costs as much as forward, attention two and a half times as much.
        # The head's gradient is one product with the vocabulary matrix.
        "backward": (linear + cross + 2.5 * attention + work.nodes * (D * (layer + 2.5 * attended) + 2 * V * d))
        / machine.flops,
        "optimiser": 0.0,
        "decode": forward / machine.flops + searching(work.greedy_levels, work.greedy_levels),
    }


def _fastest(call: Callable[[], object], attempts: int = 8) -> float:
    times = []
    for _ in range(attempts):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
