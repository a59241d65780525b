import argparse
from dataclasses import replace

import pytest
from evaluation import tiny
from evaluation.tiny import ROW

from sharpen.cli import tune as command
from sharpen.errors import SharpenError
from sharpen.evaluation.report import paper, tuning
from sharpen.evaluation.report.tuning import PAPER, best, grid, plot, table
from sharpen.evaluation.runs.score import ErrorCounts


def row(lr, steps, samples, name, errors, **changes):
    options = {"lr": lr, "snr": 10.0}
    counts = ErrorCounts(substitutions=errors, reference=10)
    changes = {"method": "em-tok-b", "options": options, "errors": counts, "speaker": f"speaker of {name}", **changes}
    return replace(ROW, id=name, steps=steps, samples=samples, **changes)


def rows_at(errors):
    """Rows of two utterances for each (lr, steps, samples)."""
    return [row(*choice, name, n) for choice, pair in errors.items() for name, n in zip("ab", pair, strict=True)]


def test_the_papers_choice_is_the_papers():
    fixed = paper.data()["settings"]
    assert (fixed["lr"], fixed["steps"], fixed["samples"]) == PAPER


def test_the_grid_is_one_episode_for_each_rate_and_size():
    chosen = grid("em-tok-b", lr=(3e-4, 1e-3), steps=(10, 3), samples=(4, 16))
    assert [(s.method, s.adapt.lr, s.samples, s.at) for s in chosen] == [
        ("source", 1e-3, 0, (0,)),
        ("em-tok-b", 3e-4, 4, (3, 10)),
        ("em-tok-b", 1e-3, 4, (3, 10)),
        ("em-tok-b", 3e-4, 16, (3, 10)),
        ("em-tok-b", 1e-3, 16, (3, 10)),
    ]
    assert len(grid("greedy-em", lr=(1e-3,), steps=(3,), samples=(4, 16))) == 2  # G makes no difference to it
    with pytest.raises(SharpenError, match="'beam' has nothing to tune"):
        grid("beam", lr=(1e-3,))


def test_the_table_marks_the_lowest_and_the_papers():
    rows = rows_at({PAPER: (3, 3), (1e-3, 3, 16): (4, 4), (3e-3, 10, 16): (1, 2), (3e-3, 3, 16): (5, 5)})
    found = tuning.points(rows)
    assert best(found).choice == (3e-3, 10, 16)
    source = [row(0, 0, 0, name, 6, method="source", options={"snr": 10.0}) for name in "abc"]
    assert table(found, source).splitlines() == [
        "   lr   G  3 steps  10 steps",
        "0.001  16  40.00     30.00*",
        "0.003  16  50.00     15.00<",
        "WER % on 2 utterances. < the lowest; * the paper's choice",
        "source: 60.00",
        "lowest: lr 0.003, 10 steps, G 16, 15.00 [10.00, 20.00]",
        "the paper's choice: lr 0.001, 10 steps, G 16, 30.00 [30.00, 30.00]",
        "difference -15.00 [-20.00, -10.00], to be confirmed on other speech: the interval ignores that it was picked "
        "as the lowest of 4",
    ]


def test_whatever_is_varied_has_its_place_in_the_table():
    plain = rows_at({PAPER: (3, 3), (1e-3, 3, 16): (4, 4)})
    stopped = [
        replace(r, options={**r.options, "stop": "certain+agreed"}, errors=ErrorCounts(2, reference=10)) for r in plain
    ]
    found = tuning.points([*plain, *stopped])
    assert table(found).splitlines()[:4] == [
        "   lr   G            stop  3 steps  10 steps",
        "0.001  16  certain+agreed  20.00<    20.00",
        "0.001  16            none  40.00     30.00*",
        "WER % on 2 utterances. < the lowest; * the paper's choice",
    ]
    assert "lowest: lr 0.001, 3 steps, G 16, stop certain+agreed, 20.00" in table(found)


