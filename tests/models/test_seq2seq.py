"""Our loop over the layers of every encoder-decoder family against transformers."""

import pytest
import torch
from models.seq2seq_models import EOS, FAMILIES, GENERATION, PAD, VOCABULARY, small_seq2seq

from sharpen.errors import SharpenError, WeightsError
from sharpen.method.adapt import adapt
from sharpen.method.adaptation import Adaptation
from sharpen.method.conformance import check_policy
from sharpen.method.gradient import score, tree_loss
from sharpen.method.norms import affine, choose, initial
from sharpen.method.objectives import em_tok
from sharpen.method.policy import generator
from sharpen.method.search import beam, greedy, sample
from sharpen.models import cache as cache_module
from sharpen.models.seq2seq import Seq2SeqPolicy
from sharpen.models.seq2seq_decoding import decoding_of

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # transformers computes T5's norms in float32 whatever the model
# A prompt of one token would leave nothing to choose to attention, and no gradient to T5's norms before it.
PROMPTS = ((3, 9, 4, 11, 5, 6), (8, 7), (1, 2, 3, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 7))


def policy_of(model, name: str = "", **more) -> Seq2SeqPolicy:
    tensors = {**model.state_dict(), **dict(model.named_buffers())}
    tensors = {key: t for key, t in tensors.items() if key.split(".")[-1] in ("weight", "bias", "final_logits_bias")}
    more.setdefault("dtype", torch.float64)
    return Seq2SeqPolicy.of(model.config.to_dict(), tensors, {**GENERATION.get(name, {})}, **more)


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    """The policy and transformers' model, in float64."""
    model = small_seq2seq(request.param)
    return policy_of(model, request.param), model


def expected_logits(policy, model, prompt, tokens):
    """Of transformers, at the root and after each token: (T, V), with -inf where decoding removes a token."""
    row = torch.tensor([[*policy.decoding.start, *tokens[:-1]]])
    logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=row).logits[0, len(policy.decoding.start) - 1 :]
    return logits.masked_fill(policy.forbidden[:1], -torch.inf)


def test_conformance(pair):
    policy, _ = pair
    check_policy(policy, policy.prepare(PROMPTS))


def test_logits_of_every_hypothesis(pair):
    """The tree in one pass equals each hypothesis as a row of its own."""
    policy, model = pair
    with torch.no_grad():
        encoded = policy.encode(policy.prepare(PROMPTS))
        trees = sample(policy, encoded, [25] * 3, 5, [generator(0, str(b)) for b in range(3)], entropies=True)
        hidden = torch.split(score(policy, encoded, trees, policy.device).hidden, [len(tree) for tree in trees])
        for prompt, tree, states in zip(PROMPTS, trees, hidden, strict=True):
            for y in tree.hypotheses:
                expected = expected_logits(policy, model, prompt, y.tokens)
                ours = policy.project(states[list(y.nodes)]).masked_fill(policy.forbidden[:1], -torch.inf)
                torch.testing.assert_close(ours, expected, **CLOSE)
                logprobs = expected.log_softmax(-1)[range(len(y)), list(y.tokens)]
                torch.testing.assert_close(torch.tensor(y.logprobs, dtype=torch.float64), logprobs, **CLOSE)
    assert max(len(y) for tree in trees for y in tree.hypotheses) > 12  # T5's last bucket begins there


def test_greedy_tokens(pair):
    policy, model = pair
    with torch.no_grad():
        trees = greedy(policy, policy.encode(policy.prepare(PROMPTS)), [20] * 3)
    own = len(policy.decoding.start)
    for prompt, tree in zip(PROMPTS, trees, strict=True):
        seen = torch.ones(1, len(prompt))
        out = model.generate(  # its cache counts the encoder's layers of T5, not the decoder's
            torch.tensor([prompt]), attention_mask=seen, do_sample=False, max_new_tokens=20 + own, use_cache=False
        )
        assert tuple(out[0, :own].tolist()) == policy.decoding.start
        assert tree.hypotheses[0].tokens == tuple(out[0, own : own + 20].tolist())


