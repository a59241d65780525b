"""What an episode says on its way, on the model that can be enumerated."""

import pytest
import torch
from toy import ToyPolicy

from sharpen.errors import SharpenError
from sharpen.method.adapt import Adaptation, adapt
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
    with torch.inference_mode(), pytest.raises(SharpenError, match="call adapt outside of it"):
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
