"""CTC by enumeration: every frame path of a small model, its collapsed output, and the exact entropy over outputs."""

import itertools
import math
from collections import Counter

import pytest
import torch

from sharpen.errors import SharpenError
from sharpen.method import ctc
from sharpen.method.ctc import Collapsed, CTCAdaptation, collapse
from sharpen.method.policy import generator

BLANK, T, V = 1, 3, 3  # a blank that is not symbol 0
PATHS = list(itertools.product(range(V), repeat=T))


def logits_of(seed=0, frames=T, batch=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, V, generator=g, dtype=torch.float64).requires_grad_()


def path_logprobs(log_p):
    """log p of every path of the first input: (V^T,)."""
    return torch.stack([sum(log_p[0, t, k] for t, k in enumerate(path)) for path in PATHS])


def output_logprobs(log_p):
    """log pi of every collapsed output, from its paths."""
    paths: dict = {}
    for path, value in zip(PATHS, path_logprobs(log_p), strict=True):
        paths.setdefault(collapse(path, BLANK), []).append(value)
    return {y: torch.stack(values).logsumexp(0) for y, values in paths.items()}


def exact_gradient(logits, temperature=1.0):
    log_pi = torch.stack(list(output_logprobs(ctc.distributions(logits, temperature)).values()))
    (gradient,) = torch.autograd.grad(-(log_pi.exp() * log_pi).sum(), logits)
    return gradient


def production_loss(logits, paths, baseline=True, temperature=1.0, lengths=(T,)):
    log_p = ctc.distributions(logits, temperature)
    collapsed = Collapsed.of(paths, BLANK)
    nll = ctc.negative_log_likelihood(log_p, lengths, collapsed, BLANK)
    return torch.stack([ctc.reinforce(nll, drawn, baseline) for drawn in collapsed.drawn])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([2, 2, 1, 2, 0, 0], (2, 2, 0)),
        ([1, 1, 1], ()),
        ([], ()),
        ([0, 2, 0], (0, 2, 0)),
        ([1, 0, 0, 1], (0,)),
    ],
)
def test_collapse_merges_repeats_then_drops_blanks(path, expected):
    assert collapse(path, BLANK) == expected


