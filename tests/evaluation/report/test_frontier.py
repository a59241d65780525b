import json
from dataclasses import replace

import numpy as np
import pytest
from evaluation.report.answers import answer
from matplotlib.text import Text

from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.evaluation.report import document, drawing, labels, tables
from sharpen.evaluation.report.frontier import figure, frontiers, key_of, label, on_front, run_names, setting_key
from sharpen.evaluation.report.lines import group_lines
from sharpen.evaluation.runs.settings import settings

WORDS = "one two three four"
IDS = "abcd"
BEAM_5 = {"options": {"decode": "beam"}}  # the width is the default, which rows do not record


def rows(method, seconds, errors, **others):
    """A row for each of four utterances, with so many words wrong in each."""
    texts = (" ".join(["x"] * n + WORDS.split()[n:]) for n in errors)
    return [answer(method, id, text, seconds=seconds, **others) for id, text in zip(IDS, texts, strict=True)]


def run(**others):
    """Five settings; of 16 words greedy search has 8 wrong, both beams 6, and adapting 2 and 7."""
    return [
        *rows("source", 1.0, (2, 2, 2, 2), **others),
        *rows("source", 2.0, (1, 1, 1, 3), **BEAM_5, **others),
        *rows("beam", 5.0, (2, 2, 1, 1), **others),
        *rows("em-tok-b", 6.0, (0, 0, 0, 2), samples=4, steps=3, **others),
        *rows("em-tok-b", 20.0, (1, 1, 2, 3), **others),
    ]


def cells(found):
    """The table as dictionaries by setting, without intervals."""
    table = tables.frontier(found)
    texts = [[cell.text for cell in row] for row in table.rows]
    return {row[0]: dict(zip(table.head[1:], row[1:], strict=True)) for row in texts}


def test_the_numbers_of_a_run():
    (found,) = frontiers({"run": run()})
    head = ["front", "utterances", "WER", "seconds", "× beam 5", "against beam 5", "against beam 16"]
    head += ["helped / hurt, beam 5", "helped / hurt, greedy"]
    expected = {
        "greedy": ["yes", "4", "50.00", "1.00", "0.50", "+12.50", "+12.50", "1 / 3", "–"],
        "beam 5": ["yes", "4", "37.50", "2.00", "1.00", "–", "0.00", "–", "3 / 1"],
        "beam 16": ["–", "4", "37.50", "5.00", "2.50", "0.00", "–", "1 / 2", "2 / 0"],
        "em-tok-b · G 4 · 3 steps": ["yes", "4", "12.50", "6.00", "3.00", "−25.00", "−25.00", "4 / 0", "3 / 0"],
        "em-tok-b · G 16 · 10 steps": ["–", "4", "43.75", "20.00", "10.00", "+6.25", "+6.25", "0 / 1", "2 / 1"],
    }
    assert cells(found) == {name: dict(zip(head, row, strict=True)) for name, row in expected.items()}
    assert list(cells(found)) == list(expected)  # the fastest first


def test_a_difference_is_bold_where_its_interval_excludes_zero():
    (found,) = frontiers({"run": run()})
    table = tables.frontier(found)
    at = table.head.index("against beam 5")
    by_setting = {row[0].text: row[at] for row in table.rows}
    adapted = by_setting["em-tok-b · G 4 · 3 steps"]  # one error fewer in every utterance
    assert (adapted.interval, adapted.best) == ("[−25.00, −25.00]", True)
    longer = by_setting["em-tok-b · G 16 · 10 steps"]  # one error more in one of the four
    assert (longer.interval[:6], longer.best) == ("[0.00,", False)
    greedy = found.points[0].against[5].difference
    assert greedy.low < 0 < greedy.high
    assert not by_setting["greedy"].best


def test_all_are_compared_with_the_papers_setting_where_a_run_has_it():
    made = run()
    named = {setting_key(made[-1].method, {"samples": 16, "steps": 10, **made[-1].options}): "paper"}
    (found,) = frontiers({"run": made}, named)
    printed = {name.partition(":")[0]: row["against paper"] for name, row in cells(found).items()}
    assert printed["em-tok-b · G 4 · 3 steps"] == "−31.25"  # 2 of 16 words wrong, not 7
    assert (printed["beam 5"], printed["paper"]) == ("−6.25", "–")


def test_what_no_other_setting_beats_is_on_the_front():
    costs = [(1.0, 0.5), (2.0, 0.4), (2.0, 0.45), (3.0, 0.4), (4.0, 0.6), (5.0, 0.1), (5.0, 0.1)]
    assert on_front(costs) == [True, True, False, False, False, True, True]


