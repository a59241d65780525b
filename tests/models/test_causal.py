"""Our loop over the layers of every family against transformers."""

import pytest
import torch
from models.causal_models import EOS, FAMILIES, VOCABULARY, small_causal

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
from sharpen.models.causal import CausalPolicy
from sharpen.models.families import describe

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # transformers computes RMS norms and angles in float32 whatever the model
PROMPTS = ((3, 9, 4, 11, 5, 6), (8,), (1, 2, 3, 10, 12, 13, 14, 15, 16))


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    """The policy and transformers' model, in float64."""
    model = small_causal(request.param)
    return CausalPolicy.of(model.config.to_dict(), model.state_dict(), dtype=torch.float64), model


def test_conformance(pair):
    policy, _ = pair
    check_policy(policy, policy.prepare(PROMPTS))


def test_logits_of_every_hypothesis(pair):
    """The tree in one pass equals each hypothesis as a row of its own."""
    policy, model = pair
    prepared = policy.prepare(PROMPTS)
    with torch.no_grad():
        encoded = policy.encode(prepared)
        trees = sample(policy, encoded, [9] * 3, 5, [generator(0, str(b)) for b in range(3)], entropies=True)
        hidden = torch.split(score(policy, encoded, trees, policy.device).hidden, [len(tree) for tree in trees])
        for prompt, tree, states in zip(PROMPTS, trees, hidden, strict=True):
            for y in tree.hypotheses:
                row = torch.tensor([[*prompt, *y.tokens[:-1]]])
                expected = model(row).logits[0, len(prompt) - 1 :]  # (T, V)
                torch.testing.assert_close(policy.project(states[list(y.nodes)]), expected, **CLOSE)
                logprobs = expected.log_softmax(-1)[range(len(y)), list(y.tokens)]
                torch.testing.assert_close(torch.tensor(y.logprobs, dtype=torch.float64), logprobs, **CLOSE)


def test_greedy_tokens(pair):
    policy, model = pair
    with torch.no_grad():
        trees = greedy(policy, policy.encode(policy.prepare(PROMPTS)), [20] * 3)
    for prompt, tree in zip(PROMPTS, trees, strict=True):
        out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, pad_token_id=0)
        assert tree.hypotheses[0].tokens == tuple(out[0, len(prompt) :].tolist())


def test_gradient_of_the_norms(pair):
    """The gradient of em-tok against autograd through transformers' own layers and head."""
    policy, model = pair
    prepared = policy.prepare(PROMPTS[:1])
    norms = choose(policy.norms(), "decoder")
    theta = initial(norms, 1).requires_grad_()
    view = policy.adapted(affine(norms, theta))
    encoded = view.encode(prepared)
    with torch.no_grad():
        trees = sample(policy, policy.encode(prepared), [6], 4, [generator(0, "x")], entropies=True)
    loss = tree_loss(trees, [em_tok], ["tokens"])
    ours = score(view, encoded, trees, policy.device).gradient(view, loss, theta)

    parameters = dict(model.named_parameters())
    names = [f"{norm.name}.{part}" for norm in norms for part in ("weight", "bias") if getattr(norm, part) is not None]
    prefix = policy.architecture.names.prefix
    chosen = [parameters[f"{prefix}{name}"].requires_grad_() for name in names]
    total = 0.0
    entropies = torch.tensor(trees[0].entropies, dtype=torch.float64)
    length = sum(map(len, trees[0].hypotheses))
    H = torch.tensor([float(entropies[list(y.nodes)].sum()) for y in trees[0].hypotheses])
    advantage = (H - (H.sum() - H) / (len(H) - 1)).double()
    for y, own in zip(trees[0].hypotheses, advantage, strict=True):
        logits = model(torch.tensor([[*PROMPTS[0], *y.tokens[:-1]]])).logits[0, len(PROMPTS[0]) - 1 :]
        logp = logits.log_softmax(-1)
        total = total + own * logp[range(len(y)), list(y.tokens)].sum() - (logp.exp() * logp).sum()
    theirs = torch.autograd.grad(total / length, chosen)
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