def test_one_ctc_loss_gives_log_pi_of_every_output_and_its_gradient():
    logits = logits_of()
    log_p = ctc.distributions(logits)
    exact = output_logprobs(log_p)
    collapsed = Collapsed.of([PATHS], BLANK)
    assert () in collapsed.outputs
    assert len(collapsed.outputs) == len(exact) < len(PATHS)
    nll = ctc.negative_log_likelihood(log_p, [T], collapsed, BLANK)
    assert (-nll).exp().sum().item() == pytest.approx(1.0, abs=1e-14)
    for y, value in zip(collapsed.outputs, nll, strict=True):
        assert -value.item() == pytest.approx(exact[y].item(), abs=1e-13)
        ours, theirs = (torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (-value, exact[y]))
        assert (ours - theirs).abs().max() < 1e-13


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("G", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_collapse_aware_gradient_is_that_of_the_entropy_over_outputs(G, baseline, temperature):
    """Every G-tuple of paths through the whole production path. At temperature 2.5, of the distribution it makes."""
    logits = logits_of(seed=1)
    p = path_logprobs(ctc.distributions(logits, temperature)).exp().detach()
    expected = torch.zeros_like(logits)
    for numbers in itertools.product(range(len(PATHS)), repeat=G):
        loss = production_loss(logits, [[PATHS[i] for i in numbers]], baseline, temperature)[0]
        expected += p[list(numbers)].prod() * torch.autograd.grad(loss, logits)[0]
    exact = exact_gradient(logits, temperature)
    assert (expected - exact).norm() < 1e-10 * exact.norm()


def test_frame_entropy_is_the_entropy_of_the_path_and_not_of_the_output():
    logits = logits_of(seed=2)
    log_p = ctc.distributions(logits)
    log_paths = path_logprobs(log_p)
    H_paths = -(log_paths.exp() * log_paths).sum()
    mean = ctc.frame_entropy(log_p, [T], BLANK)[0]
    assert T * mean.item() == pytest.approx(H_paths.item(), abs=1e-12)
    ours, paths = (torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (T * mean, H_paths))
    assert (ours - paths).norm() < 1e-12
    exact = exact_gradient(logits)
    assert (ours - exact).norm() > 0.1 * exact.norm()


def test_non_blank_frames_alone_and_none_at_all():
    logits = torch.tensor([[[3.0, 0, 0], [0, 3, 0], [0, 1, 0.5]], [[0, 3, 0]] * 3]).double().requires_grad_()
    log_p = ctc.distributions(logits, 2.5)
    value = ctc.frame_entropy(log_p, [T, T], BLANK, non_blank=True)
    p = (logits[0, 0] / 2.5).softmax(-1)
    assert value.tolist() == pytest.approx([-(p * p.log()).sum().item(), 0.0])
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient[0, 0].norm() > 0.01
    assert gradient[0, 1:].norm() == gradient[1].norm() == 0


def test_padded_frames_change_nothing():
    logits = logits_of(seed=3, frames=T + 4, batch=2)
    lengths, g = [T, T + 4], [generator(0, "a"), generator(0, "b")]
    paths = ctc.sample_paths(ctc.distributions(logits), lengths, 4, g)
    assert [len(path) for group in paths for path in group] == [T] * 4 + [T + 4] * 4
    alone = logits[:1, :T].detach().requires_grad_()
    assert paths[:1] == ctc.sample_paths(ctc.distributions(alone), [T], 4, [generator(0, "a")])
    for both, one in (
        (production_loss(logits, paths, lengths=lengths), production_loss(alone, paths[:1])),
        (
            ctc.frame_entropy(ctc.distributions(logits), lengths, BLANK),
            ctc.frame_entropy(ctc.distributions(alone), [T], BLANK),
        ),
    ):
        assert both[0].item() == pytest.approx(one[0].item(), abs=1e-12)
        (gradient,) = torch.autograd.grad(both.sum(), logits)
        (reference,) = torch.autograd.grad(one.sum(), alone)
        assert (gradient[0, :T] - reference[0]).abs().max() < 1e-12
        assert gradient[0, T:].abs().max() == 0
        assert gradient[1, T:].abs().max() > 0


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_paths_are_drawn_at_the_temperature_that_scores_them(temperature):
    log_p = ctc.distributions(logits_of(seed=4), temperature).detach()
    G = 20_000
    counts = Counter(map(tuple, ctc.sample_paths(log_p, [T], G, [generator(0, "x")])[0]))
    p = path_logprobs(log_p).exp().tolist()
    chi2 = sum((counts[path] - G * q) ** 2 / (G * q) for path, q in zip(PATHS, p, strict=True))
    degrees = len(PATHS) - 1
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("u", [0.0, math.nextafter(1.0, 0.0)])
def test_a_symbol_of_probability_zero_is_never_drawn(u, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.full(shape, u, dtype=dtype))
    logits = torch.tensor([[[-torch.inf, 0.3, -torch.inf]] * 5])
    assert ctc.sample_paths(ctc.distributions(logits), [5], 2, [generator(0, "x")]) == [[[1] * 5] * 2]


def test_duplicates_are_computed_once_and_weigh_twice(monkeypatch):
    logits = logits_of(seed=5)
    paths = [[(0, 0, 2), (0, 2, 2), (1, 1, 1), (0, 2, 1)]]  # three of them are (0, 2)
    rows = []
    kernel = torch.nn.functional.ctc_loss

    def counting(log_p, targets, *rest, **settings):
        rows.append(len(targets))
        assert settings["zero_infinity"] is False
        return kernel(log_p, targets, *rest, **settings)

    monkeypatch.setattr(torch.nn.functional, "ctc_loss", counting)
    value = production_loss(logits, paths)[0]
    assert rows == [2]
    exact = output_logprobs(ctc.distributions(logits))
    c = torch.stack([-exact[y] for y in ((0, 2), (0, 2), (), (0, 2))])
    A = (c - (c.sum() - c) / 3).detach()
    ours, theirs = (torch.autograd.grad(v, logits, retain_graph=True)[0] for v in (value, -(A * c).sum() / 4))
    assert (ours - theirs).abs().max() < 1e-12


def test_nothing_but_empty_outputs():
    logits = logits_of(seed=6)
    value = production_loss(logits, [[(BLANK,) * T]])[0]
    assert value.item() == pytest.approx(-(ctc.distributions(logits)[0, :, BLANK].sum().item() ** 2), rel=1e-9)


def test_greedy_reads_only_real_frames():
    logits = torch.zeros(2, 4, V)
    for b, path in enumerate([[2, 2, 1, 0], [0, 1, 0, 2]]):
        logits[b, range(4), path] = 1.0
    assert ctc.greedy(logits, [4, 3], BLANK) == [(2, 0), (0, 0)]


def test_half_precision_is_scored_in_float32():
    assert ctc.distributions(torch.zeros(1, 2, 3, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "magic"}, "expected one of frames, collapse"),
        ({"steps": -1}, "at least 0"),
        ({"samples": 0}, "at least 1"),
        ({"lr": 0.0}, "positive"),
        ({"temperature": 0.0}, "SUTA"),
        ({"temperature": float("nan")}, "positive"),
        ({"weight_decay": -1.0}, "0 or more"),
        ({"parameters": "all"}, "norms, norms"),
        ({"non_blank": True}, "'frames'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SharpenError, match=message):
        CTCAdaptation(**settings)


def test_frames_without_numbers_give_symbols_that_exist():
    log_p = torch.full((1, 4, 5), math.nan)
    (paths,) = ctc.sample_paths(log_p, [4], 3, [generator(0, "a")])
    assert all(0 <= symbol < 5 for path in paths for symbol in path)