def test_the_wer_is_the_mean_of_the_domains():
    """Domain GS has twice as many utterances as AC: pooled, beam search would have (2 · 4 + 4 · 1) / 24 = 50 %."""
    ends = {"reference": WORDS, "options": {"decode": "beam"}}
    made = [answer("source", id, "x x x x", domain="AC", seconds=2.0, speaker=id, **ends) for id in "ab"]
    made += [answer("source", id, "x two three four", domain="GS", seconds=1.0, speaker=id, **ends) for id in "abcd"]
    made += [answer("em-tok", row.id, WORDS, domain=row.domain, seconds=3.0, speaker=row.id) for row in made]
    (found,) = frontiers({"run": made})
    plain, adapted = found.points
    assert plain.wer.value == pytest.approx((1.0 + 0.25) / 2)
    assert plain.seconds == pytest.approx((2 * 2.0 + 4 * 1.0) / 6)
    assert adapted.times == pytest.approx(3.0 / (8 / 6))
    assert adapted.against[5].difference.value == pytest.approx(-0.625)
    assert (adapted.wer.unit, adapted.wer.units) == ("speakers", 4)  # AC and GS share theirs: resampled together
    assert dict(found.utterances) == {"AC": 2, "GS": 4}
    assert "WER in %, mean over the domains" in tables.frontier(found).notes[0]


def test_an_utterance_counts_once_however_many_seeds_it_has():
    made = [*rows("source", 1.0, (0, 0, 0, 0)), *rows("em-tok", 4.0, (0, 0, 0, 4))]
    made += [answer("em-tok", "d", WORDS, seconds=8.0, seed=1)]
    adapted = frontiers({"run": made})[0].points[1]
    assert adapted.seconds == pytest.approx((3 * 4.0 + 6.0) / 4)
    assert adapted.wer.value == pytest.approx(2 / 16)


def test_numbers_are_over_the_utterances_that_all_settings_have():
    made = [row for row in run() if not (row.method == "beam" and row.id == "d")]
    made += [answer("source", "e", "", seconds=100.0)]
    (found,) = frontiers({"run": made})
    printed = cells(found)
    assert (printed["greedy"]["utterances"], printed["greedy"]["seconds"]) == ("3", "1.00")
    assert printed["beam 5"]["WER"] == "25.00"
    assert "clean 3; 2 that some settings lack are left out." in tables.frontier(found).notes[0]


@pytest.mark.parametrize(("plain", "reference"), [(("source", "beam"), "beam 16"), (("source",), "greedy"), ((), "")])
def test_without_a_beam_of_5_another_plain_search_is_the_measure(plain, reference):
    made = [row for row in run() if row.method in (*plain, "em-tok-b") and row.options.get("decode") != "beam"]
    (found,) = frontiers({"run": made})
    assert found.reference == reference
    assert not any("beam 5" in name for name in tables.frontier(found).head)
    (panel,) = figure([found]).panels
    assert panel.x == (f"time per utterance, × {reference}" if reference else "seconds per utterance")
    x = {point.label: point.x for series in panel.series for point in series.points}
    assert x["em-tok-b · G 16 · 10 steps"] == {"greedy": 20.0, "beam 16": 4.0, "": 20.0}[reference]


def test_the_measure_is_the_beam_with_the_settings_of_the_run():
    made = [replace(row, options={**row.options, "preset": "fast"}) for row in run()]
    made += rows("beam", 9.0, (0, 0, 0, 0), samples=5)
    (found,) = frontiers({"run": made})
    assert found.reference == "beam 5"
    assert cells(found)["beam 16 · preset fast"]["× beam 5"] == "2.50"


def test_a_run_has_one_corpus_and_one_model():
    made = [replace(row, model=model) for model in ("tiny", "base") for row in run()]
    found = frontiers({"one": made, "other": run()})
    assert [one.run for one in found] == ["one, base", "one, tiny", "other"]
    assert [point.label for point in found[0].points] == [point.label for point in found[2].points]


def test_runs_are_named_after_their_folders():
    assert run_names(["a/one", "a/two/rows.jsonl"]) == ["one", "two"]
    assert run_names(["a/one", "b/one"]) == ["a/one", "b/one"]


def test_without_times_or_companions_there_is_no_front():
    with pytest.raises(SharpenError, match=r"rows of beam have no seconds"):
        frontiers({"run": [*run()[:4], *rows("beam", 0.0, (0, 0, 0, 0))]})
    with pytest.raises(SharpenError, match=r"1 settings with 4 utterances in common"):
        frontiers({"run": run()[:4]})
    with pytest.raises(SharpenError, match="2 settings with 0 utterances in common"):
        frontiers({"run": [answer("source", "a"), answer("beam", "b")]})


