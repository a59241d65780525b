import math

import pytest

from sharpen.method.consensus import least_risk, posterior


def test_the_posterior_is_softened_and_sums_to_one():
    assert posterior([-2.0, -2.0 - 2 * math.log(3)], soft=2.0) == pytest.approx([0.75, 0.25])
    assert posterior([-1000.0, -1002.0], soft=1.0) == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))])


def test_words_that_many_hypotheses_agree_on_beat_the_most_probable_text():
    texts = ["the mat sad", "a cat sat", "the cat sits", "the cat sat down"]
    weights = [0.4, 0.2, 0.2, 0.2]
    # Expected errors by hand: 0.2 * (3 + 2 + 3), 0.4 * 3 + 0.2 * (2 + 2), 0.4 * 2 + 0.2 * (2 + 2), 0.4 * 3 + 0.2 * 4
    assert least_risk(texts, weights) == 0
    assert least_risk(texts, [0.25, 0.25, 0.25, 0.25]) == 2
    assert least_risk([*texts, "the cat sat"], [0.35, 0.2, 0.2, 0.2, 0.05]) == 4


def test_texts_that_differ_in_case_and_punctuation_are_one():
    texts = ["Yes, it is.", "no it is", "yes it is"]
    assert least_risk(texts, [0.3, 0.4, 0.3]) == 0  # together they outweigh the other; the first of equals stands
    assert least_risk(texts, [0.2, 0.4, 0.4]) == 2
    assert least_risk(texts, [0.2, 0.6, 0.2]) == 1


def test_one_hypothesis_is_the_answer():
    assert least_risk(["alone"], [1.0]) == 0
    assert least_risk(["", ""], [0.5, 0.5]) == 0


def test_texts_that_only_weigh():
    texts, weights = ["a b c d", "a x y d", "a x c d"], [0.3, 0.3, 0.4]
    assert least_risk(texts, weights) == 2
    assert least_risk(texts, weights, candidates=2) == 0  # one word from the third text, as the second is
    assert least_risk([*texts, "a x y z"], [*weights, 0.4], candidates=2) == 1
