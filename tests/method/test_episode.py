"""The episode on the model that can be enumerated: inputs that join and leave, traces, stops."""

import random
from dataclasses import replace

import pytest
import torch
from toy import ToyPolicy

from sharpen.errors import SharpenError
from sharpen.method import episode as room
from sharpen.method.adapt import adapt
from sharpen.method.adaptation import Adaptation
from sharpen.method.episode import Episode
from sharpen.method.objectives import METHODS
from sharpen.method.search import greedy

LIMIT = 6


def run(policy, method, steps, **settings):
    options = Adaptation(method=method, steps=steps, samples=4, lr=0.3, **settings)
    return adapt(policy, policy.inputs, options, limits=[LIMIT] * 3)


def answers(policy, episode):
    """What the model says with the norms the episode ended with."""
    view = policy.adapted(episode.norms)
    with torch.no_grad():
        return [tree.hypotheses[0].tokens for tree in greedy(view, view.encode(policy.inputs), [LIMIT] * 3)]


@pytest.mark.parametrize("method", ["greedy-em", "em-tok", "em-tok-b"])
def test_one_episode_tells_what_shorter_ones_answer(method):
    policy = ToyPolicy(vocabulary=6, seed=3)
    long = run(policy, method, 8, greedy_at=(0, 2, 5, 8))
    plain = run(policy, method, 8)
    assert torch.equal(long.theta, plain.theta)  # speaking changes nothing
    for trace in long.traces:
        assert [k for k, step in enumerate(trace.steps) if step.greedy is not None] == [0, 2, 5]
    assert all(step.greedy is None for trace in plain.traces for step in trace.steps)
    said = {k: [trace.steps[k].greedy for trace in long.traces] for k in (2, 5)}
    for k in (2, 5):
        assert said[k] == answers(policy, run(policy, method, k))
    encoded = policy.encode(policy.inputs)
    with torch.no_grad():
        source = [tree.hypotheses[0].tokens for tree in greedy(policy, encoded, [LIMIT] * 3)]
    assert [trace.steps[0].greedy for trace in long.traces] == source


def test_a_linear_schedule_falls_to_the_share_of_one_step():
    options = Adaptation(lr=0.4, steps=4, schedule="linear")
    assert [options.lr_at(k) for k in range(4)] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert Adaptation(lr=0.4, steps=4).lr_at(3) == 0.4
    policy = ToyPolicy(vocabulary=6, seed=3)
    short = {schedule: run(policy, "em-tok-b", 1, schedule=schedule).theta for schedule in ("constant", "linear")}
    assert torch.equal(short["linear"], short["constant"])  # the first step has the whole rate
    episode = Episode(policy)
    settings = {"samples": 4, "steps": 2, "lr": 0.3}
    for schedule in ("constant", "linear"):
        options = Adaptation("em-tok-b", schedule=schedule, **settings)
        episode.join(policy.inputs.select([0]), [schedule], [LIMIT], options)
    episode.step()
    first = episode.theta(["constant", "linear"])
    assert torch.allclose(first[0], first[1], rtol=1e-9)
    episode.step()
    moved = episode.theta(["constant", "linear"]) - first
    assert torch.allclose(moved[1], moved[0] / 2, rtol=1e-6)  # AdamW moves by the rate times a ratio of moments


@pytest.mark.parametrize("method", ["greedy-em", "em-seq", "em-tok", "em-tok-b", "em-tok-togo"])
def test_an_input_without_numbers_stops_and_the_others_go_on(method):
    policy = ToyPolicy(vocabulary=6, seed=3)
    alone = run(policy, method, 3)
    policy.inputs.x[1] = float("nan")
    together = run(policy, method, 3)
    assert "not finite" in together.traces[1].stopped
    assert len(together.traces[1].steps) == 1
    for b in (0, 2):
        assert torch.allclose(together.theta[b], alone.theta[b], rtol=1e-9)
        assert together.traces[b].steps[-1].loss == pytest.approx(alone.traces[b].steps[-1].loss)


def test_inference_mode_is_named():
    policy = ToyPolicy()
    with torch.inference_mode(), pytest.raises(SharpenError, match="call it outside of that"):
        run(policy, "em-tok", 1)


