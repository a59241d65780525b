"""The episode on Whisper: against a straightforward padded computation, alone and in batches, and nothing written."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small import small_checkpoint
from speechlike import utterances
from transformers.modeling_outputs import BaseModelOutput

from sharpen.benchmarks.stock import named_tensors, stock_model
from sharpen.errors import SharpenError
from sharpen.method import episode as room
from sharpen.method import trace as trace_room
from sharpen.method.adapt import adapt
from sharpen.method.adaptation import Adaptation
from sharpen.method.entropy import entropy
from sharpen.method.episode import Episode
from sharpen.method.gradient import score, tree_loss
from sharpen.method.norms import affine, choose, initial
from sharpen.method.objectives import METHODS, Method, em_tok
from sharpen.method.optimiser import Moments, adamw
from sharpen.method.policy import generator, log_pi
from sharpen.method.search import beam, greedy, sample
from sharpen.models.log_mel import log_mel
from sharpen.models.whisper import WhisperPolicy

ADAPTING = [name for name, row in METHODS.items() if row.search]
IDS = ["a", "b", "c"]
LIMITS = [4, 9, 6]


@pytest.fixture(scope="module")
def small():
    """A small random model in float64, and three utterances with prompts of different lengths."""
    policy = WhisperPolicy(small_checkpoint(d=16), dtype=torch.float64)
    t = policy.checkpoint.tokenizer
    prompt = [t.sot, t.languages["en"], t.transcribe, t.no_timestamps]
    features = torch.randn(3, 80, 240, generator=torch.Generator().manual_seed(5))  # 120 encoder frames are enough
    return policy, policy.prepare(features, [prompt, [t.sot_prev, 400, 500, *prompt], [t.sot_prev, 7, *prompt]])


def options(method="em-tok-b", **settings):
    return Adaptation(method=method, **{"samples": 4, "steps": 3, "lr": 1e-2, **settings})


def run(policy, prepared, rows=(0, 1, 2), **settings):
    ids, limits = [IDS[b] for b in rows], [LIMITS[b] for b in rows]
    return adapt(policy, prepared.select(rows), options(**settings), ids=ids, limits=limits)


def tree_gradient(policy, prepared, trees, objective=em_tok, normalise="tokens"):
    """The production path: searched trees, their loss, one scoring pass, the head in closed form."""
    chosen = choose(policy.norms(), "encoder+decoder")
    theta = initial(chosen, len(trees)).requires_grad_()
    view = policy.adapted(affine(chosen, theta))
    loss = tree_loss(trees, [objective] * len(trees), [normalise] * len(trees))
    gradient = score(view, view.encode(prepared), trees, theta.device).gradient(view, loss, theta)
    return torch.tensor(loss.values, dtype=torch.float64), gradient


def padded_gradient(policy, prepared, tree):
    """em-tok as a competent reader of the paper would write it: G padded rows through the stock model."""
    model = stock_model(policy.checkpoint, policy.dtype)
    prompt, G, T = prepared.prompts[0], len(tree.hypotheses), max(len(y) for y in tree.hypotheses)
    ids = torch.full((G, T), policy.eos)
    inside = torch.zeros(G, T, dtype=torch.bool)
    for i, y in enumerate(tree.hypotheses):
        ids[i, : len(y)] = torch.tensor(y.tokens)
        inside[i, : len(y)] = True
    modules = dict(model.model.named_modules())
    parameters = [p for norm in policy.norms() for p in (modules[norm.name].weight, modules[norm.name].bias)]
    for p in parameters:
        p.requires_grad_()
    try:
        x = prepared.stem
        for layer in model.model.encoder.layers:
            x = layer(x, None)
        states = model.model.encoder.layer_norm(x).expand(G, -1, -1)
        full = torch.cat([torch.tensor([prompt]).expand(G, -1), ids], dim=1)
        logits = model(encoder_outputs=BaseModelOutput(last_hidden_state=states), decoder_input_ids=full[:, :-1]).logits
        logits = logits[:, len(prompt) - 1 :].clone()
        logits[:, 0] = logits[:, 0].masked_fill(policy.forbidden[1], -torch.inf)
        logits[:, 1:] = logits[:, 1:].masked_fill(policy.forbidden[0], -torch.inf)
        log_pi = logits.log_softmax(-1)  # (G, T, V)
        logprob = (log_pi.gather(-1, ids[..., None])[..., 0].where(inside, 0)).sum(1)
        H_tok = (entropy(log_pi) * inside).sum(1)
        A = (H_tok - (H_tok.sum() - H_tok) / (G - 1)).detach()
        value = (A * logprob + H_tok).sum() / inside.sum()
        gradient = torch.cat(torch.autograd.grad(value, parameters))
    finally:
        for p in parameters:
            p.requires_grad_(False)
    return value.detach(), gradient


def test_tree_gradient_equals_padded_rows_on_real_whisper(base):
    policy, t = WhisperPolicy(base), base.tokenizer
    prompt = [t.sot, t.languages["en"], t.transcribe, t.no_timestamps]
    prepared = policy.prepare(log_mel(utterances(1), base.mel), [prompt])
    with torch.no_grad():
        encoded = policy.encode(prepared)
        pairs = [  # each search twice: without its distributions, and with them
            [beam(policy, encoded, [30], 6, entropies=True, keep=keep)[0] for keep in (0, 1 << 26)],
            [
                sample(policy, encoded, [20], 6, [generator(0, "x")], entropies=True, keep=keep)[0]
                for keep in (0, 1 << 26)
            ],
        ]
    for plain, kept in pairs:
        assert plain.log_pi is None
        assert kept.log_pi is not None
        assert [y.tokens for y in plain.hypotheses] == [y.tokens for y in kept.hypotheses]
        expected, reference = padded_gradient(policy, prepared, plain)
        for tree in (plain, kept):
            value, gradient = tree_gradient(policy, prepared, [tree])
            assert value[0] == pytest.approx(float(expected), rel=1e-4)
            assert (gradient[0] - reference).norm() < 1e-3 * reference.norm()


def test_tree_gradient_equals_padded_rows_in_float64(small):
    policy, prepared = small
    for b in range(3):
        one = prepared.select([b])
        with torch.no_grad():
            (tree,) = sample(policy, policy.encode(one), [8], 8, [generator(1, str(b))], entropies=True)
        value, gradient = tree_gradient(policy, one, [tree])
        expected, reference = padded_gradient(policy, one, tree)
        assert value[0] == pytest.approx(float(expected), abs=1e-6)  # the stock attention mask is float32
        assert (gradient[0] - reference).norm() < 1e-5 * reference.norm()


@pytest.mark.parametrize("method", ADAPTING)
def test_a_batch_adapts_each_as_if_alone(small, method):
    policy, prepared = small
    together = run(policy, prepared, method=method, steps=10)
    for b in range(3):
        alone = run(policy, prepared, [b], method=method, steps=10)
        assert (together.theta[b] - alone.theta[0]).abs().max() < 1e-8
        assert [s.H_tok for s in together.traces[b].steps] == pytest.approx([s.H_tok for s in alone.traces[0].steps])


@pytest.mark.parametrize("method", ADAPTING)
def test_an_utterance_that_joins_at_step_seven_gets_what_it_gets_alone(small, method):
    policy, prepared = small
    how = options(method, steps=9)
    episode = Episode(policy)
    episode.join(prepared.select([0]), ["a"], LIMITS[:1], how)
    for _ in range(7):
        episode.step()
    episode.join(prepared.select([1, 2]), ["b", "c"], LIMITS[1:], how)
    episode.step()
    episode.leave(["b"])
    while episode.step():
        pass
    for b, name in ((0, "a"), (2, "c")):
        alone = run(policy, prepared, [b], method=method, steps=9)
        assert (episode.theta([name])[0] - alone.theta[0]).abs().max() < 1e-8
        assert len(episode.trace(name).steps) == 9


@pytest.mark.parametrize("norms", ["encoder", "decoder", "encoder+decoder"])
def test_only_the_chosen_norms_move(small, norms):
    policy, prepared = small
    episode = run(policy, prepared, norms=norms)
    chosen = choose(policy.norms(), norms)
    assert {norm.side for norm in chosen} == set(norms.split("+"))
    assert episode.theta.shape == (3, sum(2 * len(norm.weight) for norm in chosen))
    assert ((episode.theta - initial(chosen, 3)).abs() > 0).double().mean() > 0.9


@pytest.mark.parametrize("layer", [1, 2])
def test_layers_below_the_adapted_norms_are_computed_once_and_change_no_gradient(small, layer, monkeypatch):
    policy, prepared = small
    chosen = choose(policy.norms(), f"encoder:{layer}+decoder")
    with torch.no_grad():
        trees = beam(policy, policy.encode(prepared), LIMITS, 4, entropies=True, keep=1 << 30)
    loss = tree_loss(trees, [em_tok] * 3, ["tokens"] * 3)
    gradients = []
    for ahead in (prepared, policy.ahead(prepared, [norm.name for norm in chosen])):
        theta = initial(chosen, 3).requires_grad_()
        view = policy.adapted(affine(chosen, theta))
        scored = score(view, view.encode(ahead), trees, theta.device)
        gradients.append(scored.gradient(view, replace(loss, trees=[replace(tree) for tree in trees]), theta))
    _, whole = tree_gradient(policy, prepared, trees)
    parts = dict(zip([n.name for n in policy.norms()], torch.split(whole, [32] * len(policy.norms()), 1), strict=True))
    expected = torch.cat([parts[norm.name] for norm in chosen], dim=1)
    assert ahead.layers == layer
    for gradient in gradients:
        assert torch.allclose(gradient, expected, atol=1e-12)
    runs = []
    layers = WhisperPolicy._layers
    monkeypatch.setattr(
        WhisperPolicy, "_layers", lambda self, p, end: runs.append(end - p.layers) or layers(self, p, end)
    )
    run(policy, prepared, [0], norms=f"encoder:{layer}+decoder")
    assert runs == [layer, *[2 - layer] * 3]  # the small model has two


def test_hypotheses_of_an_earlier_step_are_scored_under_the_present_norms(small):
    policy, prepared = small
    rare = run(policy, prepared, search_every=3)
    for b, trace in enumerate(rare.traces):
        first, second, _ = (step.tree for step in trace.steps)
        assert [y.tokens for y in first.hypotheses] == [y.tokens for y in second.hypotheses]
        one = run(policy, prepared, [b], steps=1)
        view = policy.adapted(one.norms)
        hidden = score(view, view.encode(prepared.select([b])), [second], one.theta.device).hidden
        rows = [log_pi(view, hidden[n : n + 1], depth)[0] for n, depth in enumerate(second.depths)]
        assert second.entropies == pytest.approx([float(entropy(row)) for row in rows])
        for y in second.hypotheses:
            assert y.logprobs == pytest.approx([float(rows[n][t]) for n, t in zip(y.nodes, y.tokens, strict=True)])
            assert [second.logprobs[n] for n in y.nodes[1:]] == pytest.approx(y.logprobs[:-1])
    assert not torch.allclose(rare.theta, run(policy, prepared).theta)


def test_searching_at_every_step_and_given_hypotheses_are_the_same_search(small):
    policy, prepared = small
    with torch.no_grad():
        trees = beam(policy, policy.encode(prepared), LIMITS, 4, entropies=True)
    given = adapt(policy, prepared, options(), ids=IDS, limits=LIMITS, trees=trees)
    assert torch.allclose(given.theta, run(policy, prepared).theta, atol=1e-10)


def test_decoder_norms_alone_encode_once(small, monkeypatch):
    policy, prepared = small
    calls = []
    encode = WhisperPolicy.encode
    monkeypatch.setattr(WhisperPolicy, "encode", lambda self, p: calls.append(1) or encode(self, p))
    run(policy, prepared, norms="decoder")
    assert len(calls) == 1
    calls.clear()
    run(policy, prepared, norms="encoder")
    assert len(calls) == 3  # one for each step, serving search and scoring


def test_adamw_is_torchs(small):
    theta = initial(small[0].norms(), 1)
    reference = torch.nn.Parameter(theta.clone())
    optimiser = torch.optim.AdamW([reference], lr=1e-2, weight_decay=0.1)
    moments = Moments.zeros(theta)
    for t in range(1, 6):
        gradient = torch.randn(theta.shape, generator=torch.Generator().manual_seed(t), dtype=theta.dtype)
        reference.grad = gradient.clone()
        optimiser.step()
        theta, moments = adamw(theta, moments, gradient, [t], [1e-2], [0.1])
        assert torch.allclose(theta, reference, atol=1e-12)


def test_entropy_falls(small):
    policy, prepared = small
    episode = run(policy, prepared, method="em-tok", samples=16, steps=10)
    for trace in episode.traces:
        assert trace.steps[-1].H_tok < trace.steps[0].H_tok


def tensors(policy):
    """The checkpoint's, and those that the policy computes with."""
    yield from named_tensors(policy.checkpoint.weights)
    yield "vocabulary", policy.vocabulary
    for norm in policy.norms():
        yield from ((f"{norm.name}.weight", norm.weight), (f"{norm.name}.bias", norm.bias))