def test_labels_name_what_differs_from_a_default():
    base = {"samples": 4, "steps": 3}
    made = [
        answer("em-tok-b", **base, options={"lr": 3e-3, "norms": "decoder"}),
        answer("em-tok-b", **base, options={"lr": 3e-3}),
        answer("em-tok-b"),
        answer("em-tok-b", options={"decode": "beam", "beam_size": 2}),
        answer("source", options={"decode": "beam", "beam_size": 2}),
        answer("source", options={"decode": "mbr", "beam_size": 16}),
        answer("source"),
    ]
    (lines,) = group_lines(made).values()
    assert {label(line) for line in lines} == {
        "em-tok-b · G 4 · 3 steps · lr 0.003 · norms decoder",
        "em-tok-b · G 4 · 3 steps · lr 0.003",
        "em-tok-b · G 16 · 10 steps",
        "em-tok-b · G 16 · 10 steps · beam size 2 · decode beam",
        "beam 2",
        "mbr 16",
        "greedy",
    }


def test_least_risk_is_no_plain_search():
    risk = [replace(row, options={**row.options, "decode": "mbr"}) for row in rows("source", 1.2, (0, 0, 0, 0))]
    (found,) = frontiers({"run": [*run(), *risk]})
    assert "mbr 5" not in found.compared.values()
    series = figure([found]).panels[0].series
    assert [[p.label for p in one.points] for one in series if one.name == "least risk, not adapting"] == [["mbr 5"]]


def test_beams_compared_in_another_way_are_a_search_of_their_own():
    """What all are compared with is the usual beam, although this one is faster and has fewer errors."""
    root = rows("source", 1.9, (0, 0, 0, 0), options={"decode": "beam", "length_penalty": 0.5})
    (found,) = frontiers({"run": [*run(), *root]})
    assert found.reference == "beam 5"
    assert {p.label: p.times for p in found.points}["beam 5 · length penalty 0.5"] == pytest.approx(0.95)
    searches = [[p.label for p in one.points] for one in figure([found]).panels[0].series if one.method == "beam"]
    assert ["beam 5 · length penalty 0.5"] in searches


def test_a_setting_with_a_name_is_called_by_it():
    (plain,), (high,) = settings(["source"], decode=("beam",)), settings(["em-tok-b"], samples=(4,), steps=(3,))
    names = {key_of(plain): "plain", key_of(high): "high"}
    for first in (run(), [row for row in run() if row.method != "source"] + rows("beam", 2.0, (1, 1, 1, 3), samples=5)):
        (found,) = frontiers({"run": first}, names)
        named = {point.label: point.setting for point in found.points if point.named}
        assert named == {"plain": "beam 5", "high": "em-tok-b · G 4 · 3 steps"}
        assert "high: em-tok-b · G 4 · 3 steps" in cells(found)
        assert found.reference == "beam 5"
        drawn = [point for series in figure([found]).panels[0].series for point in series.points]
        assert {point.label for point in drawn if point.named} == {"plain", "high"}


def test_a_named_setting_with_two_presets_has_both_in_its_labels():
    (high,) = settings(["em-tok-b"], samples=(4,), steps=(3,))
    presets = [replace(row, options={**row.options, "preset": p}) for row in run() for p in ("exact", "fast")]
    (found,) = frontiers({"run": presets}, {key_of(high): "high"})
    assert {p.label for p in found.points if p.named} == {"high · preset exact", "high · preset fast"}


def test_plain_searches_are_one_family_and_the_front_goes_down():
    (panel,) = figure(frontiers({"run": run()})).panels
    assert [([p.label for p in series.points], series.joined) for series in panel.series] == [
        (["greedy", "beam 5", "beam 16"], True),
        (["em-tok-b · G 4 · 3 steps", "em-tok-b · G 16 · 10 steps"], False),
    ]
    assert [(p.x, p.y.value) for p in panel.front] == [(0.5, 0.5), (1.0, 0.375), (3.0, 0.125)]


def test_what_is_drawn():
    (high,) = settings(["em-tok-b"], samples=(4,), steps=(3,))
    (axes,) = drawing._figure(figure(frontiers({"run": run()}, {key_of(high): "high"}))).axes
    by_marker = {}
    for line in axes.lines:
        by_marker.setdefault((line.get_marker(), line.get_linestyle()), []).append(line.get_xydata().tolist())
    assert by_marker == {
        ("o", "-"): [[[0.5, 50.0], [1.0, 37.5], [2.5, 37.5]]],  # plain search, joined
        ("o", "None"): [[[3.0, 12.5], [10.0, 43.75]]],
        ("*", "None"): [[[3.0, 12.5]]],
        ("None", "--"): [[[0.5, 50.0], [1.0, 50.0], [1.0, 37.5], [3.0, 37.5], [3.0, 12.5], [axes.get_xlim()[1], 12.5]]],
    }
    assert axes.get_xscale() == "log"
    assert sum(len(bars.get_segments()) for bars in axes.collections) == 5
    assert {note.get_text() for note in axes.texts if note.get_weight() == "bold"} == {"high"}


