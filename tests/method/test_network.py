import pytest

from sharpen.method.network import Alternative, aligned, folded, network


def shown(some):
    return [(a.word, pytest.approx(a.probability)) for a in some]


def test_a_network_known_by_hand():
    pivot = ["the", "night", "ferry", "leaves"]
    texts = ["the night ferry leaves", "the knight ferry leaves", "the knight ferry has leaves", "the ferry leaves"]
    found = network(pivot, [text.split() for text in texts], [0.4, 0.3, 0.2, 0.1])
    assert found.support == pytest.approx((1.0, 0.4, 1.0, 1.0))
    assert shown(found.slots[1]) == [("knight", 0.5), ("", 0.1)]
    assert [len(slot) for slot in found.slots] == [0, 2, 0, 0]
    assert shown(found.gaps[3]) == [("has", 0.2)]
    assert [len(gap) for gap in found.gaps] == [0, 0, 0, 1, 0]


def test_several_words_may_stand_before_the_first_and_after_the_last():
    found = network(["sea"], [["by", "the", "sea"], ["sea", "shore"]], [0.6, 0.4])
    assert shown(found.gaps[0]) == [("by the", 0.6)]
    assert shown(found.gaps[1]) == [("shore", 0.4)]
    assert found.support == pytest.approx((1.0,))


def test_case_and_punctuation_make_no_other_word_and_the_weightiest_is_shown():
    found = network([" The", " sea."], [["the", "Sea!"], ["the", "“see”"], ["The", "See,"]], [0.2, 0.3, 0.5])
    assert found.support == pytest.approx((1.0, 0.2))
    assert shown(found.slots[1]) == [("See,", 0.8)]


def test_the_pivot_need_not_be_among_the_hypotheses():
    found = network(["a", "b"], [["a"], ["c"]], [0.5, 0.5])
    assert found.support == pytest.approx((0.5, 0.0))
    mass = [found.support[i] + sum(a.probability for a in found.slots[i]) for i in range(2)]
    assert mass == pytest.approx([1.0, 1.0])


def test_a_network_of_nothing():
    assert network([], [["a"]], [1.0]).gaps == ((Alternative("a", 1.0),),)
    empty = network(["a"], [], [])
    assert (empty.support, empty.slots, empty.gaps) == ((0.0,), ((),), ((), ()))


def test_words_are_compared_folded():
    assert folded(" “Don't!”") == "don't"
    assert folded(" -") == "-"
    assert list(aligned(["The", "sea"], ["the", "old", "sea."])) == [("The", "the"), (None, "old"), ("sea", "sea.")]
