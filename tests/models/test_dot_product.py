"""Attention out of plain products is torch's own."""

import pytest
import torch
import torch.nn.functional as F

from sharpen import products
from sharpen.models import dot_product
from sharpen.models.dot_product import attention
from sharpen.products import multiplies, multiplies_bfloat16


def inputs(B, n, m, dtype, biased):
    parts = [torch.randn(B, length, 3, 6, 8, dtype=torch.float64).unbind(2)[0].transpose(1, 2) for length in (n, m, m)]
    bias = {
        "none": None,
        "frames": torch.randn(B, 1, 1, m, dtype=torch.float64),
        "tree": torch.randn(B, 1, n, m, dtype=torch.float64),
        "heads": torch.randn(B, 6, n, m, dtype=torch.float64),
    }[biased]
    return [part.to(dtype).requires_grad_() for part in parts], None if bias is None else bias.to(dtype)


def torchs(q, k, v, bias, scale):
    mask = None if bias is None else bias.expand(-1, -1, q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


@pytest.mark.parametrize("biased", ["none", "frames", "tree", "heads"])
@pytest.mark.parametrize("together", [1, 2, 6])  # heads at a time
@pytest.mark.parametrize("scale", [None, 0.3])
def test_products_and_their_gradients_are_torchs(biased, together, scale):
    rows, bias = inputs(2, 40, 50, torch.float64, biased)
    full = None if bias is None else bias.expand(2, 6, -1, -1)
    scaled = rows[0] * (8**-0.5 if scale is None else scale)
    ours, theirs = dot_product._small(scaled, *rows[1:], full, together), torchs(*rows, bias, scale)
    assert torch.allclose(ours, theirs, atol=1e-12)
    direction = torch.randn_like(ours)
    for one, two in zip(
        torch.autograd.grad(ours, rows, direction), torch.autograd.grad(theirs, rows, direction), strict=True
    ):
        assert torch.allclose(one, two, atol=1e-12)


@pytest.mark.parametrize("biased", ["none", "frames", "tree", "heads"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_large_heads_and_their_gradients_are_torchs(biased, dtype, tolerance, scale, monkeypatch):
    monkeypatch.setattr(dot_product, "LARGE", 50 * 60)
    monkeypatch.setattr(dot_product, "CACHED", 50 * 60)
    rows, bias = inputs(2, 50, 60, dtype, biased)
    exact_rows = [row.detach().double().requires_grad_() for row in rows]
    ours, exact = attention(*rows, bias, scale), torchs(*exact_rows, None if bias is None else bias.double(), scale)
    assert torch.allclose(ours.double(), exact, atol=tolerance)
    direction = torch.randn_like(exact).to(dtype)
    found = torch.autograd.grad(ours, rows, direction)
    expected = torch.autograd.grad(exact, exact_rows, direction.double())
    for one, two in zip(found, expected, strict=True):
        assert torch.allclose(one.double(), two, atol=5 * tolerance)


def test_large_heads_in_bfloat16_without_onednn(monkeypatch):
    monkeypatch.setattr(dot_product, "CACHED", 50 * 60)
    monkeypatch.setattr(dot_product, "multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(products, "_onednn", lambda: False)
    monkeypatch.setattr(products, "product", None)
    monkeypatch.setattr(dot_product, "product", None)
    rows, bias = inputs(2, 50, 60, torch.bfloat16, "frames")
    exact = torchs(*[row.double() for row in rows], bias.double(), None)
    assert torch.allclose(attention(*rows, bias).double(), exact, atol=0.05)


def test_which_way_is_taken():
    def way(dtype, n, m):
        q, k = torch.empty(1, 8, n, 64, dtype=dtype), torch.empty(1, 8, m, 64, dtype=dtype)
        return dot_product._together(q, k)

    assert way(torch.float64, 1500, 1500) is None
    assert way(torch.float32, 16, 1500) is None  # a level of a search
    assert way(torch.float32, 540, 540) == way(torch.float32, 231, 600) == (1 if multiplies(torch.empty(1)) else None)
    assert way(torch.float32, 540, 541) is None  # a shape of its own
    if multiplies_bfloat16("cpu"):
        assert (way(torch.bfloat16, 16, 560), way(torch.bfloat16, 1500, 1500)) == (117, 1)


@pytest.mark.parametrize("n", [1, 16, 200])
@pytest.mark.parametrize("biased", ["none", "frames", "tree", "heads"])
def test_bfloat16_rounds_and_nothing_else(n, biased):
    rows, bias = inputs(2, n, 70, torch.bfloat16, biased)
    exact = torchs(*[row.double() for row in rows], None if bias is None else bias.double(), None)
    assert torch.allclose(attention(*rows, bias).double(), exact, atol=0.05)


def test_nodes_that_are_not_seen_have_no_weight():
    rows, _ = inputs(1, 60, 60, torch.bfloat16, "none")
    seen = torch.ones(60, 60, dtype=torch.bool).tril()[None, None]
    bias = torch.zeros(1, 1, 60, 60, dtype=torch.bfloat16).masked_fill(~seen, -torch.inf)
    before = attention(*rows, bias)
    changed = [row.detach().clone() for row in rows]
    changed[1][:, :, 30:], changed[2][:, :, 30:] = 5.0, 7.0
    assert torch.equal(attention(*changed, bias)[:, :, :30], before[:, :, :30])
