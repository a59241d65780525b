"""Products of our own are torch's, and so are their gradients."""

import pytest
import torch

from sharpen import products
from sharpen.products import PackedLinear, filled_up, linear, multiplies, packs, pulled


@pytest.mark.parametrize("n", [1, 2, 13, 16, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_product(n, dtype, with_bias):
    W, x, b = torch.randn(1001, 64).to(dtype), torch.randn(2, n, 64).to(dtype), torch.randn(1001).to(dtype)
    packed = PackedLinear(W, b if with_bias else None)
    assert packed._packed == packs(W.device, dtype)
    exact = x.double() @ W.double().T + (b.double() if with_bias else 0)
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    assert torch.allclose(packed(x).double(), exact, rtol=tolerance, atol=tolerance)
    assert packed(x).shape == (2, n, 1001)
    assert packed(x).is_contiguous()


def test_what_is_packed(monkeypatch):
    cpu = torch.device("cpu")
    for able in (True, False):
        monkeypatch.setattr("sharpen.products.multiplies_bfloat16", lambda device, able=able: able)
        there = torch.backends.mkldnn.is_available()
        assert [packs(cpu, t) for t in (torch.float32, torch.bfloat16, torch.float64)] == [there, there and able, False]
    assert not packs(torch.device("meta"), torch.float32)


@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("onednn", [True, False])
def test_a_frozen_product_and_its_gradient(n, dtype, with_bias, onednn, monkeypatch):
    if not onednn:
        monkeypatch.setattr(products, "_onednn", lambda: False)
    W, b = torch.randn(48, 64).to(dtype), torch.randn(48).to(dtype) if with_bias else None
    x = torch.randn(2, 3 * n, 64).to(dtype)[:, ::3].requires_grad_()  # rows that do not lie one behind the other
    y = linear(x, W, b)
    direction = torch.randn(48, 2, n).to(dtype).permute(1, 2, 0)
    (gradient,) = torch.autograd.grad(y, x, direction)
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.5, torch.float64: 1e-12}[dtype]
    exact = x.double() @ W.double().T + (0 if b is None else b.double())
    assert torch.allclose(y.double(), exact, rtol=0, atol=tolerance)
    assert torch.allclose(gradient.double(), direction.double() @ W.double(), rtol=0, atol=tolerance)
    assert torch.allclose(pulled(direction[0], W), gradient[0], rtol=0, atol=tolerance)
    assert y.dtype == gradient.dtype == dtype


def test_no_gradient_is_kept_where_none_is_asked_for():
    x = torch.randn(4, 8, requires_grad=True)
    with torch.no_grad():
        assert not linear(x, torch.randn(5, 8)).requires_grad
    assert not linear(x.detach(), torch.randn(5, 8)).requires_grad


def test_a_build_whose_product_fails_is_left_alone(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("could not create a primitive descriptor")

    products._onednn.cache_clear()
    monkeypatch.setattr(products, "product", fails)
    try:
        assert not multiplies(torch.randn(2, 2))
        assert torch.equal(linear(torch.ones(1, 2), torch.ones(3, 2)), torch.full((1, 3), 2.0))
    finally:
        products._onednn.cache_clear()


def test_rows_are_filled_up_to_few_numbers():
    numbers = {filled_up(rows) for rows in range(1, 1501)}
    assert all(rows <= filled_up(rows) < rows + 60 for rows in range(1, 1501))
    assert max(numbers) == 1500
    assert len(numbers) == 29