def snapshot(policy):
    return {name: p.clone() for name, p in tensors(policy)}


def untouched(policy, before):
    assert not any(p.requires_grad for _, p in tensors(policy))
    return all(torch.equal(before[name], p) for name, p in tensors(policy))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_model_is_never_written(small, error):
    policy, prepared = small
    before = snapshot(policy)
    run(policy, prepared)
    assert untouched(policy, before)

    def stop(step, steps):
        raise error

    with pytest.raises(error):
        adapt(policy, prepared, options(), ids=IDS, limits=LIMITS, on_step=stop)
    assert untouched(policy, before)


def test_threads_do_not_meet(small):
    """Two episodes with different methods on one model, held in step by a barrier."""
    policy, prepared = small
    jobs = [("em-tok-b", [0, 1]), ("em-seq", [2])]
    expected = [run(policy, prepared, rows, method=method).theta for method, rows in jobs]
    barrier, results = threading.Barrier(2), [None, None]

    def work(i):
        method, rows = jobs[i]
        episode = adapt(
            policy,
            prepared.select(rows),
            options(method),
            ids=[IDS[b] for b in rows],
            limits=[LIMITS[b] for b in rows],
            on_step=lambda *_: barrier.wait(timeout=60),
        )
        results[i] = episode.theta

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_what_is_not_finite_stops_that_input_alone(small, monkeypatch):
    policy, prepared = small
    plain = run(policy, prepared)
    source = initial(policy.norms(), 3)
    count = [0]
    update = room.update_rows

    def broken(rows, gradient, losses):
        count[0] += 1
        if count[0] == 2:
            gradient[1, 3] = torch.nan
        return update(rows, gradient, losses)

    monkeypatch.setattr(room, "update_rows", broken)
    episode = run(policy, prepared)
    assert "step 2" in episode.traces[1].stopped
    assert "not finite" in episode.traces[1].stopped
    assert [len(t.steps) for t in episode.traces] == [3, 2, 3]
    assert torch.equal(episode.theta[1], source[1])  # under the first update the second gradient was not finite
    for b in (0, 2):
        assert torch.allclose(episode.theta[b], plain.theta[b], atol=1e-10)
        assert episode.traces[b].stopped == ""