def test_gradient_of_the_norms(pair):
    """The gradient of em-tok against autograd through transformers' own layers and head."""
    policy, model = pair
    prepared = policy.prepare(PROMPTS[:1])
    norms = choose(policy.norms(), "encoder+decoder")
    theta = initial(norms, 1).requires_grad_()
    view = policy.adapted(affine(norms, theta))
    with torch.no_grad():
        trees = sample(policy, policy.encode(prepared), [6], 4, [generator(0, "x")], entropies=True)
    loss = tree_loss(trees, [em_tok], ["tokens"])
    ours = score(view, view.encode(prepared), trees, policy.device).gradient(view, loss, theta)

    parameters = dict(model.named_parameters())
    names = [f"{norm.name}.{part}" for norm in norms for part in ("weight", "bias") if getattr(norm, part) is not None]
    chosen = [parameters[f"{policy.architecture.prefix}{name}"].requires_grad_() for name in names]
    entropies = torch.tensor(trees[0].entropies, dtype=torch.float64)
    H = torch.stack([entropies[list(y.nodes)].sum() for y in trees[0].hypotheses])
    total = 0.0
    for y, own in zip(trees[0].hypotheses, H - (H.sum() - H) / (len(H) - 1), strict=True):
        logp = expected_logits(policy, model, PROMPTS[0], y.tokens).log_softmax(-1)
        entropy = -(logp.exp() * logp.clamp(min=-1e30)).sum()
        total = total + own * logp[range(len(y)), list(y.tokens)].sum() + entropy
    theirs = torch.autograd.grad(total / sum(map(len, trees[0].hypotheses)), chosen)
    model.requires_grad_(False)
    torch.testing.assert_close(ours[0], torch.cat(theirs), **CLOSE)


@pytest.mark.parametrize("method", ["greedy-em", "em-seq", "em-tok", "em-tok-b"])
def test_a_batch_adapts_as_each_alone_and_the_model_is_untouched(pair, method):
    policy, model = pair
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prepared, options = policy.prepare(PROMPTS), Adaptation(method=method, steps=2, samples=3, lr=0.01)
    together = adapt(policy, prepared, options, limits=[6] * 3, ids=["a", "b", "c"])
    for b, name in enumerate("abc"):
        alone = adapt(policy, prepared.select([b]), options, limits=[6], ids=[name])
        torch.testing.assert_close(together.theta[b], alone.theta[0], rtol=1e-8, atol=1e-8)
    assert (together.theta[0] != initial(policy.norms(), 1)[0]).any()
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_wide_beam_that_is_compacted_and_ended_inputs_that_are_dropped(name, monkeypatch):
    """T5's distances count ancestors, not columns."""
    model = small_seq2seq(name)
    policy = policy_of(model)
    limits = [30, 3, 5]
    with torch.no_grad():
        encoded = policy.encode(policy.prepare(PROMPTS))
        plain = beam(policy, encoded, limits, 6)
        monkeypatch.setattr(cache_module, "FIRST_CAPACITY", 4)
        compacted = beam(policy, encoded, limits, 6)
    for one, other in zip(plain, compacted, strict=True):
        assert [y.tokens for y in one.hypotheses] == [y.tokens for y in other.hypotheses]
    for prompt, tree in zip(PROMPTS, compacted, strict=True):
        for y in tree.hypotheses:
            logprobs = expected_logits(policy, model, prompt, y.tokens).log_softmax(-1)[range(len(y)), list(y.tokens)]
            torch.testing.assert_close(torch.tensor(y.logprobs, dtype=torch.float64), logprobs, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["marian", "t5"])
def test_other_number_formats(name, dtype):
    """float32 runs on packed matrices."""
    policy = policy_of(small_seq2seq(name, torch.float32), name, dtype=dtype)
    check_policy(policy, policy.prepare(PROMPTS))


def test_files_that_leave_out_what_they_hold_elsewhere():
    """Hugging Face writes a tied matrix once, under one of its names, and Marian's positions not at all."""
    model = small_seq2seq("marian")
    policy, tensors = policy_of(model), model.state_dict()
    doubles = ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    short = {key: t for key, t in tensors.items() if not key.endswith((*doubles, "embed_positions.weight"))}
    assert "model.shared.weight" in short
    other = Seq2SeqPolicy.of(model.config.to_dict(), short, dtype=torch.float64)
    with torch.no_grad():
        hidden = [p.begin(p.encode(p.prepare(PROMPTS))).hidden for p in (policy, other)]
    torch.testing.assert_close(hidden[0], hidden[1], rtol=1e-6, atol=1e-6)
    assert torch.equal(other.vocabulary, policy.vocabulary)
    only_head = {**short, "lm_head.weight": short["model.shared.weight"]}
    del only_head["model.shared.weight"]
    assert torch.equal(
        Seq2SeqPolicy.of(model.config.to_dict(), only_head, dtype=torch.float64).vocabulary, other.vocabulary
    )