def test_adapting_changes_what_is_said():
    """Otherwise the test above would hold for any k."""
    policy = ToyPolicy(vocabulary=6, seed=3)
    trace = run(policy, "em-tok-b", 8, greedy_at=(0, 2, 5))
    assert len({tuple(t.steps[k].greedy for t in trace.traces) for k in (0, 2, 5)}) > 1


def test_explain_still_speaks_before_every_step():
    episode = run(ToyPolicy(), "em-tok-b", 3, explain=True)
    assert all(step.greedy is not None for trace in episode.traces for step in trace.steps)


@pytest.mark.parametrize("at", [(11,), (3, -1)])
def test_counts_beyond_the_episode_are_refused(at):
    with pytest.raises(SharpenError, match=f"greedy_at names {at[-1]} updates; expected 0 to 10"):
        Adaptation(greedy_at=at)


def test_listeners_are_told_which_input_a_step_is_of():
    policy = ToyPolicy(vocabulary=6, seed=3)
    policy.inputs.x[1] = float("nan")
    heard = []
    adapt(policy, policy.inputs, Adaptation("em-tok", steps=2), on_step=lambda n, steps: heard.append((n, [*steps])))
    assert heard == [(1, [0, 1, 2]), (2, [0, 2])]


def test_a_last_update_that_overflows_is_undone():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode = adapt(policy, policy.inputs, Adaptation("em-tok", steps=1, lr=1e308, weight_decay=1e308))
    assert all("step 1" in trace.stopped and "not finite" in trace.stopped for trace in episode.traces)
    assert torch.isfinite(episode.theta).all()


def test_it_is_undone_for_an_input_that_stopped_before_the_others():
    policy = ToyPolicy(vocabulary=6, seed=3)
    options = Adaptation("em-tok", steps=3, samples=2, lr=1e308, weight_decay=1e308, stop=("agreed",))
    episode = adapt(policy, policy.inputs, options, limits=[6, 1, 6])
    assert [len(trace.steps) for trace in episode.traces] == [1, 1, 1]
    assert torch.isfinite(episode.theta).all()


def test_one_side_after_the_other():
    """The second episode's norms come on top of the first one's."""
    policy = ToyPolicy(vocabulary=6, seed=3)
    view = policy.adapted(run(policy, "em-tok", 3, norms="encoder").norms)
    both = view.adapted(run(view, "em-tok", 3, norms="decoder").norms)
    assert torch.equal(both.encode(policy.inputs).h, view.encode(policy.inputs).h)
    assert not torch.equal(both.encode(policy.inputs).h, policy.encode(policy.inputs).h)


def test_nothing_to_adapt_asks_nothing_of_the_model():
    policy = ToyPolicy()
    policy.norms = list  # a model without norms
    for options in (Adaptation("source"), Adaptation("beam"), Adaptation("em-tok", steps=0)):
        episode = adapt(policy, policy.inputs, options)
        assert (dict(episode.norms), len(episode.traces)) == ({}, 3)
    with pytest.raises(SharpenError, match="no norms"):
        adapt(policy, policy.inputs, Adaptation("em-tok"))
    assert adapt(ToyPolicy(), policy.inputs.select([]), Adaptation("em-tok")).traces == []


def test_a_prompt_that_leaves_no_room_is_named():
    policy = ToyPolicy()
    policy.capacity = lambda encoded: [5, 0, 5]
    with pytest.raises(SharpenError, match="the prompt of input 1 leaves no room"):
        adapt(policy, policy.inputs, Adaptation("em-tok"))


def test_a_stop_rule_that_is_no_tuple_is_named():
    with pytest.raises(SharpenError, match="stop is 'certain'; expected a tuple"):
        Adaptation(stop="certain")


def test_parameters_that_want_gradients_leave_no_graph_behind():
    policy = ToyPolicy(vocabulary=6, seed=3)
    policy._norms = {name: replace(n, weight=n.weight.requires_grad_()) for name, n in policy._norms.items()}
    assert not run(policy, "em-tok", 2).theta.requires_grad


ADAPTING = [name for name, row in METHODS.items() if row.search]


