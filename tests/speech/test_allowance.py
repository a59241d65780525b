import pytest

from sharpen.speech.allowance import Allowance, Pool
from sharpen.speech.options import Options


def test_what_options_allow():
    assert Allowance.of(Options(), 60.0) is None
    by_audio = Allowance.of(Options(budget="0.5"), 60.0)
    by_audio.earn(30.0, 2.0)
    assert by_audio.left == 15.0
    by_plain = Allowance.of(Options(budget="4x"), 60.0)
    by_plain.earn(30.0, 2.0)
    assert by_plain.left == 8.0
    by_deadline = Allowance.of(Options(deadline=120.0), 60.0)
    by_deadline.earn(30.0, 2.0)
    assert by_deadline.left == 60.0


def test_the_smaller_of_budget_and_deadline_holds():
    for budget in ("0.5", "4x"):
        both = Allowance.of(Options(budget=budget, deadline=6.0), 60.0)
        both.earn(30.0, 2.0)
        assert both.left == 3.0


def test_what_one_window_saves_another_spends():
    confident, doubtful = Allowance(per_plain=4.0), Allowance(per_plain=4.0)
    pool = Pool([confident, doubtful])
    pool.earn([10.0, 10.0], plain=2.0)
    assert pool.left == 8.0
    pool.spend(2.0)
    assert pool.left == pytest.approx(6.0)
    pool.earn([10.0, 10.0], plain=2.0)  # the next windows of both
    assert pool.left == pytest.approx(14.0)


def test_without_a_limit_nothing_is_counted():
    assert Pool([None, Allowance(per_audio=1.0)]).left is None
    pool = Pool([None])
    pool.earn([10.0], 1.0)
    pool.spend(100.0)
    assert pool.left is None


def test_windows_of_one_recording_share_what_it_has():
    one = Allowance(per_audio=1.0)
    pool = Pool([one, one])
    pool.earn([10.0, 5.0], plain=1.0)
    assert pool.left == 15.0
    pool.spend(4.0)
    assert pool.left == pytest.approx(11.0)