def many(seed):
    """Thirteen settings whose points are near each other."""
    generator = np.random.default_rng(seed)
    made = [*rows("source", 1.0, (2, 2, 2, 2)), *rows("source", 2.0, (1, 1, 1, 3), **BEAM_5)]
    for G in (2, 4, 8, 16):
        for steps in (1, 2, 3):
            spent = 2.0 + 0.2 * G + steps * generator.random()
            made += rows("em-tok-b", spent, generator.integers(0, 3, 4), samples=G, steps=steps)
    return made


@pytest.mark.parametrize("runs", [1, 2])
def test_no_label_covers_another_or_leaves_its_panel(runs):
    found = frontiers({f"run {k}": many(k) for k in range(runs)}, {key_of(settings(["em-tok-b"])[0]): "paper"})
    drawn = drawing._figure(figure(found))
    drawn.draw_without_rendering()
    assert drawn.get_figwidth() == drawing.FRONTIER_WIDTH
    panels = [axes for axes in drawn.axes if axes.get_visible()]
    assert len(panels) == runs
    for axes in panels:
        boxes = [Text.get_window_extent(note) for note in axes.texts]  # without the line that leads to it
        assert len(boxes) == 14
        for k, box in enumerate(boxes):
            assert axes.bbox.x0 - 1 <= box.x0 < box.x1 <= axes.bbox.x1 + 1
            assert axes.bbox.y0 - 1 <= box.y0 < box.y1 <= axes.bbox.y1 + 1
            assert not any(box.overlaps(other) for other in boxes[:k])


def test_labels_avoid_points_and_keep_their_order():
    points = np.array([[50.0, 50.0], [52.0, 50.0], [54.0, 50.0]])
    sizes = np.array([[30.0, 10.0]] * 3)
    corners = labels.place(points, sizes, np.array([0.0, 0.0, 100.0, 100.0]), np.zeros((0, 2)))
    for corner, size in zip(corners, sizes, strict=True):
        assert not ((corner < points) & (points < corner + size)).all(1).any()
    assert not labels._overlaps(np.hstack([corners, corners + sizes]), np.hstack([corners, corners + sizes]))[
        ~np.eye(3, dtype=bool)
    ].any()


def test_long_labels_are_broken_between_their_parts():
    assert labels.wrapped("em-tok-b · G 4 · 3 steps · norms encoder:half+decoder") == (
        "em-tok-b · G 4 · 3 steps\nnorms encoder:half+decoder"
    )


def folder(path, made):
    path.mkdir()
    (path / "rows.jsonl").write_text("".join(row.as_json() + "\n" for row in made), encoding="utf-8")
    return str(path)


def test_the_command_draws_a_panel_for_each_folder_and_prints_the_tables(tmp_path, capsys):
    folders = [folder(tmp_path / name, run()) for name in ("first", "second")]
    before = document.as_markdown(document.build(run()))
    assert main(["report", *folders]) == 0
    assert capsys.readouterr().out == before
    picture = tmp_path / "figures" / "front.png"
    assert main(["report", *folders, "--frontier", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(before)
    assert "### first: WER against computing time" in printed
    assert "### second: WER against computing time" in printed
    assert f"front.png)\n\n{figure(frontiers({'first': run(), 'second': run()})).caption}" in printed
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_other_formats_have_the_frontier_too(tmp_path):
    one = folder(tmp_path / "one", run())
    out = {kind: tmp_path / f"out.{kind}" for kind in ("html", "latex", "json", "markdown")}
    flags = [part for kind, path in out.items() for part in (f"--{kind}", str(path))]
    assert main(["report", one, "--without", "d", "--frontier", str(tmp_path / "front.svg"), *flags]) == 0
    text = {kind: path.read_text(encoding="utf-8") for kind, path in out.items()}
    assert text["markdown"].startswith(f"Made by `sharpen report {one} --without d --frontier front.svg`.")
    assert "](front.svg)" in text["markdown"]
    assert '<article id="frontier"><h2>WER against computing time</h2>' in text["html"]
    assert "time per utterance, × beam 5" in text["html"]
    assert r"\textbf{$\times$ beam 5}" in text["latex"]
    (found,) = json.loads(text["json"])["frontier"]
    plain = found["settings"][1]
    assert (plain["label"], plain["front"], plain["times"], plain["wer"]["value"]) == ("beam 5", True, 1.0, 0.25)
    assert found["utterances"] == {"clean": 3}
    assert plain["against"]["greedy"]["helped"] == 3


def test_a_frontier_without_figures_is_refused(tmp_path, capsys):
    arguments = ["report", folder(tmp_path / "one", run()), "--frontier", "x.png", "--no-figures"]
    assert main(arguments) != 0
    assert "--frontier and --no-figures contradict each other" in capsys.readouterr().err
