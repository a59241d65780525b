"""What an episode says on its way, on the model that can be enumerated."""

from dataclasses import replace

import pytest
import torch
from toy import ToyPolicy

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.episode import adapt
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
    assert [len(trace.steps) for trace in episode.traces] == [2, 1, 2]
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
