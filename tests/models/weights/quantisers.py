"""Quantisers of the formats that are read, written from their definitions with numpy alone."""

import numpy as np

BLOCK = 32


def ggml(x: np.ndarray, kind: str) -> bytes:
    """A matrix as whisper.cpp's quantiser stores it: 32 numbers of a row, then the next."""
    blocks, bits = x.astype(np.float32).reshape(-1, BLOCK), int(kind[1])
    every = np.arange(len(blocks))
    if kind == "q8_0":
        d, low, centre = np.abs(blocks).max(1) / 127, None, 0
    elif kind.endswith("_0"):
        centre = 1 << (bits - 1)
        d, low = blocks[every, np.abs(blocks).argmax(1)] / -centre, None
    else:
        low, centre = blocks.min(1).astype(np.float16), 0
        d = (blocks.max(1) - blocks.min(1)) / ((1 << bits) - 1)
    d = d.astype(np.float16)
    inverse = np.divide(1, d.astype(np.float32), where=d != 0, out=np.zeros(len(d), np.float32))[:, None]
    start = 0 if low is None else low.astype(np.float32)[:, None]
    q = np.floor((blocks - start) * inverse + centre + 0.5)
    columns = [d[:, None].view(np.uint8), *([] if low is None else [low[:, None].view(np.uint8)])]
    if kind == "q8_0":
        return np.hstack([*columns, q.clip(-127, 127).astype(np.int8).view(np.uint8)]).tobytes()
    q = q.clip(0, (1 << bits) - 1).astype(np.uint8)
    if bits == 5:
        columns.append(np.packbits(q >> 4, axis=1, bitorder="little"))
    return np.hstack([*columns, q[:, :16] & 15 | (q[:, 16:] & 15) << 4]).tobytes()


def step(x: np.ndarray, kind: str) -> np.ndarray:
    """How far two neighbouring values of the format are apart, for each number of a matrix."""
    blocks = x.reshape(-1, BLOCK)
    bits = int(kind[1])
    if kind == "q8_0":
        d = np.abs(blocks).max(1) / 127
    elif kind.endswith("_0"):
        d = np.abs(blocks).max(1) / (1 << (bits - 1))
    else:
        d = (blocks.max(1) - blocks.min(1)) / ((1 << bits) - 1)
    return np.repeat(d, BLOCK).reshape(x.shape)


def by_row(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """CTranslate2's int8: each row times 127 over its largest number; and those factors."""
    rows = x.reshape(len(x), -1)
    factors = np.array([127 / largest if (largest := np.abs(row).max()) else 1 for row in rows], np.float32)
    return np.rint(rows * factors[:, None]).astype(np.int8).reshape(x.shape), factors


def asymmetric(x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ONNX's uint8: (q - zero) scale, for the whole tensor or for each index of an axis; q, scale and zero."""
    axes = None if axis is None else tuple(i for i in range(x.ndim) if i != axis)
    low, high = np.minimum(x.min(axes, keepdims=True), 0), np.maximum(x.max(axes, keepdims=True), 0)
    scale = ((high - low) / 255).astype(np.float32)
    scale[scale == 0] = 1
    zero = np.rint(-low / scale).clip(0, 255).astype(np.uint8)
    q = (np.rint(x / scale) + zero).clip(0, 255).astype(np.uint8)
    shape = () if axis is None else (-1,)
    return q, scale.reshape(shape), zero.reshape(shape)