def test_trace(small):
    policy, prepared = small
    episode = run(policy, prepared, explain=True)
    for b, trace in enumerate(episode.traces):
        assert len(trace.steps) == 3
        for s in trace.steps:
            assert s.hypotheses == s.distinct == 4
            assert s.nodes < s.tokens
            assert s.truncated <= s.hypotheses
            assert set(s.seconds) == {"encode", "search", "greedy", "score", "backward", "optimiser"}
            assert s.gradient_norm > 0
            assert 0 < s.best_probability < 1
            assert len(s.tree.hypotheses) == 4
            mean = np.mean([sum(s.tree.entropies[node] for node in y.nodes) for y in s.tree.hypotheses])
            assert mean == pytest.approx(s.H_tok)
        with torch.no_grad():
            source = greedy(policy, policy.encode(prepared.select([b])), [LIMITS[b]])
        assert trace.steps[0].greedy == source[0].hypotheses[0].tokens


def test_stopping_rules(small, monkeypatch):
    policy, prepared = small
    monkeypatch.setattr(trace_room, "CERTAIN", 0.0)
    assert "certain" in run(policy, prepared, stop=("certain",)).traces[0].stopped
    monkeypatch.setattr(trace_room, "SETTLED", 10.0)
    settled = run(policy, prepared, stop=("settled",)).traces[0]
    assert ("settled" in settled.stopped, len(settled.steps)) == (True, 2)
    agreed = adapt(policy, prepared, options(stop=("agreed",)), ids=IDS, limits=LIMITS, text=lambda tokens: "same")
    assert agreed.traces[0].stopped.startswith("agreed")
    assert agreed.traces[0].steps[0].distinct_texts == 1
    assert run(policy, prepared).traces[0].stopped == ""


