"""Our loop over Whisper's layers against transformers': the oracle in tests, never the engine."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import manifest, utterances
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput

from sharpen.benchmarks.stock import named_tensors, stock_model
from sharpen.method.conformance import check_policy
from sharpen.method.norms import affine, initial
from sharpen.method.policy import generator
from sharpen.method.search import beam, greedy, sample
from sharpen.method.tree import HypothesisTree, pack
from sharpen.models import cache as cache_module
from sharpen.models.log_mel import log_mel
from sharpen.models.whisper import WhisperPolicy
from sharpen.speech.audio import read_audio


@pytest.fixture(scope="module")
def small():
    return WhisperPolicy(small_checkpoint())


@pytest.fixture(scope="module", params=["base", "tiny_en"])
def real(request):
    return WhisperPolicy(request.getfixturevalue(request.param))


def prompt_of(policy, language="en"):
    t = policy.checkpoint.tokenizer
    return [t.sot, *([t.languages[language], t.transcribe] if t.multilingual else []), t.no_timestamps]


@cache
def stock(checkpoint):
    return stock_model(checkpoint)


def prepare(policy, clips):
    return policy.prepare(log_mel(clips, policy.checkpoint.mel), [prompt_of(policy)] * len(clips))


@torch.no_grad()
def encode(policy, clips):
    return policy.encode(prepare(policy, clips))


def limits_of(clips):
    return [min(444, max(32, round(15 * len(clip) / 16000))) for clip in clips]


@torch.no_grad()
def states_of(policy, prepared):
    return BaseModelOutput(last_hidden_state=policy.encoder_states(prepared))


def oracle(policy, prepared, limit, beams):
    """transformers' own search with pi's mask put into the model: -> [(tokens, score)], best first."""
    model, eos = stock(policy.checkpoint), policy.eos
    (prompt,) = prepared.prompts

    def only_allowed(module, inputs, logits):
        first = logits.shape[1] == len(prompt)
        logits = logits.clone()
        logits[:, -1] = logits[:, -1].masked_fill(policy.forbidden[int(first)], -torch.inf)
        return logits

    hook = model.proj_out.register_forward_hook(only_allowed)
    try:
        out = GenerationMixin.generate(
            model,
            encoder_outputs=states_of(policy, prepared),
            decoder_input_ids=torch.tensor([prompt]),
            max_new_tokens=limit,
            num_beams=beams,
            num_return_sequences=beams,
            do_sample=False,
            length_penalty=1.0,
            early_stopping=False,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            eos_token_id=eos,
            pad_token_id=eos,
            return_dict_in_generate=True,
            output_scores=True,
        )
    finally:
        hook.remove()
    found = []
    for i, row in enumerate(out.sequences[:, len(prompt) :].tolist()):
        tokens = row[: row.index(eos) + 1] if eos in row else row
        found.append((tuple(tokens), float(out.sequences_scores[i]) if beams > 1 else None))
    return found


def padded_logits(policy, states, prompt, tokens):
    """The stock model on one whole sequence: logits that predict each of `tokens`."""
    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    return stock(policy.checkpoint)(encoder_outputs=states, decoder_input_ids=ids).logits[0, len(prompt) - 1 :]


def mixed_prompts(policy):
    """Three prompts of different lengths, so that a batch has padding in it."""
    t, p = policy.checkpoint.tokenizer, prompt_of(policy)
    return [p, [t.sot_prev, 400, 500, 600, *p], [t.sot_prev, *range(700, 720), *p]]


def test_encoder_equals_transformers(small):
    features = torch.randn(2, 80, 3000, generator=torch.Generator().manual_seed(0))
    ours = small.encoder_states(small.prepare(features, [prompt_of(small)] * 2))
    theirs = stock(small.checkpoint).model.encoder(features).last_hidden_state
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_packed_trees_equal_padded_rows(small, seed):
    """Random trees, three utterances with prompts of different lengths, in one pass."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    prepared = small.prepare(torch.randn(3, 80, 3000), mixed_prompts(small))
    tokens = [rng.randrange(50000) for _ in range(4)]  # few different ones, so that prefixes are shared
    trees = []
    for _ in range(3):
        sequences = [
            [rng.choice(tokens) for _ in range(rng.randrange(1, 9))] + [small.eos] * rng.randrange(2)
            for _ in range(rng.randrange(1, 12))
        ]
        trees.append(HypothesisTree.of(sequences, small.eos))
    logits = small.logits(small.score(small.encode(prepared), pack(trees)))
    for b, tree in enumerate(trees):
        states = states_of(small, prepared.select([b]))
        for y in tree.hypotheses:
            theirs = padded_logits(small, states, prepared.prompts[b], y.tokens)
            assert torch.allclose(logits[b, list(y.nodes)], theirs, atol=1e-4, rtol=1e-4)


