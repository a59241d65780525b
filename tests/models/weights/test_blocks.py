"""ggml's block formats: what their bytes stand for."""

import numpy as np
import pytest
import torch
from models.weights.quantisers import CODES, SUPER, ggml, matrix, plain_q4_k, plain_q6_k, step
from models.weights.writers import GGML_FILES

from sharpen.errors import WeightsError
from sharpen.models.weights.blocks import FORMATS, Blocks, read_blocks
from sharpen.models.weights.stored import Content, Reader

K_QUANTS = {"q4_k": plain_q4_k, "q6_k": plain_q6_k}


@pytest.mark.parametrize("kind", GGML_FILES)
def test_blocks_are_read_back_within_half_a_step(kind):
    x = matrix()
    stored = Blocks(kind, x.shape, memoryview(bytearray(ggml(x, kind))))
    assert stored.bits == int(kind[1])
    read = stored.tensor().numpy()
    # Scales are float16: 2^-11 of the number, and their smallest steps. q4_0 and q5_0 reach the largest number on one
    # side only; the other side lacks half a step more.
    steps = 1.0 if kind in ("q4_0", "q5_0") else 0.5
    limit = steps * step(x, kind) + np.abs(x).reshape(-1, 32).max(1).repeat(32).reshape(x.shape) * 2**-9 + 1e-5
    assert (np.abs(read - x) <= limit).all()
    assert np.abs(read - x).max() > 1e-3  # it is quantised indeed
    rows = torch.tensor([[5, 0], [2, 2]])
    assert torch.equal(stored.lines(rows), stored.tensor()[rows])
    assert torch.equal(stored.rows(1, 4).tensor(), stored.tensor()[1:4])


@pytest.mark.parametrize("kind", K_QUANTS)
def test_k_quants_are_what_a_loop_over_the_layout_says(kind):
    """Of blocks whose every bit is random but for d and m, which must be finite."""
    form, rng = FORMATS[kind], np.random.default_rng(3)
    assert (form.numbers, form.code) == (SUPER, CODES[kind])
    raw = rng.integers(0, 256, (12, form.size), dtype=np.uint8)
    halves = rng.normal(size=(12, 2)).astype(np.float16).view(np.uint8)
    start = 0 if kind == "q4_k" else 208
    raw[:, start : start + 4] = halves[:, : raw[:, start : start + 4].shape[1]]
    stored = Blocks(kind, (4, 3 * SUPER), memoryview(bytearray(raw.tobytes())))
    expected = torch.tensor([K_QUANTS[kind](block.tobytes()) for block in raw]).view(4, -1)
    torch.testing.assert_close(stored.tensor(), expected, rtol=1e-5, atol=1e-5)
    rows = torch.tensor([[3, 0], [2, 2]])
    assert torch.equal(stored.lines(rows), stored.tensor()[rows])
    assert torch.equal(stored.rows(1, 3).tensor(), stored.tensor()[1:3])
    assert stored.bits == int(kind[1])


@pytest.mark.parametrize(("kind", "worst"), [("q4_k", 0.12), ("q6_k", 0.04)])
def test_k_quants_are_read_back_nearly(kind, worst):
    x = np.random.default_rng(0).normal(size=(3, 512)).astype(np.float32)
    stored = Blocks(kind, x.shape, memoryview(bytearray(ggml(x, kind))))
    error = np.linalg.norm(stored.tensor().numpy() - x) / np.linalg.norm(x)
    assert worst / 8 < error < worst


def test_a_large_tensor_is_converted_in_parts():
    """Every part is where it belongs, the last, shorter one too."""
    x = np.random.default_rng(0).normal(size=(5, 1 << 17)).astype(np.float32)
    stored = Blocks("q8_0", x.shape, memoryview(bytearray(ggml(x, "q8_0"))))
    assert (np.abs(stored.tensor().numpy() - x) <= 0.51 * step(x, "q8_0") + 0.01).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_is_whole_blocks(kind):
    form = FORMATS[kind]
    reader = Reader(Content([memoryview(bytearray(4 * form.size))]), "file")
    assert read_blocks(reader, kind, (2, 2 * form.numbers), "w").shape == (2, 2 * form.numbers)
    with pytest.raises(WeightsError, match=f"file: damaged: w of shape .* is {kind}, .* rows of {form.numbers}"):
        read_blocks(reader, kind, (2, form.numbers // 2), "w")