def drawn_options(draw, method=None):
    """Options as different as rows of one episode may have."""
    return Adaptation(
        method=method or draw.choice(ADAPTING),
        steps=draw.randint(3, 10),
        samples=draw.choice([2, 4]),
        lr=draw.choice([0.03, 0.3]),
        schedule=draw.choice(["constant", "linear"]),
        weight_decay=draw.choice([0.0, 0.1]),
        norms=draw.choice(["encoder+decoder", "encoder+decoder", "encoder", "decoder"]),
        normalise=draw.choice(["tokens", "group"]),
        stop=draw.choice([(), (), ("settled",)]),
        search_every=draw.choice([1, 1, 2, 3]),
        gate=draw.choice([0.0, 0.0, 0.9]),
        greedy_at=draw.choice([(), (2,)]),
        seed=draw.randint(0, 3),
    )


def alone(policy, b, name, limit, options):
    episode = Episode(policy)
    episode.join(policy.inputs.select([b]), [name], [limit], options)
    while episode.step():
        pass
    return episode


def assert_same(episode, name, other):
    assert (episode.theta([name])[0] - other.theta([name])[0]).abs().max() < 1e-8
    ours, theirs = episode.trace(name), other.trace(name)
    assert ours.stopped == theirs.stopped
    assert [s.greedy for s in ours.steps] == [s.greedy for s in theirs.steps]
    for field in ("loss", "H_tok", "H_seq", "gradient_norm"):
        assert [getattr(s, field) for s in ours.steps] == pytest.approx([getattr(s, field) for s in theirs.steps])


@pytest.mark.parametrize("method", ADAPTING)
def test_an_input_that_joins_late_gets_what_it_gets_alone(method):
    policy = ToyPolicy(vocabulary=6, seed=3)
    options = Adaptation(method=method, steps=10, samples=4, lr=0.1)
    episode = Episode(policy)
    episode.join(policy.inputs.select([0, 1]), ["a", "b"], [LIMIT, LIMIT], options)
    for _ in range(7):
        episode.step()
    episode.join(policy.inputs.select([2]), ["c"], [LIMIT], options)
    while episode.step():
        pass
    for b, name in enumerate("abc"):
        assert len(episode.trace(name).steps) == 10
        assert_same(episode, name, alone(policy, b, name, LIMIT, options))


@pytest.mark.parametrize("seed", range(8))
def test_a_random_schedule_of_joins_and_leaves_changes_no_result(seed):
    """Inputs with different options join at random, one or several at a time; some leave before they are done."""
    draw = random.Random(seed)
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode, joined, left = Episode(policy), {}, set()
    for _ in range(25):
        if len(joined) < 12 and draw.random() < 0.6:
            new = [f"u{len(joined) + n}" for n in range(draw.randint(1, 3))]
            inputs, limits = [draw.randrange(3) for _ in new], [draw.randint(2, LIMIT) for _ in new]
            options = [drawn_options(draw) for _ in new]
            episode.join(policy.inputs.select(inputs), new, limits, options)
            joined |= dict(zip(new, zip(inputs, limits, options, strict=True), strict=True))
        episode.step()
        if draw.random() < 0.3 and len(episode.ids) > 1:
            gone = draw.sample(episode.ids, 1)
            episode.leave(gone)
            left.update(gone)
    while episode.step():
        pass
    stayed = [name for name in joined if name not in left]
    assert episode.ids == stayed
    assert left
    for name in stayed:
        b, limit, options = joined[name]
        assert_same(episode, name, alone(policy, b, name, limit, options))


@pytest.mark.parametrize("method", ["em-tok-b", "em-tok", "greedy-em"])
def test_confident_inputs_are_left_alone(method):
    policy = ToyPolicy(vocabulary=6, seed=3)
    free = run(policy, method, 3)
    doubts = [trace.steps[0].H_tok * trace.steps[0].hypotheses / trace.steps[0].tokens for trace in free.traces]
    gate = sum(sorted(doubts)[:2]) / 2  # one input is below it
    gated = run(policy, method, 3, gate=gate)
    for b, doubt in enumerate(doubts):
        trace = gated.traces[b]
        if doubt < gate:
            assert (trace.steps, trace.stopped) == ([], f"confident: {doubt:.2f} nats a token")
            assert all(torch.equal(gated.norms[n.name].weight[b], n.weight) for n in policy.norms())
        else:
            assert len(trace.steps) == 3
            assert torch.allclose(gated.theta[b], free.theta[b], rtol=1e-9)
    assert {len(trace.steps) for trace in gated.traces} == {0, 3}