def test_packed_trees_equal_padded_rows_on_real_weights(real):
    prepared = prepare(real, utterances(2))
    encoded = real.encode(prepared)
    trees = sample(real, encoded, [12, 12], 8, [generator(0, "a"), generator(0, "b")])
    logits = real.logits(real.score(encoded, pack(trees)))
    for b, tree in enumerate(trees):
        states = states_of(real, prepared.select([b]))
        for y in tree.hypotheses:
            ours, theirs = logits[b, list(y.nodes)], padded_logits(real, states, prepared.prompts[b], y.tokens)
            assert (ours - theirs).abs().max() / theirs.abs().max() < 1e-4


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_greedy_is_token_identical_to_transformers(real, every):
    clips = utterances(20)[::every]
    assert len(clips) == 20 // every
    for clip in clips:
        prepared, limit = prepare(real, [clip]), limits_of([clip])[0]
        (tree,) = greedy(real, real.encode(prepared), [limit])
        assert tree.hypotheses[0].tokens == oracle(real, prepared, limit, 1)[0][0]


@pytest.mark.parametrize("every", [40, pytest.param(10, marks=pytest.mark.long)])
def test_greedy_is_token_identical_to_transformers_on_real_speech(real, data, every):
    for row in manifest(data / "librispeech-test-other")[::every]:
        clip = read_audio(row["path"]).samples
        prepared, limit = prepare(real, [clip]), limits_of([clip])[0]
        (tree,) = greedy(real, real.encode(prepared), [limit])
        assert tree.hypotheses[0].tokens == oracle(real, prepared, limit, 1)[0][0], row["id"]


@pytest.mark.parametrize(("beams", "clips"), [(4, 4), (16, 2), pytest.param(16, 4, marks=pytest.mark.long)])
def test_beam_agrees_with_transformers(real, beams, clips):
    for clip in utterances(clips)[::2]:
        prepared, limit = prepare(real, [clip]), limits_of([clip])[0]
        (tree,) = beam(real, real.encode(prepared), [limit], beams)
        expected = oracle(real, prepared, limit, beams)
        assert [y.tokens for y in tree.hypotheses] == [tokens for tokens, _ in expected]
        assert len({y.tokens for y in tree.hypotheses}) == beams
        for y, (_, score) in zip(tree.hypotheses, expected, strict=True):
            assert y.score == pytest.approx(score, abs=1e-5)


def test_beam_agrees_with_transformers_at_a_short_limit(real):
    prepared = prepare(real, utterances(1))
    (tree,) = beam(real, real.encode(prepared), [5], 4)
    assert [(y.tokens, pytest.approx(y.score, abs=1e-5)) for y in tree.hypotheses] == oracle(real, prepared, 5, 4)
    assert not all(y.finished for y in tree.hypotheses)  # cut at five tokens, and kept


def test_sampled_log_probabilities_equal_the_padded_forward(real):
    prepared = prepare(real, utterances(3))
    trees = sample(real, real.encode(prepared), [20] * 3, 8, [generator(3, str(b)) for b in range(3)])
    for b, tree in enumerate(trees):
        states = states_of(real, prepared.select([b]))
        for y in tree.hypotheses:
            logits = padded_logits(real, states, prepared.prompts[b], y.tokens)
            forbidden = real.forbidden[[1] + [0] * (len(y) - 1)]
            log_pi = logits.masked_fill(forbidden, -torch.inf).log_softmax(-1)
            assert np.allclose(y.logprobs, log_pi[range(len(y)), list(y.tokens)].numpy(), atol=1e-4)


