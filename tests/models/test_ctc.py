"""transformers' CTC models, small and random: adapted one by one, and nothing written."""

import threading

import pytest
import torch
from transformers import HubertConfig, HubertForCTC, Wav2Vec2Config, Wav2Vec2ForCTC, WavLMConfig, WavLMForCTC

from sharpen.errors import SharpenError
from sharpen.method import ctc
from sharpen.method.ctc import CTCAdaptation
from sharpen.models import ctc as room
from sharpen.models.ctc import adapt_ctc

KINDS = {
    "wav2vec2": (Wav2Vec2ForCTC, Wav2Vec2Config, {}),
    "wav2vec2-layer": (Wav2Vec2ForCTC, Wav2Vec2Config, {"feat_extract_norm": "layer", "do_stable_layer_norm": True}),
    "hubert": (HubertForCTC, HubertConfig, {}),
    "wavlm": (WavLMForCTC, WavLMConfig, {}),
}


def small(kind="wav2vec2", symbols=6, positions=6, **settings):
    """Dropout, SpecAugment and layer drop are on, and the model is in training mode: an episode must not care."""
    model_class, config_class, own = KINDS[kind]
    torch.manual_seed(0)
    config = config_class(
        vocab_size=symbols, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        conv_dim=(8, 8), conv_kernel=(10, 4), conv_stride=(5, 4), num_feat_extract_layers=2,
        num_conv_pos_embeddings=positions, num_conv_pos_embedding_groups=2, initializer_range=0.3, pad_token_id=0,
        mask_time_prob=0.5, mask_time_length=2, layerdrop=0.5, hidden_dropout=0.3, final_dropout=0.3,
        **own, **settings,
    )  # fmt: skip
    model = model_class(config).double().train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p += 0.3 * torch.randn_like(p)
    return model


def waves(*lengths):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(n, generator=g, dtype=torch.float64) for n in lengths]


def options(**settings):
    return CTCAdaptation(**{"steps": 4, "samples": 6, "lr": 1e-2, **settings})


def state(model):
    return {name: (t, t.clone(), t.requires_grad) for name, t in (*model.named_parameters(), *model.named_buffers())}


def untouched(model, before):
    now = dict((*model.named_parameters(), *model.named_buffers()))
    same = all(now[n] is t and torch.equal(t, copy) and t.requires_grad == r for n, (t, copy, r) in before.items())
    return same and model.training and len(now) == len(before) and all(t.grad is None for t in now.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parameters", ["norms", "norms+features"])
def test_first_step_is_the_stock_models_gradient(kind, parameters):
    """Against the model itself in eval mode with its own autograd, and the outputs are its argmax."""
    model, (x,) = small(kind), waves(200)
    (episode,) = adapt_ctc(model, [x], options(objective="frames", steps=1, parameters=parameters))
    model.eval()
    logits = model(x[None]).logits
    expected = ctc.frame_entropy(ctc.distributions(logits), [logits.shape[1]], 0)[0]
    named = dict(model.named_parameters())
    chosen = [named[name] for name in episode.parameters]
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(expected, chosen)])
    assert episode.steps[0].loss == pytest.approx(expected.item(), abs=1e-12)
    assert episode.steps[0].gradient_norm == pytest.approx(gradient.norm().item(), rel=1e-9)
    assert episode.source == ctc.greedy(logits, [logits.shape[1]], 0)[0]
    moved = torch.cat([(episode.parameters[name] - named[name]).detach().flatten() for name in episode.parameters])
    large = gradient.abs() > 1e-6  # Adam's first step is lr times the gradient's sign
    assert torch.allclose(moved[large], -1e-2 * gradient.sign()[large], rtol=0.02)
    features = [name for name in episode.parameters if ".feature_extractor.conv" in name and ".conv.weight" in name]
    assert bool(features) == (parameters == "norms+features")