def test_an_output_matrix_of_its_own_is_used():
    """T5 1.1 and Flan-T5 have one, whatever a newer config.json says about ties; and their logits are not scaled."""
    model = small_seq2seq("t5 1.1")
    config, head = model.config.to_dict(), torch.randn(VOCABULARY, 24, dtype=torch.float64)
    policy = Seq2SeqPolicy.of(config, {**model.state_dict(), "lm_head.weight": head}, dtype=torch.float64)
    assert torch.equal(policy.vocabulary, head)
    old = {key: value for key, value in config.items() if key != "scale_decoder_outputs"}
    for tied, scale in ((False, 1.0), (True, 24**-0.5)):
        policy = Seq2SeqPolicy.of({**old, "tie_word_embeddings": tied}, model.state_dict(), dtype=torch.float64)
        torch.testing.assert_close(policy.vocabulary, model.state_dict()["shared.weight"] * scale)


def test_generation_settings():
    config = small_seq2seq("bart").config.to_dict()
    plain = decoding_of(config)
    assert (plain.start, plain.ends, plain.suppressed, plain.unused) == ((2,), (EOS,), (), ())
    own = {
        "forced_bos_token_id": 1,
        "bad_words_ids": [[PAD], [4, 5]],
        "suppress_tokens": [9],
        "begin_suppress_tokens": [EOS],
        "no_repeat_ngram_size": 3,
        "min_length": 10,
        "eos_token_id": [EOS, 6],
        "num_beams": None,
    }
    decoding = decoding_of(config, own)
    assert (decoding.start, decoding.ends) == ((2, 1), (EOS, 6))
    assert (decoding.suppressed, decoding.suppressed_first) == ((PAD, 9), (EOS,))
    assert decoding.unused == ("no_repeat_ngram_size", "min_length", "bad_words_ids of several tokens")
    policy = Seq2SeqPolicy.of(config, small_seq2seq("bart").state_dict(), own)
    assert policy.forbidden[policy.mask(torch.tensor([0, 1]))].nonzero().tolist() == [
        [0, PAD], [0, 6], [0, EOS], [0, 9], [1, PAD], [1, 6], [1, 9]
    ]  # fmt: skip
    assert (policy.ending(6).eos, policy.ending(6).forbidden[0, EOS].item(), policy.eos) == (6, True, EOS)
    with pytest.raises(WeightsError, match="forced_eos_token_id is 5, which is none of the end tokens"):
        decoding_of({**config, "forced_eos_token_id": 5})
    with pytest.raises(WeightsError, match="no decoder_start_token_id and no bos_token_id"):
        decoding_of({"eos_token_id": 1})
    with pytest.raises(SharpenError, match=r"end tokens \[\]"):
        Seq2SeqPolicy.of(
            {**config, "eos_token_id": None, "forced_eos_token_id": None}, small_seq2seq("bart").state_dict()
        )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bart", {"model_type": "mbart"}, "model_type is 'mbart': expected one of bart, marian, t5"),
        ("bart", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("bart", {"normalize_before": True}, "normalize_before"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding"),
        ("bart", {"activation_function": "xielu"}, "activation 'xielu'"),
        ("bart", {"d_model": None}, "no number for d_model"),
        ("bart", {"encoder_ffn_dim": 41}, r"encoder\.layers\.0\.fc1\.weight has the shape \(40, 24\)"),
        ("bart", {"decoder_layers": 4}, r"no decoder\.layers\.3\."),
        ("bart", {"decoder_layers": 2}, r"decoder\.layers\.2\..*which no bart has"),
        ("t5", {"feed_forward_proj": "twice-relu"}, "feed_forward_proj"),
        ("t5", {"feed_forward_proj": "gated-gelu"}, r"no encoder\.block\.0\.layer\.1\.DenseReluDense\.wi_0"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(name, changes, message):
    model = small_seq2seq(name)
    with pytest.raises(WeightsError, match=message):
        Seq2SeqPolicy.of({**model.config.to_dict(), **changes}, model.state_dict())


def test_prompts_that_cannot_be_read():
    policy = policy_of(small_seq2seq("bart"))
    with pytest.raises(SharpenError, match="prompt 1 has no tokens"):
        policy.prepare([[1], []])
    with pytest.raises(SharpenError, match=f"token {VOCABULARY}"):
        policy.prepare([[VOCABULARY]])
    with pytest.raises(SharpenError, match="65 tokens; this bart reads at most 64"):
        policy.prepare([[1] * 65])
    assert len(policy_of(small_seq2seq("t5")).prepare([[1] * 65])) == 1
