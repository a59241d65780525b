import pytest
import torch

from sharpen.errors import SharpenError
from sharpen.method.norms import Affine, Norm, affine, choose, initial

D = 6
X = torch.randn(3, 4, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WEIGHT, BIAS = torch.randn(2, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_definition(kind, x, weight, bias):
    if kind == "layer":
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    else:
        y = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    y = y * (1 + weight if kind == "rms-plus-one" else weight)
    return y if bias is None else y + bias


@pytest.mark.parametrize("kind", ["layer", "rms", "rms-plus-one"])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_norms_follow_their_definition_with_and_without_their_own_parameters(kind, bias):
    norm = Norm("n", "decoder", kind, 1e-5, WEIGHT, bias)
    assert torch.allclose(norm.apply(X), by_definition(kind, X, WEIGHT, bias), atol=1e-10)
    weights = WEIGHT + torch.arange(3.0, dtype=torch.float64)[:, None]
    own = Affine(weights, None if bias is None else bias * weights)
    expected = [by_definition(kind, X[b], weights[b], None if bias is None else own.bias[b]) for b in range(3)]
    assert torch.allclose(norm.apply(X, own), torch.stack(expected), atol=1e-10)
    one = Affine(weights[1:2], None if bias is None else own.bias[1:2])
    assert torch.allclose(norm.apply(X[1:2], one)[0], expected[1], atol=1e-10)  # the fused way
    for rows in ([0, 2], [2, 0, 1]):
        some = norm.apply(X[rows], own, torch.tensor(rows))
        assert torch.allclose(some, torch.stack([expected[b] for b in rows]), atol=1e-10)
    with pytest.raises(SharpenError, match="parameters for 3 inputs, but the batch has 1"):  # never broadcast
        norm.apply(X[1:2], own)


@pytest.mark.parametrize("inputs", [1, 3])
def test_half_precision_does_not_round_an_update_away(inputs):
    """bfloat16 has no number between 1 and 1.0078; AdamW's first step is 0.001."""
    norm = Norm("n", "decoder", "layer", 1e-5, torch.ones(D).bfloat16(), torch.zeros(D).bfloat16())
    theta = initial([norm], inputs)
    theta[:, :D] += 0.001
    x = X[:inputs].bfloat16()
    seen = norm.apply(x, affine([norm], theta)["n"])
    wide = by_definition("layer", x.float(), torch.full((D,), 1.001), torch.zeros(D))
    assert seen.dtype == torch.bfloat16
    assert torch.equal(seen, wide.bfloat16())
    assert not torch.equal(seen, norm.apply(x))


def test_theta_holds_every_parameter_of_every_input():
    norms = [Norm("a", "encoder", "layer", 1e-5, WEIGHT, BIAS), Norm("b", "decoder", "rms", 1e-5, 2 * WEIGHT)]
    theta = initial(norms, 2)
    assert theta.shape == (2, 3 * D)
    own = affine(norms, theta)
    assert torch.equal(own["a"].bias[1], BIAS)
    assert torch.equal(own["b"].weight[0], 2 * WEIGHT)
    assert own["b"].bias is None


def test_what_a_norm_is_must_be_spelled_right():
    with pytest.raises(SharpenError, match="the side 'Encoder'; expected encoder or decoder"):
        Norm("n", "Encoder", "layer", 1e-5, WEIGHT)
    with pytest.raises(SharpenError, match="of kind 'layernorm'; expected layer, rms or rms-plus-one"):
        Norm("n", "encoder", "layernorm", 1e-5, WEIGHT).apply(X)


def test_a_side_without_norms_is_refused():
    with pytest.raises(SharpenError, match="no norms in its encoder"):
        choose([Norm("b", "decoder", "rms", 1e-5, WEIGHT)], "encoder")


@pytest.mark.parametrize("shape", [(3, 8), (3, 5, 8), (3, 3, 5, 8)])
def test_each_input_has_its_own_parameters_whatever_axes_lie_between(shape):
    norm = Norm("n", "decoder", "rms", 1e-5, torch.ones(8), torch.zeros(8))
    x, own = torch.randn(shape), Affine(torch.randn(3, 8), torch.randn(3, 8))
    together = norm.apply(x, own)
    assert together.shape == x.shape
    for b in range(3):
        assert torch.allclose(together[b : b + 1], norm.apply(x[b : b + 1], own.row(b)), atol=1e-6)
