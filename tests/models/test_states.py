"""PreparedSpeech and encoded utterances that are joined and selected: each keeps what it has alone."""

from __future__ import annotations

import pytest
import torch
from models.small import small_checkpoint

from sharpen.method.norms import affine, initial
from sharpen.method.search import beam
from sharpen.method.tree import HypothesisTree, pack
from sharpen.models.padding import condense
from sharpen.models.states import EncodedSpeech, PreparedSpeech
from sharpen.models.whisper import WhisperPolicy
from sharpen.models.whisper_speech import WhisperSpeech

SPEECH = [200, 900, None, 2990]  # feature frames; None: full padding
FEATURES = torch.randn(4, 80, 3000, generator=torch.Generator().manual_seed(1))
OUTPUTS = [[(5, 6), (5, 7, 8)], [(9,)], [(5, 7, 1, 2), (4,), (5, 7, 3)], [(1, 1)]]


@pytest.fixture(scope="module")
def small():
    return WhisperPolicy(small_checkpoint(d=16), dtype=torch.float64)


@pytest.fixture(scope="module")
def singles(small):
    """Four utterances, prepared one by one, with prompts of different lengths."""
    t = small.checkpoint.tokenizer
    prompt = [t.sot, t.languages["en"], t.transcribe, t.no_timestamps]
    return [
        small.prepare(FEATURES[b : b + 1], [[t.sot_prev, *range(400, 400 + b), *prompt]], count and [count])
        for b, count in enumerate(SPEECH)
    ]


def trees(policy):
    return [HypothesisTree.of([(*y, policy.eos) for y in outputs], policy.eos) for outputs in OUTPUTS]


def searched(policy, encoded):
    with torch.no_grad():
        found = beam(policy, encoded, [6] * len(encoded), 3)
    return [[(y.tokens, pytest.approx(y.logprob, abs=1e-8)) for y in tree.hypotheses] for tree in found]


def same(one, other):
    """Equal tensors, where a bias of zeros and none at all mean the same."""
    assert one.prompts == other.prompts
    assert torch.equal(one.frames, other.frames)
    shape = (len(one.prompts), 1, 1, one.frames.shape[1])
    zeros = torch.zeros(shape, dtype=torch.float64)
    biases = [zeros if x.bias is None else x.bias for x in (one, other)]
    return torch.equal(*biases)


def test_joined_and_selected_again_is_the_same(small, singles):
    joined = PreparedSpeech.join([singles[0], PreparedSpeech.join(singles[1:])])
    assert joined.stem.shape == (4, 1500, 16)
    assert joined.bias.shape == (4, 1, 1, 1500)
    encoded = EncodedSpeech.join([small.encode(one) for one in singles])
    for b, one in enumerate(singles):
        S = one.stem.shape[1]
        part = joined.select([b])
        assert same(part, one)
        assert torch.equal(part.stem, one.stem)
        assert not joined.stem[b, S:].any()
        assert torch.isneginf(joined.bias[b, ..., S:]).all()
        again, alone = encoded.select([b]), small.encode(one)
        assert same(again, alone)
        for ours, theirs in zip(again.cross, alone.cross, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def test_without_anything_to_fill_there_is_no_bias(singles):
    assert PreparedSpeech.join([singles[2], singles[2]]).bias is None
    assert PreparedSpeech.join([singles[0], singles[0]]).stem.shape[1] == singles[0].stem.shape[1]


def test_selecting_drops_the_filling_that_nobody_needs(small, singles):
    joined = PreparedSpeech.join(singles)
    S = max(singles[b].stem.shape[1] for b in (0, 1))
    assert joined.select([0, 1]).stem.shape[1] == S < 1500
    encoded = small.encode(joined).select([1, 0])
    assert encoded.frames.shape == (2, S)
    assert encoded.bias.shape == (2, 1, 1, S)
    assert {tensor.shape[2] for pair in encoded.cross for tensor in pair} == {S}


@pytest.mark.parametrize("own", [False, True])
def test_what_is_joined_computes_what_it_computes_alone(small, singles, own):
    """Joined before the encoder and after it; searched, scored, and the gradient of the score."""
    theta = initial(small.norms(), 4)
    theta += 0.2 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * own
    theta.requires_grad_()
    view = small.adapted(affine(small.norms(), theta) if own else {})
    rows = [small.adapted(affine(small.norms(), theta[b : b + 1]) if own else {}) for b in range(4)]
    alone = [row.encode(one) for row, one in zip(rows, singles, strict=True)]
    expected = [searched(row, one)[0] for row, one in zip(rows, alone, strict=True)]
    weight = torch.randn(4, 20, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    hidden = [
        row.score(one, pack([tree]))[0, : len(tree)] for row, one, tree in zip(rows, alone, trees(small), strict=True)
    ]
    if own:
        value = sum((h * weight[b, : len(h)]).sum() for b, h in enumerate(hidden))
        (reference,) = torch.autograd.grad(value, theta, retain_graph=True)
    before, after = (
        view.encode(PreparedSpeech.join(singles)),
        EncodedSpeech.join([EncodedSpeech.join(alone[:3]), alone[3]]),
    )
    for encoded in (before, after):
        assert searched(view, encoded.detach()) == expected
        scored = view.score(encoded, pack(trees(small)))
        for b, h in enumerate(hidden):
            assert torch.allclose(scored[b, : len(h)], h, atol=1e-10)
        if own:
            value = sum((scored[b, : len(h)] * weight[b, : len(h)]).sum() for b, h in enumerate(hidden))
            (gradient,) = torch.autograd.grad(value, theta, retain_graph=True)
            assert (gradient - reference).norm() < 1e-10 * reference.norm()


def test_every_kept_frame_has_its_number(small, singles):
    """A second encoder frame is 20 ms after the first; a frame that stands for several is their middle one."""
    full, thin = singles[2], singles[0]
    assert full.frames.tolist() == [list(range(1500))]
    kept = condense([100], 1500, 4)
    assert torch.equal(thin.frames, kept.frames)
    assert thin.frames[0, :139].tolist() == list(range(139))
    assert thin.frames[0, 139:142].tolist() == [141, 145, 149]
    assert (thin.frames[0].diff() > 0).all()
    whole = small.prepare(FEATURES[:1], thin.prompts)
    assert torch.equal(thin.stem[0], whole.stem[0, thin.frames[0]])
    joined = PreparedSpeech.join([thin, full])
    assert joined.frames[0, : thin.frames.shape[1]].tolist() == thin.frames[0].tolist()
    assert torch.equal(small.encode(joined).frames, joined.frames)
    assert small.seconds_per_frame == 0.02
    times = WhisperSpeech(small.checkpoint).frame_times(joined)  # (2, 1500)
    assert times[1].tolist() == pytest.approx([0.02 * frame for frame in range(1500)])
    assert times[0, 139:142].tolist() == pytest.approx([2.82, 2.90, 2.98])
    assert times[0, thin.frames.shape[1] :].isnan().all()
