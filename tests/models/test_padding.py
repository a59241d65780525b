"""Condensed padding: which frames stay, and that a frame standing for m others is heard as m frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import utterances

from sharpen.method.norms import affine, initial
from sharpen.method.search import beam, greedy
from sharpen.method.tree import HypothesisTree, pack
from sharpen.models.padding import condense
from sharpen.models.states import PreparedSpeech
from sharpen.models.whisper import WhisperPolicy
from sharpen.models.whisper_speech import WhisperSpeech
from sharpen.speech.decoding import Window, decode
from sharpen.speech.options import Options
from sharpen.speech.presets import PRESETS


@pytest.fixture(scope="module")
def small():
    return WhisperPolicy(small_checkpoint())


def prompt(policy):
    t = policy.checkpoint.tokenizer
    return [t.sot, t.languages["en"], t.transcribe, t.no_timestamps]


def test_which_frames_stay_and_what_they_stand_for():
    kept = condense([10, 40], 60, every=16, margin=5)
    assert kept.frames[0].tolist()[:20] == [*range(17), 25, 41, 54]  # 17-32, 33-48, 49-59: the middle of each
    assert kept.bias[0].exp()[:20].round().tolist() == [1] * 17 + [16, 16, 11]
    assert torch.isneginf(kept.bias[0, 20:]).all()
    assert kept.frames[1].tolist() == [*range(60)]
    assert kept.bias.exp().sum(1).tolist() == pytest.approx([60, 60])


def test_lengths_of_all_kinds_have_few_numbers_of_frames():
    for every, most in ((4, 20), (16, 25)):
        kept = [condense([speech], 1500, every) for speech in range(0, 1501, 7)]
        margins = [int((one.bias[0] == 0).sum()) - speech for speech, one in zip(range(0, 1501, 7), kept, strict=True)]
        assert len({one.frames.shape[1] for one in kept}) <= most
        assert all(25 <= margin <= 110 for margin, speech in zip(margins, range(0, 1390, 7), strict=False))
        assert all(one.bias.exp().sum() == pytest.approx(1500, rel=1e-5) for one in kept)


@pytest.mark.parametrize("speech", [60, 57, 1000])
def test_without_padding_everything_stays(speech):
    kept = condense([speech], 60, every=16, margin=5)
    assert kept.frames[0].tolist() == list(range(60))
    assert not kept.bias.any()


def test_a_frame_that_stands_for_its_equals_changes_nothing(small):
    """Where all padded frames are the same, condensing is exact."""
    torch.manual_seed(0)
    stem = torch.randn(2, 120, 32)
    for b, speech in enumerate((30, 55)):
        stem[b, speech:] = stem[b, speech]
    full = PreparedSpeech(stem, (tuple(prompt(small)),) * 2, torch.arange(120).repeat(2, 1))
    kept = condense([30, 55], 120, every=16, margin=5)
    thin = PreparedSpeech(kept.of(stem), full.prompts, kept.frames, kept.bias[:, None, None])
    assert thin.stem.shape[1] < 90
    ours, theirs = small.encoder_states(thin), small.encoder_states(full)
    for b, speech in enumerate((30, 55)):
        assert torch.allclose(ours[b, :speech], theirs[b, :speech], atol=1e-5)
    trees = [beam(small, small.encode(prepared), [6, 6], 3) for prepared in (thin, full)]
    for tree, other in zip(*trees, strict=True):
        assert [y.tokens for y in tree.hypotheses] == [y.tokens for y in other.hypotheses]
        logprobs = [y.logprob for y in other.hypotheses]
        assert [y.logprob for y in tree.hypotheses] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_lengths_mixed_in_a_batch_are_as_if_alone(small, own):
    """Utterances and trees of different sizes, with the model's norms and with each utterance's own."""
    features = torch.randn(3, 80, 3000, generator=torch.Generator().manual_seed(1))
    speech = [200, 900, 2990]
    theta = initial(small.norms(), 3)
    theta += 0.2 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(2)) * own
    views = [small.adapted(affine(small.norms(), rows) if own else {}) for rows in (theta, *theta.split(1))]
    together = views[0].encode(small.prepare(features, [prompt(small)] * 3, speech))
    outputs = [(5, 6, small.eos), (5, 7, 8), (9, small.eos), (5, 7, 1, 2, small.eos)]
    trees = [HypothesisTree.of(outputs[:n], small.eos) for n in (2, 4, 1)]
    hidden = views[0].score(together, pack(trees))
    found = greedy(views[0], together.detach(), [5] * 3)
    for b, (count, view, tree) in enumerate(zip(speech, views[1:], trees, strict=True)):
        alone = view.encode(small.prepare(features[b : b + 1], [prompt(small)], [count]))
        assert torch.equal(together.select([b]).frames, alone.frames)
        for ours, theirs in zip(together.select([b]).cross, alone.cross, strict=True):
            assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(ours, theirs, strict=True))
        assert torch.allclose(hidden[b, : len(tree)], view.score(alone, pack([tree]))[0], atol=1e-4)
        assert greedy(view, alone, [5])[0].hypotheses[0].tokens == found[b].hypotheses[0].tokens


def test_a_selected_part_of_a_batch_keeps_its_own_padding(small):
    features = torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(1))
    prepared = small.prepare(features, [prompt(small)] * 2, [200, 1400])
    whole, part = small.encode(prepared), small.encode(prepared.select([0]))
    assert torch.equal(whole.select([0]).bias, part.bias)
    for ours, theirs in zip(whole.select([0]).cross, part.cross, strict=True):
        assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("preset", "frames"), [("exact", 1500), ("fast", 480), ("fastest", 180)])
def test_presets_keep_so_many_frames(small, monkeypatch, preset, frames):
    seen = []
    encode = WhisperPolicy.encode
    monkeypatch.setattr(WhisperPolicy, "encode", lambda self, p: (seen.append(p.stem.shape[1]), encode(self, p))[1])
    options = Options(language="en", timestamps=False, temperature=(0.0,), padding=PRESETS[preset].padding)
    second = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    decode(WhisperSpeech(small.checkpoint), [Window("a", second)], options, ["en"])
    assert set(seen) == {frames}  # behind the speech and its margin all, a fourth, a sixteenth of the others


@pytest.mark.parametrize(("clips", "equal"), [(3, 2), pytest.param(9, 6, marks=pytest.mark.long)])
def test_real_speech_reads_the_same(base, clips, equal):
    """On the example clips, whisper-base's transcripts with and without: nearly all words are the same."""
    speech = WhisperSpeech(base)
    options = Options(language="en", timestamps=False, temperature=(0.0,))
    windows = [Window(str(i), samples) for i, samples in enumerate(utterances(clips))]
    full = decode(speech, windows, options, ["en"] * clips)
    thin = decode(speech, windows, replace(options, padding="condensed"), ["en"] * clips)
    same = sum(a.text == b.text for a, b in zip(full, thin, strict=True))
    assert same >= equal
