import math
from collections import Counter

import pytest
import torch
from toy import ToyPolicy

from sharpen.method.entropy import entropy
from sharpen.method.enumerable import EOS
from sharpen.method.policy import generator
from sharpen.method.search import beam, greedy, sample


def generators(count, seed=0):
    return [generator(seed, f"u{b}") for b in range(count)]


def outputs(tree):
    return [y.tokens for y in tree.hypotheses]


def test_greedy_takes_the_best_token_at_each_step():
    policy = ToyPolicy(seed=3)
    for b, tree in enumerate(greedy(policy, policy.encoded(), [6, 6, 6], entropies=True)):
        (y,) = tree.hypotheses
        h, expected = policy.start(b), []
        while len(expected) < 6 and (not expected or expected[-1] != EOS):
            log_pi = policy.distribution(h, len(expected))
            assert tree.entropies[y.nodes[len(expected)]] == pytest.approx(float(entropy(log_pi)))
            expected.append(int(log_pi.argmax()))
            h = policy.next(h, expected[-1])
        assert list(y.tokens) == expected
        assert y.finished == (expected[-1] == EOS)


@pytest.mark.parametrize("forbidden", [(), (2,)])
def test_samples_follow_pi(forbidden):
    """Chi-square of 20,000 draws against the enumerated distribution, the capped length being part of it."""
    policy = ToyPolicy(vocabulary=3, seed=1, forbidden=forbidden)
    (tree,) = sample(policy, policy.encoded(0), [4], 20_000, generators(1, seed=7))
    exact = {y: math.exp(lp) for y, lp in policy.enumerate(0, 4).items()}
    assert sum(exact.values()) == pytest.approx(1.0)
    counts = Counter(outputs(tree))
    assert set(counts) <= set(exact)
    common = {y: p for y, p in exact.items() if 20_000 * p >= 5}
    pooled = 1.0 - sum(common.values())
    chi2 = sum((counts[y] - 20_000 * p) ** 2 / (20_000 * p) for y, p in common.items())
    if pooled * 20_000 >= 5:
        rest = 20_000 - sum(counts[y] for y in common)
        chi2 += (rest - 20_000 * pooled) ** 2 / (20_000 * pooled)
    degrees = len(common) - (pooled * 20_000 < 5)
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees), f"chi-square {chi2:.1f} at {degrees} degrees of freedom"
    assert len(tree) <= len({y[:t] for y in exact for t in range(len(y))})  # 20,000 hypotheses, a few dozen nodes


def test_every_sampled_logprob_is_the_enumerated_one():
    policy = ToyPolicy(seed=2)
    trees = sample(policy, policy.encoded(), [5, 3, 1], 16, generators(3))
    for b, tree in enumerate(trees):
        exact = policy.enumerate(b, [5, 3, 1][b])
        for y in tree.hypotheses:
            assert y.logprob == pytest.approx(exact[y.tokens], abs=1e-9)
            assert y.finished == (y.tokens[-1] == EOS)
            assert len(y) <= [5, 3, 1][b]


def test_draws_do_not_depend_on_the_batch_or_its_order():
    policy = ToyPolicy(seed=4)
    together = sample(policy, policy.encoded(), [8, 8, 8], 6, generators(3))
    for b in (2, 0, 1):
        (alone,) = sample(policy, policy.encoded(b), [8], 6, [generator(0, f"u{b}")])
        assert outputs(alone) == outputs(together[b])
    assert outputs(together[0]) != outputs(sample(policy, policy.encoded(), [8, 8, 8], 6, generators(3, seed=1))[0])


def test_beam_that_covers_everything_is_exhaustive_search():
    policy = ToyPolicy(vocabulary=3, seed=5)
    trees = beam(policy, policy.encoded(), [4, 4, 2], 64)
    for b, tree in enumerate(trees):
        exact = policy.enumerate(b, [4, 4, 2][b])
        ranked = sorted(exact, key=lambda y: -exact[y] / len(y))
        assert outputs(tree) == ranked  # fewer outputs exist than beams: all of them come back, once, best first
        for y in tree.hypotheses:
            assert y.score == pytest.approx(exact[y.tokens] / len(y.tokens))


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_the_length_penalty_ranks_what_a_beam_finds(power):
    policy = ToyPolicy(vocabulary=3, seed=5)
    exact = policy.enumerate(0, 4)
    (tree,) = beam(policy, policy.encoded(0), [4], 64, length_penalty=power)
    assert outputs(tree) == sorted(exact, key=lambda y: -exact[y] / len(y) ** power)
    assert outputs(tree) != outputs(beam(policy, policy.encoded(0), [4], 64)[0])
    (narrow,) = beam(policy, policy.encoded(0), [4], 6, length_penalty=power)
    assert outputs(narrow)[0] == outputs(tree)[0]  # it has not ended before it found the best


