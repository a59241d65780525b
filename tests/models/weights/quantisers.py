"""Quantisers of the formats that are read, written from their definitions with numpy alone."""

import struct

import numpy as np

BLOCK, SUPER = 32, 256
CODES = {"float32": 0, "float16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q4_k": 12, "q6_k": 14}


def matrix(seed: int = 0, shape: tuple[int, ...] = (6, 96)) -> np.ndarray:
    """Rows of very different sizes, one of them all zeros and one without negative numbers."""
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    x *= 10.0 ** np.arange(-3, len(x) - 3).reshape(-1, *(1,) * (len(shape) - 1))
    x[1], x[2] = 0, np.abs(x[2])
    return x


def ggml(x: np.ndarray, kind: str) -> bytes:
    """A matrix as ggml's quantiser stores it: 32 or 256 numbers of a row, then the next."""
    if kind.endswith("_k"):
        quantise = {"q4_k": _q4_k, "q6_k": _q6_k}[kind]
        return b"".join(quantise(block) for block in x.astype(np.float32).reshape(-1, SUPER))
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


def _q4_k(x: np.ndarray) -> bytes:
    """Not the search for the best scales that llama.cpp does, but the same layout."""
    groups = x.reshape(8, 32)
    low = np.minimum(groups.min(1), 0)
    width = (groups.max(1) - low) / 15
    d, m = np.float16(width.max() / 63), np.float16(-low.min() / 63)
    s, l = (np.rint(a / np.float32(b or 1)).clip(0, 63).astype(int) for a, b in ((width, d), (-low, m)))  # noqa: E741
    steps, starts = np.float32(d) * s, np.float32(m) * l
    q = np.rint((groups + starts[:, None]) / np.where(steps, steps, 1)[:, None]).clip(0, 15).astype(int)
    packed = [s[j] | s[j + 4] >> 4 << 6 for j in range(4)] + [l[j] | l[j + 4] >> 4 << 6 for j in range(4)]
    packed += [s[j] & 15 | (l[j] & 15) << 4 for j in range(4, 8)]
    numbers = [q[j, i] | q[j + 1, i] << 4 for j in range(0, 8, 2) for i in range(32)]
    return d.tobytes() + m.tobytes() + bytes(packed) + bytes(numbers)


def _q6_k(x: np.ndarray) -> bytes:
    groups = x.reshape(16, 16)
    width = np.abs(groups).max(1) / 31
    d = np.float16(width.max() / 127)
    s = np.rint(width / np.float32(d or 1)).astype(int)
    steps = np.float32(d) * s
    q = (np.rint(groups / np.where(steps, steps, 1)[:, None]) + 32).clip(0, 63).astype(int).reshape(2, 4, 32)
    low = [q[h, run, i] & 15 | (q[h, run + 2, i] & 15) << 4 for h in range(2) for run in range(2) for i in range(32)]
    high = [sum(q[h, run, i] >> 4 << 2 * run for run in range(4)) for h in range(2) for i in range(32)]
    return bytes(low) + bytes(high) + s.astype(np.int8).tobytes() + d.tobytes()


def plain_q4_k(block: bytes) -> list[float]:
    """The 256 numbers of a block one by one, as llama.cpp's loops have them."""
    d, m = struct.unpack("<ee", block[:4])
    scales, qs = block[4:16], block[16:]
    y = []
    for j in range(8):
        if j < 4:
            s, low = scales[j] & 63, scales[j + 4] & 63
        else:
            s = scales[j + 4] & 15 | scales[j - 4] >> 6 << 4
            low = scales[j + 4] >> 4 | scales[j] >> 6 << 4
        for i in range(32):
            byte = qs[32 * (j // 2) + i]
            y.append(d * s * (byte >> 4 if j % 2 else byte & 15) - m * low)
    return y


def plain_q6_k(block: bytes) -> list[float]:
    """The same for six bits."""
    scales, (d,) = struct.unpack("<16b", block[192:208]), struct.unpack("<e", block[208:])
    y = [0.0] * 256
    for n in (0, 1):
        ql, qh = block[64 * n : 64 * n + 64], block[128 + 32 * n : 160 + 32 * n]
        for i in range(32):
            quads = (
                ql[i] & 15 | (qh[i] & 3) << 4,
                ql[i + 32] & 15 | (qh[i] >> 2 & 3) << 4,
                ql[i] >> 4 | (qh[i] >> 4 & 3) << 4,
                ql[i + 32] >> 4 | (qh[i] >> 6 & 3) << 4,
            )
            for run, q in enumerate(quads):
                y[128 * n + 32 * run + i] = d * scales[8 * n + 2 * run + i // 16] * (q - 32)
    return y


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