def test_a_row_of_ones_own(small):
    policy, prepared = small

    def half_em_tok(group, baseline=True):
        coefficients = em_tok(group, baseline)
        return replace(coefficients, nodes=0.5 * coefficients.nodes)

    own = run(policy, prepared, method=Method("beam", half_em_tok))
    assert not torch.allclose(own.theta, run(policy, prepared).theta)
    same = run(policy, prepared, method=Method("beam", em_tok))
    assert torch.allclose(same.theta, run(policy, prepared).theta, atol=1e-12)


def test_methods_without_adaptation_leave_everything(small):
    policy, prepared = small
    episode = run(policy, prepared, method="source")
    assert episode.norms == {}
    assert all(trace.steps == [] for trace in episode.traces)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "magic"}, "expected one of source, beam"),
        ({"steps": -1}, "at least 0"),
        ({"samples": 0}, "at least 1"),
        ({"lr": 0.0}, "lr is 0.0; expected a finite number, above 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"weight_decay": -1.0}, "at least 0"),
        ({"norms": "middle"}, "expected encoder.decoder, encoder or decoder"),
        ({"normalise": "words"}, "tokens, group"),
        ({"stop": ("bored",)}, "bored"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SharpenError, match=message):
        Adaptation(**settings)


@pytest.mark.parametrize("name", ["tiny_en", pytest.param("base", marks=pytest.mark.long)])
def test_first_step_on_real_whisper_is_the_same_in_a_batch(request, name):
    checkpoint = request.getfixturevalue(name)
    policy, t = WhisperPolicy(checkpoint), checkpoint.tokenizer
    prompt = [t.sot, t.languages["en"], t.transcribe] if t.multilingual else [t.sot]
    prepared = policy.prepare(log_mel(utterances(3), checkpoint.mel), [[*prompt, t.no_timestamps]] * 3)
    with torch.no_grad():
        together = beam(policy, policy.encode(prepared), [40] * 3, 4, entropies=True, keep=1 << 26)
    _, gradients = tree_gradient(policy, prepared, together)
    for b in range(3):
        one = prepared.select([b])
        with torch.no_grad():
            (alone,) = beam(policy, policy.encode(one), [40], 4, entropies=True)
        assert [y.tokens for y in alone.hypotheses] == [y.tokens for y in together[b].hypotheses]
        _, gradient = tree_gradient(policy, one, [alone])
        assert (gradients[b] - gradient[0]).norm() < 1e-4 * gradient.norm()
        assert np.isfinite(gradient.numpy()).all()


@pytest.mark.parametrize("find", [greedy, beam, sample])
def test_kept_distributions_give_the_gradient_that_projecting_again_gives(small, find):
    policy, prepared = small
    gradients = []
    for keep in (0, 1 << 30):
        more = {greedy: [], beam: [5], sample: [5, [generator(3, name) for name in IDS]]}[find]
        with torch.no_grad():
            trees = find(policy, policy.encode(prepared), LIMITS, *more, entropies=True, keep=keep)
        assert all((tree.log_pi is None) == (keep == 0) for tree in trees)
        gradients.append(tree_gradient(policy, prepared, trees)[1])
        assert all(tree.log_pi is None for tree in trees)  # a trace must not hold them
    assert (gradients[0] - gradients[1]).norm() < 1e-10 * gradients[0].norm()


def test_no_distribution_is_kept_beyond_the_room_for_them(small):
    policy, prepared = small
    with torch.no_grad():
        encoded = policy.encode(prepared)
        V = len(policy.vocabulary)
        trees = beam(policy, encoded, LIMITS, 4, keep=3 * V + 5 * 3 * V)  # the roots and a level, not the next one
        few = beam(policy, encoded, [1, 1, 1], 4, keep=3 * V)
    assert all(tree.log_pi is None for tree in trees)
    assert all(len(tree.log_pi) == len(tree) == 1 for tree in few)