def test_a_narrow_beam_is_sorted_distinct_and_no_better_than_the_best():
    policy = ToyPolicy(vocabulary=6, seed=6)
    exact = policy.enumerate(0, 6)
    (tree,) = beam(policy, policy.encoded(0), [6], 4)
    scores = [y.score for y in tree.hypotheses]
    assert len(set(outputs(tree))) == 4
    assert scores == sorted(scores, reverse=True)
    assert scores[0] <= max(lp / len(y) for y, lp in exact.items()) + 1e-12
    assert len(tree) == len({y.tokens[:t] for y in tree.hypotheses for t in range(len(y))})


def test_length_limit_of_one_and_eos_at_the_first_step():
    policy = ToyPolicy(vocabulary=3, seed=5)
    (tree,) = beam(policy, policy.encoded(0), [1], 8)
    assert sorted(outputs(tree)) == [(0,), (1,), (2,)]
    assert [y.finished for y in tree.hypotheses] == [y.tokens == (EOS,) for y in tree.hypotheses]
    assert len(tree) == 1
    only_eos = ToyPolicy(vocabulary=3, seed=5, forbidden=(1, 2))
    for tree in (*greedy(only_eos, only_eos.encoded(0), [5]), *beam(only_eos, only_eos.encoded(0), [5], 4)):
        (y,) = tree.hypotheses
        assert (y.tokens, y.finished, y.logprob) == ((EOS,), True, 0.0)


def test_rules_narrow_every_search():
    policy = ToyPolicy(vocabulary=4, seed=8)

    def never_repeat(log_pi, prefixes):
        log_pi = log_pi.clone()
        for row, prefix in enumerate(prefixes):
            log_pi[row, prefix[-1:]] = -torch.inf
        return log_pi.log_softmax(-1)

    searches = (
        greedy(policy, policy.encoded(), [6] * 3, rules=never_repeat),
        sample(policy, policy.encoded(), [6] * 3, 32, generators(3), rules=never_repeat),
        beam(policy, policy.encoded(), [6] * 3, 8, rules=never_repeat),
    )
    for y in (y for trees in searches for tree in trees for y in tree.hypotheses):
        assert all(a != b for a, b in zip(y.tokens, y.tokens[1:], strict=False))


def test_a_search_continues_a_state_that_was_begun():
    policy = ToyPolicy(vocabulary=6, seed=3)
    encoded = policy.encoded()
    for find, more in ((greedy, ()), (beam, (4,)), (sample, (4, generators(3)))):
        begun = find(policy, encoded, [6] * 3, *more, state=policy.begin(encoded))
        more = (4, generators(3)) if find is sample else more
        assert [outputs(tree) for tree in begun] == [outputs(t) for t in find(policy, encoded, [6] * 3, *more)]


def test_bad_settings_are_refused():
    policy = ToyPolicy()
    for odd in (0, 3.5):  # a limit that is no whole number would never be met
        with pytest.raises(ValueError, match=f"a whole number of tokens, at least 1, not {odd}"):
            greedy(policy, policy.encoded(), [5, odd, 5])
    with pytest.raises(ValueError, match="2 length limits for 3 inputs"):
        greedy(policy, policy.encoded(), [5, 5])
    with pytest.raises(ValueError, match="at least 1"):
        sample(policy, policy.encoded(), [5, 5, 5], 0, generators(3))
    for temperature in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive and finite"):
            sample(policy, policy.encoded(), [5, 5, 5], 1, generators(3), temperature=temperature)
    with pytest.raises(ValueError, match="at least 1 wide"):
        beam(policy, policy.encoded(), [5, 5, 5], 0)


def plain_beam(policy, b, limit, beams):
    """The finishing rule in its own words, over whole outputs and their probabilities, with no tree and no cache."""
    everything = {y: float(lp) for y, lp in policy.log_probabilities(b, limit).items()}
    ends = {y for y in everything if y[-1] == EOS or len(y) == limit}

    def total(prefix):
        """log pi of a prefix: the sum over all outputs that begin with it."""
        return math.log(sum(math.exp(lp) for y, lp in everything.items() if y[: len(prefix)] == prefix))

    tokens = sorted({token for y in everything for token in y})
    open_beams, results = [()], []
    while open_beams:
        candidates = [(*prefix, token) for prefix in open_beams for token in tokens]
        candidates = [c for c in candidates if any(y[: len(c)] == c for y in everything)]
        candidates = sorted(candidates, key=total, reverse=True)[: 2 * beams]
        results += [(total(c) / len(c), c) for c in candidates[:beams] if c in ends]
        results = sorted(results, reverse=True)[:beams]
        open_beams = [c for c in candidates if c not in ends][:beams]
        if open_beams and len(results) == beams and total(open_beams[0]) / len(open_beams[0]) <= results[-1][0]:
            break
    return [y for _, y in results]


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 13, 33, 34, 35])  # from 13 on, an end among the second G is in the way
@pytest.mark.parametrize("beams", [1, 2, 3])
def test_beam_follows_its_finishing_rule(seed, beams):
    policy = ToyPolicy(vocabulary=6, seed=seed)
    for b, tree in enumerate(beam(policy, policy.encoded(), [4, 4, 4], beams)):
        assert outputs(tree) == plain_beam(policy, b, 4, beams)