def test_some_of_the_norms_change_the_prompt_too():
    """With decoder norms alone and no encoder, the prompt is read again at every step."""
    model = small_causal("llama")
    policy = CausalPolicy.of(model.config.to_dict(), model.state_dict(), dtype=torch.float64)
    options = Adaptation(method="em-tok", steps=2, samples=3, lr=0.05, norms="decoder:1")
    seen = []

    class Watched(CausalPolicy):
        def encode(self, prepared):
            encoded = super().encode(prepared)
            seen.append(encoded.each[0].root.detach().clone())
            return encoded

    watched = policy.adapted({})
    watched.__class__ = Watched
    adapt(watched, policy.prepare(PROMPTS[:1]), options, limits=[6])
    assert len(seen) == 2
    assert not torch.equal(seen[0], seen[1])


def test_a_wide_beam_that_is_compacted_and_ended_inputs_that_are_dropped(monkeypatch):
    """A window counts positions, not columns."""
    model = small_causal("gemma3")
    policy = CausalPolicy.of(model.config.to_dict(), model.state_dict(), dtype=torch.float64)
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
            logits = model(torch.tensor([[*prompt, *y.tokens[:-1]]])).logits[0, len(prompt) - 1 :]
            logprobs = logits.log_softmax(-1)[range(len(y)), list(y.tokens)]
            torch.testing.assert_close(torch.tensor(y.logprobs, dtype=torch.float64), logprobs, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_number_formats(dtype):
    """float32 runs on packed matrices."""
    model = small_causal("qwen3", torch.float32)
    policy = CausalPolicy.of(model.config.to_dict(), model.state_dict(), dtype=dtype)
    check_policy(policy, policy.prepare(PROMPTS))


def test_one_of_several_end_tokens():
    model = small_causal("llama")
    config = {**model.config.to_dict(), "eos_token_id": [EOS, 5]}
    policy = CausalPolicy.of(config, model.state_dict())
    assert (policy.eos, policy.forbidden[0].nonzero().tolist()) == (EOS, [[5]])
    other = policy.ending(5)
    assert (other.eos, other.forbidden[0].nonzero().tolist()) == (5, [[EOS]])
    assert policy.eos == EOS
    with pytest.raises(SharpenError, match="end tokens"):
        CausalPolicy.of({**config, "eos_token_id": None}, model.state_dict())


def test_old_files():
    """Without the prefix, with buffers, and with rope_theta outside of rope_parameters."""
    model = small_causal("gpt2")
    tensors = {name.removeprefix("transformer."): t for name, t in model.state_dict().items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    CausalPolicy.of(model.config.to_dict(), tensors)
    config = small_causal("llama").config.to_dict()
    assert describe(config) == describe({**config, "rope_parameters": None, "rope_theta": 10000.0})
    old = describe({**config, "rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert old.rotary[0].stretch == 2.0
    gemma = small_causal("gemma3").config.to_dict()
    older = {**gemma, "rope_parameters": None, "layer_types": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    assert describe(gemma) == describe(older)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma2"}, "gemma2 caps its logits"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"model_type": "mamba"}, "model_type is 'mamba': expected one of llama, mistral"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn' are not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "xielu"}, "activation 'xielu'"),
        ({"hidden_size": None}, "no number for hidden_size"),
        ({"intermediate_size": 41}, r"has the shape \(24, 40\), expected \(24, 41\)|has the shape \(40, 24\)"),
        ({"num_hidden_layers": 4}, r"no layers\.3\."),
        ({"num_hidden_layers": 2}, r"layers\.2\..*which no llama has"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(changes, message):
    model = small_causal("llama")
    with pytest.raises(WeightsError, match=message):
        CausalPolicy.of({**model.config.to_dict(), **changes}, model.state_dict())


def test_prompts_that_cannot_be_read():
    model = small_causal("llama")
    policy = CausalPolicy.of(model.config.to_dict(), model.state_dict())
    with pytest.raises(SharpenError, match="prompt 1 has no tokens"):
        policy.prepare([[1], []])
    with pytest.raises(SharpenError, match=f"token {VOCABULARY}"):
        policy.prepare([[VOCABULARY]])
    with torch.no_grad():
        encoded = policy.encode(policy.prepare([[1] * 65]))
        with pytest.raises(SharpenError, match="leaves no room"):
            greedy(policy, encoded, [3])
