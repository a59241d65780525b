import math

import numpy as np
import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.report import statistics
from sharpen.evaluation.report.statistics import Item, compare, rate, spread


def items(errors, *, domain="d", words=10, speakers=None, prefix=""):
    return [Item(domain, f"{prefix}{i}", speakers[i] if speakers else "", e, words) for i, e in enumerate(errors)]


def test_rate_is_all_errors_over_all_words():
    found = rate([Item("d", "a", "", 1, 2), Item("d", "b", "", 1, 8)])
    assert found.value == pytest.approx(0.2)
    assert (found.unit, found.units) == ("utterances", 2)


def test_interval_of_equal_rates_has_no_width():
    found = rate(items([3] * 40))
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3))


def test_interval_by_enumeration():
    # Four utterances, one of them wrong: how often it is drawn is binomial, 4 draws with p = 1/4. It is never drawn
    # with probability 0.316 and drawn three times or more with 0.051, four times with 0.004.
    found = rate(items([1, 0, 0, 0], words=1))
    assert (found.low, found.high) == (0.0, 0.75)


def test_interval_agrees_with_the_normal_approximation():
    errors = np.random.default_rng(5).binomial(10, 0.2, size=400)
    found = rate(items(errors.tolist()))
    half = 1.96 * errors.std() / 10 / math.sqrt(400)
    assert found.low == pytest.approx(found.value - half, abs=0.1 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.1 * half)


def test_the_seed_decides_the_draws():
    errors = items(list(range(9)))
    assert rate(errors) == rate(errors)
    assert rate(errors, seed=1, resamples=50) != rate(errors, resamples=50)


def test_blocks_of_resamples_change_nothing(monkeypatch):
    errors = items(list(range(9)))
    whole = rate(errors)
    monkeypatch.setattr(statistics, "BLOCK", 9 * 700)
    assert rate(errors) == whole


def test_speakers_are_resampled_where_all_are_known():
    errors = [0] * 50 + [10] * 50
    speakers = ["p"] * 50 + ["q"] * 50
    apart, together = rate(items(errors)), rate(items(errors, speakers=speakers))
    assert (together.unit, together.units, together.low, together.high) == ("speakers", 2, 0.0, 1.0)
    assert apart.unit == "utterances"
    assert apart.low > 0.35
    assert rate(items(errors, speakers=["", *speakers[1:]])).unit == "utterances"
    assert rate(items(errors, speakers=["p"] * 100)).unit == "utterances"  # one speaker cannot be resampled


def test_several_domains_are_averaged_whatever_their_size():
    found = rate(items([10], domain="a") + items([0] * 9, domain="b"))
    assert found.value == pytest.approx(0.5)


def test_domains_that_share_utterances_are_resampled_together():
    errors = [0, 1, 2, 5, 9, 3, 4, 0]
    alone = rate(items(errors))
    same = rate(items(errors, domain="a") + items(errors, domain="b"))
    other = rate(items(errors, domain="a") + items(errors, domain="b", prefix="other"))
    assert (same.low, same.high) == pytest.approx((alone.low, alone.high))
    assert (other.high - other.low) / (alone.high - alone.low) == pytest.approx(1 / math.sqrt(2), abs=0.06)


def test_comparison_by_hand():
    first = items([1, 0, 5, 2])
    second = items([2, 0, 1, 4])
    found = compare(first, second)
    assert (found.helped, found.hurt, found.unchanged, found.utterances) == (2, 1, 1, 4)
    assert found.difference.value == pytest.approx(1 / 40)
    # By enumeration of all 4 ** 4 resamples of the changes -1, 0, 4, -2.
    changes = np.array([-1, 0, 4, -2])
    sums = changes[np.indices((4, 4, 4, 4)).reshape(4, -1)].sum(0)
    assert found.better == pytest.approx((sums < 0).mean() + (sums == 0).mean() / 2, abs=0.015)