def test_an_answer_can_be_had_after_any_step():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode, before = Episode(policy), []
    episode.join(policy.inputs, ["a", "b", "c"], [LIMIT] * 3, Adaptation("em-tok-b", steps=4, samples=4, lr=0.3))
    while True:
        view = policy.adapted(episode.norms(["c", "a"]))
        encoded = view.encode(policy.inputs.select([2, 0]))
        before.append([tree.hypotheses[0].tokens for tree in greedy(view, encoded, [LIMIT] * 2)])
        if not episode.step():
            break
    short = [run(policy, "em-tok-b", k) for k in range(5)]
    assert before == [[answers(policy, one)[2], answers(policy, one)[0]] for one in short]


def test_norms_of_different_sides_have_the_models_own_for_the_rest():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode = Episode(policy)
    sides = ["encoder", "decoder", "encoder+decoder"]
    options = [Adaptation("em-tok", steps=2, samples=4, lr=0.3, norms=side) for side in sides]
    episode.join(policy.inputs, sides, [LIMIT] * 3, options)
    episode.join(policy.inputs.select([0]), ["source"], [LIMIT], Adaptation("source"))
    while episode.step():
        pass
    norms = episode.norms([*sides, "source"])
    for norm in policy.norms():
        moved = [not torch.equal(norm.weight, row) for row in norms[norm.name].weight]
        assert moved == [norm.name in side for side in sides] + [False]
    assert episode.norms(["source"]) == {}


def test_methods_share_a_search_where_search_and_size_are_the_same(monkeypatch):
    policy = ToyPolicy(vocabulary=6, seed=3)
    batches = []
    score = ToyPolicy.score
    monkeypatch.setattr(ToyPolicy, "score", lambda self, e, trees: batches.append(len(e.h)) or score(self, e, trees))
    episode = Episode(policy)
    rows = [("em-tok-b", 4), ("ent-tok-b", 4), ("em-tok-b", 2), ("em-tok", 4), ("greedy-em", 4), ("greedy-em", 2)]
    options = [Adaptation(method, steps=1, samples=G) for method, G in rows]
    episode.join(policy.inputs.select([0, 1, 2, 0, 1, 2]), list("abcdef"), [LIMIT] * 6, options)
    assert set(episode.step()) == set("abcdef")
    assert batches == [2, 1, 1, 2]


def test_seconds_are_an_inputs_share_and_the_batchs_are_beside_them():
    policy = ToyPolicy(vocabulary=6, seed=3)
    steps = [trace.steps[0] for trace in run(policy, "em-tok", 1).traces]
    for step in steps:
        assert set(step.seconds) == set(step.batch_seconds) == {"encode", "search", "score", "backward", "optimiser"}
        assert step.seconds == {stage: pytest.approx(t / 3) for stage, t in step.batch_seconds.items()}
        assert min(step.seconds.values()) > 0


def test_ids_of_an_episode_are_unique_and_known():
    policy = ToyPolicy()
    episode = Episode(policy)
    episode.join(policy.inputs.select([0]), ["a"])
    for ids in (["a"], ["b", "b"]):
        with pytest.raises(SharpenError, match=f"input '{ids[-1]}' is in this episode already"):
            episode.join(policy.inputs.select([0] * len(ids)), ids)
    with pytest.raises(SharpenError, match="no input 'x' in this episode; it has a"):
        episode.leave(["x"])
    with pytest.raises(
        SharpenError, match="2 inputs, 1 ids, 2 limits, 2 options, 1 names of draws and 2 trees: give one per input"
    ):
        episode.join(policy.inputs.select([0, 1]), ["c"])
    episode.step()
    episode.leave(["a"])
    episode.join(policy.inputs.select([1]), ["a"], [LIMIT])  # another input under the same id
    episode.step()
    assert_same(episode, "a", one_step(policy, 1))


