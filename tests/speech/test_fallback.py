"""A batch that falls back to one by one."""

import pytest

from sharpen.speech.fallback import Attempt, attempts


def squares(calls, bad=()):
    def call(items):
        calls.append(list(items))
        if set(items) & set(bad):
            raise RuntimeError(f"cannot do {[x for x in items if x in bad]}")
        return [x * x for x in items]

    return call


def test_a_batch_that_works_is_one_call():
    calls = []
    assert attempts([1, 2, 3], squares(calls)) == [Attempt(1, 1), Attempt(2, 4), Attempt(3, 9)]
    assert calls == [[1, 2, 3]]


def test_one_bad_item_costs_no_other_its_result():
    calls = []
    one, two, three = attempts([1, 2, 3], squares(calls, bad=[2]))
    assert calls == [[1, 2, 3], [1], [2], [3]]
    assert (one.result, three.result) == (1, 9)
    assert (two.result, str(two.error)) == (None, "cannot do [2]")
    assert str(one.batch_error) == str(three.batch_error) == "cannot do [2]"


def test_only_what_is_worth_it_is_tried_alone():
    calls = []
    assert [a.item for a in attempts([1, 2, 3], squares(calls, bad=[2]), retried=[2, 3])] == [2, 3]
    assert calls == [[1, 2, 3], [2], [3]]


def test_a_single_item_is_tried_once():
    calls = []
    (only,) = attempts([2], squares(calls, bad=[2]))
    assert str(only.error) == "cannot do [2]"
    assert (only.batch_error, calls) == (None, [[2]])


def test_a_call_that_loses_an_item_is_a_failure():
    first, second = attempts([1, 2], lambda items: [x for x in items if x != 2])
    assert (first.result, second.result) == (1, None)
    assert isinstance(second.error, ValueError)


def test_an_interrupt_is_not_a_failure():
    def interrupted(items):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempts([1, 2], interrupted)
