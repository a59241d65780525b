"""Dynamic time warping: which stretch of columns belongs to each row of a matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def onsets(gain: NDArray[np.floating]) -> NDArray[np.int64]:
    """The column at which the best path enters each row: (N, M) -> (N,).

    A path leads from the first entry to the last, by steps to the next row, the next column or both; the best one has
    the largest sum of entries. Of equal paths it is one that enters its rows early.

    One row is computed at once. With the sums X[j] of its entries up to column j, a path that enters it at column k has
    best(k) + X[j] - X[k-1] at column j, where best(k) is the larger sum of the two entries it can come from: for all j
    together, the running maximum of best(k) - X[k-1].
    """
    N, M = gain.shape
    columns = np.arange(M)
    sums = np.empty((N, M))  # of the best path to each entry
    entered = np.zeros((N, M), np.int64)  # where that path enters the entry's row
    sums[0] = np.cumsum(gain[0], dtype=np.float64)
    for i in range(1, N):
        above = sums[i - 1]
        best = above.copy()
        np.maximum(above[1:], above[:-1], out=best[1:])
        X = np.cumsum(gain[i], dtype=np.float64)
        value = best - X + gain[i]
        highest = np.maximum.accumulate(value)
        rises = np.concatenate([[True], value[1:] > highest[:-1]])
        entered[i] = np.maximum.accumulate(np.where(rises, columns, 0))
        sums[i] = X + highest
    found = np.zeros(N, np.int64)
    j = M - 1
    for i in range(N - 1, 0, -1):
        k = found[i] = entered[i, j]
        j = k - 1 if k > 0 and sums[i - 1, k - 1] >= sums[i - 1, k] else k
    return found
