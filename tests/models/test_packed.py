"""The packed layer is the plain one."""

import pytest
import torch

from sharpen.models.packed import PackedLinear, packs


@pytest.mark.parametrize("n", [1, 2, 13, 16, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_it_is_the_product(n, dtype, with_bias):
    W, x, b = torch.randn(1001, 64).to(dtype), torch.randn(2, n, 64).to(dtype), torch.randn(1001).to(dtype)
    packed = PackedLinear(W, b if with_bias else None)
    assert (packed._packed is not None) == packs(W.device, dtype)
    exact = x.double() @ W.double().T + (b.double() if with_bias else 0)
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    assert torch.allclose(packed(x).double(), exact, rtol=tolerance, atol=tolerance)
    assert packed(x).shape == (2, n, 1001)
    assert packed(x).is_contiguous()


def test_what_is_packed(monkeypatch):
    cpu = torch.device("cpu")
    for able in (True, False):
        monkeypatch.setattr("sharpen.models.packed.multiplies_bfloat16", lambda device, able=able: able)
        there = torch.backends.mkldnn.is_available()
        assert [packs(cpu, t) for t in (torch.float32, torch.bfloat16, torch.float64)] == [there, there and able, False]
    assert not packs(torch.device("meta"), torch.float32)
