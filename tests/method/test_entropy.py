import math

import pytest
import torch

from sharpen.method import entropy as room
from sharpen.method.entropy import entropy, head_gradient, log_softmax

M, V, D = 7, 23, 5


@pytest.fixture
def case():
    """Nodes with two masks, several edges at one node, none at another."""
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(M, D, generator=g, dtype=torch.float64)
    weight = torch.randn(V, D, generator=g, dtype=torch.float64)
    forbidden = torch.zeros(2, V, dtype=torch.bool)
    forbidden[0, [1, 5, 6]] = True
    forbidden[1, [0, 1, 2, 5, 6, 20]] = True
    mask = torch.tensor([1, 0, 0, 0, 1, 0, 0])
    edge_node = torch.tensor([0, 1, 1, 1, 3, 5, 6, 6])
    edge_token = torch.tensor([3, 0, 2, 4, 7, 22, 10, 11])
    return hidden, weight, forbidden, mask, edge_node, edge_token


def plain(hidden, weight, forbidden, mask, edge_node, edge_token):
    log_pi = (hidden @ weight.T).masked_fill(forbidden[mask], -torch.inf).log_softmax(-1)
    return entropy(log_pi), log_pi[edge_node, edge_token]


def test_entropy_is_exact_and_safe_where_tokens_are_forbidden():
    log_pi = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64).log()
    assert float(entropy(log_pi)) == pytest.approx(1.5 * math.log(2), abs=1e-12)


@pytest.mark.parametrize("at_once", [1, 3 * V, 1 << 22])
def test_the_closed_form_is_the_gradient_of_the_plain_head(case, at_once, monkeypatch):
    monkeypatch.setattr(room, "LOGITS_AT_ONCE", at_once)
    hidden, weight, forbidden, mask, edge_node, edge_token = case
    g = torch.Generator().manual_seed(1)
    c, a = (torch.randn(n, generator=g, dtype=torch.float64) for n in (M, len(edge_node)))
    entropies, logprobs = plain(hidden.requires_grad_(), *case[1:])
    (expected,) = torch.autograd.grad(c @ entropies + a @ logprobs, hidden)
    log_pi = (hidden.detach() @ weight.T).masked_fill(forbidden[mask], -torch.inf).log_softmax(-1)
    for rounding in (0.0, 1e-4):  # a softmax whose sum is off by that much is put right
        found = head_gradient(lambda rows, r=rounding: log_pi[rows] + r, weight, c, a, edge_node, edge_token)
        assert torch.allclose(found, expected, atol=1e-12)


def test_the_closed_form_at_whispers_size_is_that_of_autograd_in_float64():
    g = torch.Generator().manual_seed(2)
    hidden = torch.randn(150, 64, generator=g)
    weight = torch.randn(51865, 64, generator=g) * 0.3
    forbidden = torch.rand(2, 51865, generator=g) < 0.02
    mask = torch.arange(150).eq(0).long()
    edge_node = torch.arange(150)
    edge_token = torch.tensor([(~forbidden[m]).nonzero()[n, 0] for n, m in enumerate(mask.tolist())])
    c, a = (torch.randn(150, generator=g) for _ in range(2))
    leaf = hidden.double().requires_grad_()
    entropies, logprobs = plain(leaf, weight.double(), forbidden, mask, edge_node, edge_token)
    (expected,) = torch.autograd.grad(c.double() @ entropies + a.double() @ logprobs, leaf)

    def log_pi(rows):
        return log_softmax(hidden[rows] @ weight.T, forbidden[mask[rows]])

    gradient = head_gradient(log_pi, weight, c, a, edge_node, edge_token)
    assert (gradient - expected).norm() < 1e-4 * expected.norm()


def test_distributions_may_be_wider_than_the_weights():
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, 4), torch.randn(6, 4)
    node, token = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 3, 4])
    c, a = torch.randn(3), torch.randn(4)

    def gradient(dtype):
        return head_gradient(
            lambda rows: (hidden[rows] @ weight.T).to(dtype).log_softmax(-1), weight, c, a, node, token
        )

    assert gradient(torch.float64).dtype == torch.float32
    assert torch.allclose(gradient(torch.float64), gradient(torch.float32), atol=1e-6)