def one_step(policy, b):
    episode = Episode(policy)
    episode.join(policy.inputs.select([b]), ["a"], [LIMIT])
    episode.step()
    return episode


def test_a_call_that_fails_changes_nothing():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode = Episode(policy)
    options = Adaptation("em-tok", steps=4, samples=4, lr=0.1)
    episode.join(policy.inputs, list("abc"), [LIMIT] * 3, options)
    episode.step()
    with pytest.raises(SharpenError, match="no input 'x'"):
        episode.leave(["a", "x"])
    episode.leave(["a", "a"])
    episode.join(policy.inputs.select([1]), ["a"], [LIMIT], options)
    with pytest.raises(ValueError, match="a length limit is a whole number"):  # here, not in a step that all share
        episode.join(policy.inputs.select([0, 1]), ["d", "e"], [4, 0], options)
    policy.norms = lambda: [norm for norm in ToyPolicy.norms(policy) if norm.side == "decoder"]
    sides = [replace(options, norms="decoder"), replace(options, norms="encoder")]
    with pytest.raises(SharpenError, match="no norms in its encoder"):
        episode.join(policy.inputs.select([0, 1]), ["d", "e"], [LIMIT] * 2, sides)
    del policy.norms
    assert episode.ids == ["b", "c", "a"]
    while episode.step():
        pass
    for b, name in ((1, "a"), (1, "b"), (2, "c")):
        assert_same(episode, name, alone(policy, b, name, LIMIT, options))


def test_leaving_inside_inference_mode_does_not_stop_the_others():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode = Episode(policy)
    episode.join(policy.inputs, list("abc"), [LIMIT] * 3, Adaptation("em-tok", steps=3, samples=4))
    episode.step()
    with torch.inference_mode():
        episode.leave(["b"])
    assert set(episode.step()) == {"a", "c"}


def test_a_row_keeps_no_other_row_alive():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode = Episode(policy)
    episode.join(policy.inputs, list("abc"), [LIMIT] * 3, Adaptation("em-tok", steps=2, samples=4))
    while episode.step():
        pass
    for tensor in (episode._row("a").theta, *episode._row("a").moments):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_only_who_asks_for_a_greedy_answer_is_charged_for_it():
    policy = ToyPolicy(vocabulary=6, seed=3)
    episode = Episode(policy)
    options = [Adaptation("em-tok", steps=1, samples=4, explain=name == "b") for name in "abc"]
    episode.join(policy.inputs, list("abc"), [LIMIT] * 3, options)
    steps = episode.step()
    assert ["greedy" in steps[name].seconds for name in "abc"] == [False, True, False]
    assert steps["b"].seconds["greedy"] == steps["b"].batch_seconds["greedy"]


class Clock:
    """Time that passes only while a policy encodes, one second each."""

    now = 0.0

    def monotonic(self):
        return self.now

    perf_counter = monotonic


def test_an_episode_ends_in_time_and_keeps_what_it_has(monkeypatch):
    clock, policy = Clock(), ToyPolicy(vocabulary=6, seed=3)
    encode = ToyPolicy.encode

    def slow(self, prepared):
        clock.now += 1.0
        return encode(self, prepared)

    monkeypatch.setattr(ToyPolicy, "encode", slow)
    monkeypatch.setattr(room, "time", clock)
    options = Adaptation("em-tok-b", steps=100, samples=4, lr=0.1)
    outcome = adapt(policy, policy.inputs, options, limits=[LIMIT] * 3, until=5.5)
    assert [len(trace.steps) for trace in outcome.traces] == [5, 5, 5]  # the sixth would end at 6
    assert {trace.stopped for trace in outcome.traces} == {"deadline: no time for another step"}
    same = adapt(policy, policy.inputs, replace(options, steps=5), limits=[LIMIT] * 3)
    assert torch.equal(outcome.theta, same.theta)
    late = adapt(policy, policy.inputs, options, limits=[LIMIT] * 3, until=clock.now - 1)
    assert [trace.steps for trace in late.traces] == [[], [], []]