@pytest.mark.parametrize("non_blank", [True, False])
def test_steps_are_torchs_adamw_on_the_stock_model(non_blank):
    model, (x,) = small(), waves(300)
    settings = {"temperature": 2.5, "non_blank": non_blank, "weight_decay": 0.1}
    (episode,) = adapt_ctc(model, [x], options(objective="frames", steps=3, **settings))
    stock = small().eval()
    chosen = {name: p for name, p in stock.named_parameters() if name in episode.parameters}
    optimiser = torch.optim.AdamW(chosen.values(), lr=1e-2, weight_decay=0.1)
    for step in episode.steps:
        logits = stock(x[None]).logits / 2.5
        H = torch.distributions.Categorical(logits=logits[0]).entropy()  # (T,)
        loss = H[logits[0].argmax(-1) != 0].mean() if non_blank else H.mean()
        assert step.loss == pytest.approx(loss.item(), abs=1e-10)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, p in chosen.items():
        assert torch.allclose(episode.parameters[name], p, atol=1e-8)


def test_each_id_and_seed_has_its_own_draws():
    model, (x,) = small(), waves(300)
    first = [e.steps[0].H_seq for e in adapt_ctc(model, [x] * 3, options(steps=1), ids=["a", "b", "a"])]
    assert first[0] == first[2] != first[1]
    (other,) = adapt_ctc(model, [x], options(steps=1, seed=1), ids=["a"])
    assert other.steps[0].H_seq != first[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objective", ["frames", "collapse"])
def test_the_output_is_the_stock_models_with_the_adapted_parameters(kind, objective):
    model, inputs = small(kind), waves(200, 300)
    for x, episode in zip(inputs, adapt_ctc(model, inputs, options(objective=objective)), strict=True):
        loaded = small(kind).eval()
        loaded.load_state_dict({**loaded.state_dict(), **episode.parameters})
        with torch.no_grad():
            logits = loaded(x[None]).logits
        assert episode.output == ctc.greedy(logits, [logits.shape[1]], 0)[0]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("parameters", ["norms", "norms+features"])
def test_the_model_is_never_written(parameters, error):
    model, inputs = small(), waves(200, 300)
    before = state(model)
    adapt_ctc(model, inputs, options(parameters=parameters))
    assert untouched(model, before)

    def stop(b, number, step):
        assert untouched(model, before)
        raise error

    with pytest.raises(error):
        adapt_ctc(model, inputs, options(parameters=parameters), on_step=stop)
    assert untouched(model, before)


@pytest.mark.parametrize("objective", ["frames", "collapse"])
def test_an_input_adapts_as_if_alone(objective):
    model, inputs = small(), waves(200, 420, 300)
    together = adapt_ctc(model, inputs, options(objective=objective), ids=["a", "b", "c"])
    for b in (2, 0, 1):
        (alone,) = adapt_ctc(model, [inputs[b]], options(objective=objective), ids=["abc"[b]])
        assert alone.output == together[b].output
        for name, value in alone.parameters.items():
            assert torch.equal(value, together[b].parameters[name])


def test_threads_do_not_meet():
    model, inputs = small(), waves(200, 300)
    jobs = [options(objective="collapse"), options(objective="frames", parameters="norms+features")]
    expected = [adapt_ctc(model, [x], o)[0] for x, o in zip(inputs, jobs, strict=True)]
    barrier, results = threading.Barrier(2), [None, None]

    def work(i):
        results[i] = adapt_ctc(model, [inputs[i]], jobs[i], on_step=lambda *_: barrier.wait(timeout=60))[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(results, expected, strict=True):
        assert all(torch.equal(value, theirs.parameters[name]) for name, value in ours.parameters.items())


def test_entropy_falls():
    model, inputs = small(), waves(200, 300)
    for episode in adapt_ctc(model, inputs, options(objective="frames", steps=10)):
        assert episode.steps[-1].frame_entropy < 0.9 * episode.steps[0].frame_entropy
        assert episode.steps[0].H_seq is None
    for episode in adapt_ctc(model, inputs, options(samples=32, steps=20)):
        first, last = episode.steps[0], episode.steps[-1]
        assert last.H_seq < 0.9 * first.H_seq
        assert first.samples == 32
        assert 1 < first.distinct <= 32
        assert set(first.seconds) == {"forward", "backward"}


@pytest.mark.parametrize(("kind", "times"), [("wav2vec2", 1), ("wav2vec2-layer", 6)])
def test_what_precedes_the_first_adapted_norm_is_computed_once(kind, times, monkeypatch):
    model, (x,) = small(kind), waves(200)
    calls = []
    extractor = type(model.wav2vec2.feature_extractor)
    forward = extractor.forward
    monkeypatch.setattr(extractor, "forward", lambda self, values: calls.append(1) or forward(self, values))
    adapt_ctc(model, [x], options())
    assert len(calls) == times  # source decode, four steps, final decode where a norm lies inside


def test_what_is_not_finite_stops_with_the_last_finite_parameters(monkeypatch):
    """The second loss is under what the first update made: so it is the first update that is taken back."""
    model, (x,) = small(), waves(200)
    (none,) = adapt_ctc(model, [x], options(steps=0))
    count = [0]
    reinforce = ctc.reinforce

    def broken(nll, drawn, baseline=True):
        count[0] += 1
        return reinforce(nll, drawn, baseline) * (torch.nan if count[0] == 2 else 1.0)

    monkeypatch.setattr(ctc, "reinforce", broken)
    (episode,) = adapt_ctc(model, [x], options())
    assert "step 2" in episode.stopped
    assert len(episode.steps) == 2
    assert all(torch.equal(value, none.parameters[name]) for name, value in episode.parameters.items())
    assert episode.output == episode.source


def test_no_steps_is_the_source():
    model, (x,) = small(), waves(200)
    (episode,) = adapt_ctc(model, [x], options(steps=0))
    assert episode.output == episode.source
    assert episode.steps == ()
    assert all(torch.equal(value, dict(model.named_parameters())[n]) for n, value in episode.parameters.items())


def test_a_symbol_that_is_never_given_is_as_good_as_none():
    model, (x,) = small(), waves(200)
    with torch.no_grad():
        model.lm_head.bias[3] = -torch.inf
    masked, fewer = adapt_ctc(model, [x], options())[0], small(symbols=5)
    kept = [0, 1, 2, 4, 5]
    state = model.state_dict()
    state["lm_head.weight"], state["lm_head.bias"] = state["lm_head.weight"][kept], state["lm_head.bias"][kept]
    fewer.load_state_dict(state)
    expected = adapt_ctc(fewer, [x], options())[0]
    assert masked.stopped == ""
    for a, b in zip(masked.steps, expected.steps, strict=True):
        assert (a.loss, a.gradient_norm) == pytest.approx((b.loss, b.gradient_norm), rel=1e-9)


def test_half_precision_does_not_round_an_update_away():
    model, (x,) = small().bfloat16(), waves(200)
    plain, adapted = (adapt_ctc(model, [x], options(objective="frames", lr=1e-3, steps=k))[0] for k in (0, 3))
    first, last = adapted.steps[0], adapted.steps[-1]
    assert last.loss < first.loss
    moved = [not torch.equal(value, plain.parameters[name]) for name, value in adapted.parameters.items()]
    assert all(moved)
    with pytest.raises(SharpenError, match=r"convolutions in torch\.bfloat16 would round updates away"):
        adapt_ctc(model, [x], options(parameters="norms+features"))


def test_what_does_not_fit_is_refused_with_advice(monkeypatch):
    model = small()
    with pytest.raises(SharpenError, match=r"Linear is not a CTC model; expected a …ForCTC of transformers"):
        adapt_ctc(torch.nn.Linear(2, 2), [], options())
    with pytest.raises(SharpenError, match=r"shape \(1, 200\); expected a waveform"):
        adapt_ctc(model, [waves(200)[0][None]], options())
    with pytest.raises(SharpenError, match="input 1 has 12 samples, too few"):
        adapt_ctc(model, waves(200, 12), options())
    with pytest.raises(SharpenError, match="1 inputs and 2 ids"):
        adapt_ctc(model, waves(200), options(), ids=["a", "b"])
    monkeypatch.setattr(model.config, "pad_token_id", None)
    with pytest.raises(SharpenError, match=r"set config\.pad_token_id"):
        adapt_ctc(model, waves(200), options())


def test_a_model_without_norms_or_features_is_refused():
    model = small()
    assert len(room._adapted_names(model, options())) < len(
        room._adapted_names(model, options(parameters="norms+features"))
    )
    del model.wav2vec2.feature_extractor
    with pytest.raises(SharpenError, match="use parameters='norms'"):
        room._adapted_names(model, options(parameters="norms+features"))
    model.wav2vec2 = torch.nn.Identity()
    with pytest.raises(SharpenError, match="no LayerNorm"):
        room._adapted_names(model, options())
