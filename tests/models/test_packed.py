"""The packed matrix is the plain product."""

import pytest
import torch

from sharpen.models.packed import PackedMatrix


@pytest.mark.parametrize("n", [1, 2, 13, 16, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_is_the_product(n, dtype):
    W, h = torch.randn(1001, 64).to(dtype), torch.randn(n, 64).to(dtype)
    packed = PackedMatrix(W)
    assert (packed._packed is not None) == (dtype == torch.float32 and torch.backends.mkldnn.is_available())
    exact = h.double() @ W.double().T
    tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
    assert torch.allclose(packed(h).double(), exact, rtol=tolerance, atol=tolerance)
    assert packed(h).is_contiguous()