def test_comparison_uses_what_both_have():
    found = compare(items([0, 0, 9]), items([1, 1]))
    assert found.utterances == 2
    assert (found.difference.value, found.difference.low, found.difference.high) == pytest.approx((-0.1, -0.1, -0.1))
    assert found.better == 1.0
    assert compare(items([1]), items([1], domain="other")) is None


def test_equal_methods_are_a_coin():
    assert compare(items([1, 2]), items([1, 2])).better == 0.5


def test_comparison_refuses_different_references():
    with pytest.raises(SharpenError, match="'0' has 10 reference words in one result and 9 in the other"):
        compare(items([1]), items([1], words=9))


def test_pairs_are_surer_than_two_intervals():
    generator = np.random.default_rng(1)
    hard = generator.binomial(10, generator.uniform(0, 1, 60))
    better = items((hard - (hard > 3)).tolist())
    pair, single = compare(better, items(hard.tolist())).difference, rate(better)
    assert pair.high < 0
    assert pair.high - pair.low < (single.high - single.low) / 3


def test_spread():
    found = spread([0.1, 0.2, 0.3])
    assert (found.mean, found.deviation, found.seeds) == pytest.approx((0.2, 0.1, 3))
    with pytest.raises(SharpenError, match="at least two seeds"):
        spread([0.1])


def test_a_single_unit_has_no_interval():
    alone = rate(items([3]))
    assert (alone.value, alone.units) == (0.3, 1)
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    assert math.isnan(rate(items([3, 4], domain="a") + items([3], domain="b", prefix="other")).low)
    assert math.isnan(compare(items([3]), items([2])).better)


def test_a_domain_with_one_speaker_is_resampled_by_utterances():
    found = rate(items([3, 4], domain="a", speakers="pp") + items([3, 5], domain="b", prefix="other", speakers="qq"))
    assert (found.unit, found.units) == ("utterances", 4)
    assert found.low < found.value < found.high


def test_a_domain_with_one_speaker_who_is_also_in_another_too():
    one = items([9, 1, 9, 1, 9, 1], domain="b", prefix="other", speakers="pppppp")
    both = rate(items([3, 4, 3, 4], domain="a", speakers="pqrs") + one)
    assert both.unit == "utterances"
    assert both.high - both.low > 0.4 * (rate(one).high - rate(one).low)  # half the mean is that domain


def test_nothing_has_no_rate():
    with pytest.raises(SharpenError, match="at least one utterance"):
        rate([])


def test_empty_references_count_their_insertions():
    assert rate([Item("d", "a", "", 3, 0)]).value == 3.0


def test_one_domain_with_one_speaker_does_not_take_the_speakers_from_another():
    by_speaker = items([9, 9, 1, 1, 5, 5], domain="b", prefix="other", speakers="pprrss")
    one = items([3, 4], domain="a", speakers="qq")
    both = rate(one + by_speaker)
    assert (both.unit, both.units) == ("speakers and utterances", 5)
    assert both.high - both.low > 0.45 * (rate(by_speaker).high - rate(by_speaker).low)  # half the mean is that domain


def test_a_speaker_that_one_side_names_is_known():
    named, silent = items([1, 2, 3, 4], speakers="ppqq"), items([2, 2, 2, 2])
    for one, other in ((named, silent), (silent, named)):
        found = compare(one, other).difference
        assert (found.unit, found.units) == ("speakers", 2)


def test_resamples_without_words_count_for_nothing():
    found = rate([Item("d", "a", "", 3, 0), Item("d", "b", "", 1, 4), Item("d", "c", "", 1, 4)])
    assert found.value == pytest.approx(5 / 8)
    assert found.high <= (3 * 2 + 1) / 4  # twice the empty one and once another


def test_hardly_any_resample_with_all_domains_gives_no_interval():
    chain = [Item(f"d{i:02}", f"{i}{s}", f"s{i + s:02}", 1 + s, 10) for i in range(30) for s in range(2)]
    found = rate(chain)
    assert math.isnan(found.low)
    assert found.value == pytest.approx(0.15)
