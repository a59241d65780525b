from functools import cache

import numpy as np
import pytest

from sharpen.speech.warping import onsets


def paths(N, M):
    """Every path from the first entry to the last."""

    @cache
    def to(i, j):
        if i < 0 or j < 0:
            return []
        if i == j == 0:
            return [((0, 0),)]
        return [(*path, (i, j)) for before in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) for path in to(*before)]

    return to(N - 1, M - 1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (2, 2), (3, 5), (4, 6), (6, 4)])
def test_the_best_of_all_paths(shape):
    for seed in range(20):
        gain = np.random.default_rng(seed).standard_normal(shape)
        best = max(paths(*shape), key=lambda path: sum(gain[entry] for entry in path))
        first = {i: min(j for row, j in best if row == i) for i, _ in best}
        assert onsets(gain).tolist() == [first[i] for i in range(shape[0])]


def test_of_equal_paths_an_early_one():
    assert onsets(np.zeros((3, 5))).tolist() == [0, 0, 0]


def test_blocks_on_a_diagonal():
    gain = -np.ones((3, 900), np.float32)
    gain[0, :200] = gain[1, 200:650] = gain[2, 650:] = 1.0
    assert onsets(gain).tolist() == [0, 200, 650]
