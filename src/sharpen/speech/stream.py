"""The samples of a long recording, decoded as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sharpen.errors import AudioError


class StreamedSamples:
    """Stands for an array of samples: it has a length, and its slices are arrays, (N,) float32.

    What was decoded is held until `forget` lets it go. A slice of what was forgotten decodes the recording from its
    start once more.
    """

    def __init__(self, pieces: Callable[[], Iterator[bytes]], length: int, label: str, digest: str) -> None:
        self.digest = digest  # of all samples
        self._pieces, self._length, self._label = pieces, length, label
        self._rest = pieces()
        self._held = np.zeros(0, np.float32)
        self._first = 0  # where in the recording the held samples begin
        self._from = 0  # what lies before this is not held when it is decoded

    def __len__(self) -> int:
        return self._length

    @property
    def held(self) -> int:
        """How many samples are in memory."""
        return len(self._held)

    def __getitem__(self, part: Any) -> np.ndarray:
        start, stop, step = part.indices(self._length) if isinstance(part, slice) else (0, 0, 0)
        if step != 1:
            raise TypeError(f"[{part}] is not available of a streamed recording; expected a slice without a step")
        if start < self._first:
            self._rest, self._held, self._first, self._from = self._pieces(), np.zeros(0, np.float32), 0, start
        self._read(stop)
        return self._held[start - self._first : max(start, stop) - self._first]

    def forget(self, before: int) -> None:
        """Lets go of the samples before that one."""
        self._from = max(self._from, before)
        gone = min(self._from - self._first, len(self._held))
        if gone > 0:
            self._held, self._first = self._held[gone:].copy(), self._first + gone  # a view would keep the whole

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """All samples from the start, `size` at a time; what is held stays as it is."""
        waiting = bytearray()
        for piece in self._pieces():
            waiting += piece
            while len(waiting) >= 2 * size:
                yield as_float(waiting[: 2 * size])
                del waiting[: 2 * size]
        if waiting:
            yield as_float(waiting)

    def _read(self, stop: int) -> None:
        """Decodes until the samples before `stop` are held."""
        new, count = bytearray(), self._first + len(self._held)
        while count < stop:
            piece = next(self._rest, None)
            if piece is None:
                raise AudioError(f"{self._label} has become shorter while it was read: start again with the new file")
            count += len(piece) // 2
            new += piece
            if count <= self._from:
                new.clear()
        first = count - len(new) // 2
        if new:
            joined = first == self._first + len(self._held)
            self._held = np.concatenate([self._held, as_float(new)]) if joined else as_float(new)
            self._first = self._first if joined else first


def as_float(pcm: bytes | bytearray) -> np.ndarray:
    """int16 bytes as (N,) float32 in [-1, 1)."""
    samples = np.frombuffer(pcm, dtype=np.int16).astype(np.float32)
    samples /= 32768.0
    return samples


def blocks_of(samples: Any, size: int) -> Iterator[np.ndarray]:
    """The samples of a recording, array or stream, `size` at a time."""
    if isinstance(samples, StreamedSamples):
        yield from samples.blocks(size)
    else:
        yield from (samples[start : start + size] for start in range(0, len(samples), size))