@pytest.mark.parametrize(("u", "forbidden", "token"), [(0.0, (0, 1), 2), (1 - 2**-53, (0, 3), 2), (1.0, (0, 3), 2)])
def test_a_forbidden_token_is_not_drawn_even_at_the_edge(monkeypatch, u, forbidden, token):
    policy = ToyPolicy(vocabulary=4, seed=1, forbidden=forbidden)
    monkeypatch.setattr(torch, "rand", lambda *size, **settings: torch.full(size, u, dtype=torch.float64))
    (tree,) = sample(policy, policy.encoded(0), [3], 2, generators(1))
    assert outputs(tree) == [(token,) * 3] * 2


@pytest.mark.parametrize("vocabulary", [255, 256, 257, 700])
def test_draws_invert_the_cumulative_distribution_of_a_large_vocabulary(vocabulary):
    """Whatever they pass over at once: the numbers that the generator gives, looked up in the plain sum."""
    forbidden = [*range(2, 100), *range(vocabulary - 90, vocabulary)]
    policy = ToyPolicy(vocabulary=vocabulary, seed=5, forbidden=forbidden)
    (tree,) = sample(policy, policy.encoded(0), [1], 4000, generators(1))
    cdf = policy.distribution(policy.start(0), 0).exp().cumsum(-1, dtype=torch.float64)
    u = torch.rand(4000, generator=generators(1)[0], dtype=torch.float64)
    expected = torch.searchsorted(cdf, u * cdf[-1], right=True).tolist()
    assert [tokens[0] for tokens in outputs(tree)] == expected
    assert len(set(expected)) > 30


@pytest.mark.parametrize("temperature", [0.5, 0.001])
def test_low_temperatures_underflow_to_the_best_token(temperature):
    policy = ToyPolicy(vocabulary=300, seed=5)
    (tree,) = sample(policy, policy.encoded(0), [1], 500, generators(1), temperature=temperature)
    log_pi = policy.distribution(policy.start(0), 0)
    assert float(log_pi.max()) < -1.1  # exp(-1.1 / 0.001) is 0
    counts = Counter(tokens[0] for tokens in outputs(tree))
    assert counts.most_common(1)[0][0] == int(log_pi.argmax())
    assert (len(counts) == 1) == (temperature < 0.01)


def test_an_input_without_numbers_ends_and_the_others_do_not_notice():
    policy = ToyPolicy(vocabulary=6, seed=3, forbidden_first=(EOS,))
    whole = policy.encoded()
    broken = policy.encoded()
    broken.h[1] = math.nan
    searches = (
        lambda encoded: greedy(policy, encoded, [6] * 3, entropies=True),
        lambda encoded: sample(policy, encoded, [6] * 3, 4, generators(3), entropies=True),
        lambda encoded: beam(policy, encoded, [6] * 3, 4, entropies=True),
    )
    for search in searches:
        good, bad = search(whole), search(broken)
        assert [outputs(good[b]) for b in (0, 2)] == [outputs(bad[b]) for b in (0, 2)]
        assert all(math.isnan(y.logprob) and len(y) == 1 for y in bad[1].hypotheses)
        assert bad[1].hypotheses


@pytest.mark.parametrize("seed", range(4))
def test_one_beam_without_numbers_ends_its_input(seed):
    """It would rank before all others and hide them: better no answer than one from what was left."""
    policy = ToyPolicy(vocabulary=6, seed=seed, forbidden_first=(EOS,))
    policy.E[1] = math.nan  # whatever follows token 1
    trees = beam(policy, policy.encoded(), [6] * 3, 4, entropies=True)
    healthy = ToyPolicy(vocabulary=6, seed=seed, forbidden_first=(EOS,))
    for tree, good in zip(trees, beam(healthy, healthy.encoded(), [6] * 3, 4), strict=True):
        if any(math.isnan(y.logprob) for y in tree.hypotheses):
            assert len(tree.hypotheses) == 1
        else:
            assert outputs(tree) == outputs(good)
            assert not any(1 in y for y in outputs(tree))


def test_every_utterance_has_its_own_draws():
    a, b = (torch.rand(8, generator=generator(0, name)) for name in ("first", "second"))
    assert not torch.equal(a, b)
    assert torch.equal(a, torch.rand(8, generator=generator(0, "first")))
    assert not torch.equal(a, torch.rand(8, generator=generator(1, "first")))