def test_greedy_search_has_no_size_to_choose():
    rows = [row(1e-3, 10, 1, name, 1, method="greedy-em") for name in "ab"]
    assert "the paper's choice is the lowest of this grid" in table(tuning.points(rows))
    assert "is not in this grid" in table(tuning.points([replace(r, method="em-tok") for r in rows]))


def test_one_recording_in_several_noises_is_one_unit():
    rows = rows_at({PAPER: (1, 3)})
    copies = [replace(r, domain=noise) for r in rows for noise in ("GS", "AC", "BA")]
    assert [(item.errors, item.words) for item in tuning.points(copies)[0].items] == [(3, 30), (9, 30)]


def test_the_verdict_says_what_is_not_known():
    same = table(tuning.points(rows_at({PAPER: (1, 1), (1e-3, 3, 16): (4, 4)})))
    assert same.endswith("the paper's choice is the lowest of this grid")
    unsure = table(tuning.points(rows_at({PAPER: (3, 1), (1e-3, 3, 16): (1, 2)})))
    assert unsure.endswith("difference -5.00 [-20.00, +10.00], which is not significant")
    absent = table(tuning.points(rows_at({(1e-3, 3, 16): (1, 2)})))
    assert absent.endswith("is not in this grid")
    alone = table(tuning.points([row(*PAPER, "a", 1), row(1e-3, 3, 16, "a", 0)]))
    assert "nan" not in alone
    assert "0.00 (no interval: one speaker or utterance)" in alone


def test_points_are_compared_on_the_same_utterances():
    rows = rows_at({PAPER: (3, 3), (1e-3, 3, 16): (4, 4)})
    lone = row(1e-3, 3, 16, "c", 0)
    failed = row(1e-3, 3, 16, "b", 0, failed="no audio")
    found = tuning.points([*rows[:3], failed, lone])
    assert [[r.id for r in point.rows] for point in found] == [["a"], ["a"]]
    with pytest.raises(SharpenError, match="no row of the grid"):
        tuning.points([failed])
    with pytest.raises(SharpenError, match="at all points"):
        tuning.points([rows[0], rows[3]])


def test_of_equal_points_the_cheapest_is_best():
    assert best(tuning.points(rows_at({PAPER: (1, 1), (1e-3, 3, 16): (1, 1)}))).choice == (1e-3, 3, 16)


def test_the_command_is_resumable_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    model, manifest = tiny.checkpoint(tmp_path), tiny.corpus(tmp_path / "held-out", 3, duration=1.0)
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    arguments = [manifest, "--noise", "GS", "--snr", 10, "--lrs", "1e-3,3e-2", "--steps", "1,2", "--samples", "2"]
    arguments += ["--model", model, "--threads", 1, "--out", tmp_path / "out", "--plot", tmp_path / "grid.svg", "-q"]
    args = parser.parse_args([str(a) for a in arguments])
    assert args.run(args) == 0
    shown = capsys.readouterr().out
    assert "WER % on 3 utterances" in shown
    assert (tmp_path / "grid.svg").read_text(encoding="utf-8").count("learning rate") >= 1
    assert {(r.domain, r.options["snr"]) for r in tiny.found(tmp_path / "out").values()} == {("GS", 10.0)}
    before = (tmp_path / "out" / "rows.jsonl").read_bytes()
    assert args.run(args) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == before


def test_a_plot_that_cannot_be_written_is_told(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(SharpenError, match="cannot write the figure"):
        plot(tuning.points(rows_at({PAPER: (1, 1)})), tmp_path / "plot.nonsense", "em-tok-b")


def test_all_seeds_of_a_point_count():
    rows = [
        replace(r, seed=seed, errors=ErrorCounts(seed, reference=10))
        for r in rows_at({PAPER: (1, 1)})
        for seed in (0, 2)
    ]
    (point,) = tuning.points(rows)
    assert ({r.seed for r in point.rows}, point.wer) == ({0, 2}, 0.1)


def test_no_updates_are_a_point_of_the_grid():
    rows = rows_at({(1e-3, 0, 16): (4, 4), PAPER: (3, 3)})
    assert [point.choice for point in tuning.points(rows)] == [(1e-3, 0, 16), PAPER]
