import numpy as np
import pytest

from sharpen.errors import SharpenError
from sharpen.method.objectives import (
    METHODS,
    Group,
    Method,
    em_seq,
    em_tok,
    em_tok_togo,
    ent_tok,
    leave_one_out,
    normaliser,
    pg_tok,
)

ENT = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0], [6.0, 0.0, 0.0]])
LOGP = -np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.0], [0.6, 0.0, 0.0]])
INSIDE = np.array([[1.0, 1, 1], [1, 1, 0], [1, 0, 0]])
GROUP = Group(ENT, LOGP, INSIDE)


def test_estimators_sum_over_positions():
    assert GROUP.H_tok.tolist() == [6.0, 9.0, 6.0]
    assert GROUP.H_seq == pytest.approx([0.6, 0.9, 0.6])


def test_leave_one_out_never_includes_oneself():
    assert leave_one_out(np.array([1.0, 2.0, 6.0])).tolist() == [1 - 4, 2 - 3.5, 6 - 1.5]
    assert leave_one_out(np.array([5.0])).tolist() == [5.0]  # one hypothesis: no baseline
    assert leave_one_out(np.array([1.0, 2.0, 6.0]), baseline=False).tolist() == [1.0, 2.0, 6.0]


def test_the_parts_add_up():
    A = np.array([6 - 7.5, 9 - 6, 6 - 7.5])[:, None] * INSIDE
    assert np.array_equal(pg_tok(GROUP).edges, A)
    assert not pg_tok(GROUP).nodes.any()
    assert not ent_tok(GROUP).edges.any()
    assert np.array_equal(ent_tok(GROUP).nodes, INSIDE)
    assert np.array_equal(em_tok(GROUP).edges, A)
    assert np.array_equal(em_tok(GROUP).nodes, INSIDE)
    assert em_seq(GROUP).edges[:, 0] == pytest.approx([0.6 - 0.75, 0.9 - 0.6, 0.6 - 0.75])
    assert not em_seq(GROUP).nodes.any()


def test_entropy_to_go_charges_later_steps_only():
    to_go = np.array([[5.0, 3.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])  # a hypothesis that has ended has none left
    others = np.array([[2.5, 0.0, 0.0], [2.5, 1.5, 0.0], [5.0, 1.5, 0.0]])
    assert np.array_equal(em_tok_togo(GROUP).edges, (to_go - others) * INSIDE)
    assert np.array_equal(em_tok_togo(GROUP).nodes, INSIDE)


def test_normalisers():
    assert normaliser(GROUP, "tokens") == 6.0
    assert normaliser(GROUP, "group") == 3.0


def test_the_table_has_every_method_of_the_paper():
    assert list(METHODS) == [
        *("source", "beam", "greedy-em", "em-seq", "em-tok", "em-tok-b", "pg-tok", "ent-tok", "pg-tok-b", "ent-tok-b"),
        *("em-tok-togo", "em-tok-togo-b"),
    ]
    assert (METHODS["greedy-em"].search, METHODS["greedy-em"].objective) == ("greedy", ent_tok)
    assert (METHODS["em-tok-b"].search, METHODS["em-tok-b"].objective) == ("beam", em_tok)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("sampel", em_tok), "search is 'sampel'"),
        (("sample", None), "both a search and an objective, or neither"),
        ((None, em_tok), "both a search and an objective, or neither"),
        (("sample", em_tok, "bem"), "decode is 'bem'"),
    ],
)
def test_a_row_that_means_nothing_is_refused(row, message):
    with pytest.raises(SharpenError, match=message):
        Method(*row)