def test_a_batch_is_its_utterances_one_by_one():
    """Prompts and limits of different lengths; utterances end, leave the batch, and the cache is compacted."""
    torch.manual_seed(1)
    # Of 51865 nearly equal tokens, rounding in float32 decides which one is drawn.
    small = WhisperPolicy(small_checkpoint(), dtype=torch.float64)
    prepared, limits = small.prepare(torch.randn(3, 80, 3000), mixed_prompts(small)), [4, 40, 17]
    together = small.encode(prepared)
    draws = [generator(0, str(b)) for b in range(3)]
    batch = (
        beam(small, together, limits, 6),
        sample(small, together, limits, 6, draws),
        greedy(small, together, limits),
    )
    for b in range(3):
        alone = small.encode(prepared.select([b]))
        single = (
            beam(small, alone, limits[b : b + 1], 6),
            sample(small, alone, limits[b : b + 1], 6, [generator(0, str(b))]),
            greedy(small, alone, limits[b : b + 1]),
        )
        for ours, theirs in zip(batch, single, strict=True):
            assert [y.tokens for y in ours[b].hypotheses] == [y.tokens for y in theirs[0].hypotheses]
            for y, z in zip(ours[b].hypotheses, theirs[0].hypotheses, strict=True):
                assert np.allclose(y.logprobs, z.logprobs, atol=1e-4)


def test_compaction_changes_nothing_but_the_size(small, monkeypatch):
    torch.manual_seed(2)
    encoded = small.encode(small.prepare(torch.randn(2, 80, 3000), mixed_prompts(small)[:2]))
    widest = [0]
    plain_write = cache_module.TreeCache.write

    def watched(self, layer, k, v):
        widest[0] = max(widest[0], self.used)
        return plain_write(self, layer, k, v)

    monkeypatch.setattr(cache_module.TreeCache, "write", watched)
    compacted, small_size = beam(small, encoded, [60, 60], 8), widest[0]
    monkeypatch.setattr(cache_module.TreeCache, "_compacted", lambda self, parents: self)
    widest[0] = 0
    kept = beam(small, encoded, [60, 60], 8)
    for a, b in zip(compacted, kept, strict=True):
        assert [y.tokens for y in a.hypotheses] == [y.tokens for y in b.hypotheses]
        assert [y.score for y in a.hypotheses] == pytest.approx([y.score for y in b.hypotheses], abs=1e-4)
    assert small_size < widest[0] / 2


@pytest.mark.parametrize("speech", [None, [300, 120]])
def test_the_policy_conforms(small, speech):
    clips = [np.random.default_rng(i).standard_normal(16000 * (i + 1)).astype(np.float32) for i in range(2)]
    words = small.checkpoint.tokenizer
    prompts = [prompt_of(small), [words.sot_prev, 400, 401, *prompt_of(small)]]
    check_policy(small, small.prepare(log_mel(clips, small.checkpoint.mel), prompts, speech))


def test_norms_of_one_utterance_do_not_touch_another(small):
    """The view with per-utterance norms: utterance 0 keeps the model's own, utterance 1 has others."""
    torch.manual_seed(3)
    prepared = small.prepare(torch.randn(2, 80, 3000), [prompt_of(small)] * 2)
    theta = initial(small.norms(), 2)
    theta[1] += 0.1 * torch.randn_like(theta[1])
    norms = affine(small.norms(), theta)
    before = {name: p.clone() for name, p in named_tensors(small.checkpoint.weights)}
    plain = greedy(small, small.encode(prepared), [12, 12])
    view = small.adapted(norms)
    encoded = view.encode(prepared)
    adapted = greedy(view, encoded, [12, 12])
    assert adapted[0].hypotheses[0].tokens == plain[0].hypotheses[0].tokens
    assert not np.allclose(adapted[1].hypotheses[0].logprobs[:1], plain[1].hypotheses[0].logprobs[:1], atol=1e-3)
    assert all(torch.equal(before[name], p) for name, p in named_tensors(small.checkpoint.weights))
