import pytest
from evaluation.report.answers import answer

from sharpen.evaluation.report import drawing
from sharpen.evaluation.report.figures import figures_of
from sharpen.evaluation.report.lines import group_lines

RIGHT, ONE_OFF = "one two three four", "one two three five"


def figures(rows):
    (lines,) = group_lines(rows).values()
    return {figure.name: figure for figure in figures_of(lines)}


def test_each_figure_only_where_rows_have_its_data():
    still = {"seconds": 0.0}
    assert figures([answer("source", **still), answer("em-tok", **still)]) == {}
    assert list(figures([answer("em-tok", samples=g, **still) for g in (4, 16)])) == ["samples"]
    assert list(figures([answer("em-tok-b", samples=g, **still) for g in (4, 16)])) == ["samples-beam"]
    assert list(figures([answer("em-seq", steps=n, **still) for n in (1, 3)])) == ["steps"]
    assert list(figures([answer("em-seq", samples=g, **still) for g in (4, 16)])) == []
    assert list(figures([answer("source"), answer("beam")])) == ["time"]
    assert list(figures([answer("em-tok", trace={"H_tok": [2.0, 1.0]}, **still)])) == ["entropy"]
    assert figures([answer("em-tok", trace={"H_tok": [2.0]}, **still)]) == {}


def test_points_are_over_the_shared_utterances():
    rows = [answer("em-tok", "a", RIGHT, samples=4), answer("em-tok", "a", ONE_OFF, samples=16)]
    rows += [answer("em-tok", "b", "", samples=16), answer("source", "a", "x x x x"), answer("source", "b", RIGHT)]
    figure = figures(rows)["samples"]
    (panel,) = figure.panels
    assert [(point.x, point.y.value) for point in panel.series[0].points] == [(4, 0.0), (16, 0.25)]
    assert panel.level == 1.0
    assert "clean 1." in figure.caption


def test_no_level_where_the_source_lacks_utterances():
    rows = [answer("em-tok", id, samples=g) for id in "ab" for g in (4, 16)] + [answer("source", "a")]
    assert figures(rows)["samples"].panels[0].level is None


def test_the_level_is_the_source_of_the_same_settings():
    exact, fast = {"options": {"preset": "exact"}}, {"options": {"preset": "fast"}}
    rows = [answer("em-tok", steps=steps, **fast) for steps in (5, 10)]
    rows += [answer("source", text=RIGHT, **exact), answer("source", text=ONE_OFF, **fast)]
    assert figures(rows)["steps"].panels[0].level == 0.25
    rows += [answer("em-tok", steps=steps, **exact) for steps in (5, 10)]
    assert figures(rows)["steps"].panels[0].level is None  # two sources: neither belongs to all series


def test_options_of_the_machine_do_not_split_a_series():
    rows = [answer("em-tok", samples=g, options={"batch_size": 64 // g}) for g in (4, 16)]
    (series,) = figures(rows)["samples"].panels[0].series
    assert (series.name, len(series.points)) == ("em-tok", 2)


def test_a_panel_for_each_domain_and_a_series_for_each_setting():
    rows = [
        answer("em-tok", domain=domain, samples=g, steps=steps)
        for domain in ("GS", "AC")
        for g in (4, 16)
        for steps in (3, 10)
    ]
    panels = figures(rows)["samples"].panels
    assert [panel.title for panel in panels] == ["AC", "GS"]
    assert [series.name for series in panels[0].series] == ["em-tok · 3 steps", "em-tok · 10 steps"]


def test_computing_time_and_what_beams_save():
    seconds = {"source": 1.0, "em-tok": 20.0, "em-tok-b": 13.0}  # for 4 seconds of audio
    rows = [answer(method, seconds=spent) for method, spent in seconds.items()]
    figure = figures(rows)["time"]
    points = {series.name: series.points[0].x for series in figure.panels[0].series}
    assert points == pytest.approx({"source": 0.25, "em-tok": 5.0, "em-tok-b": 3.25})
    assert "em-tok-b against em-tok: 35 % less at G = 16 (the paper: nearly 35% less at G = 16)" in figure.caption


def test_seconds_of_other_machines_are_another_series():
    rows = [answer("em-tok", seconds=20.0), answer("em-tok-b", seconds=13.0)]
    rows += [answer("em-tok-b", seconds=2.0, options={"threads": 8})]
    figure = figures(rows)["time"]
    assert [series.name for series in figure.panels[0].series] == [
        "em-tok",
        "em-tok-b · threads 1",
        "em-tok-b · threads 8",
    ]
    assert "35 % less at G = 16 (threads 1) (the paper" in figure.caption


def test_entropy_is_the_mean_of_complete_episodes():
    traces = ([4.0, 2.0, 1.0], [2.0, 2.0, 2.0], [9.0, 9.0])
    rows = [answer("em-tok", str(i), trace={"H_tok": trace}) for i, trace in enumerate(traces)]
    figure = figures(rows)["entropy"]
    assert [point.y.value for point in figure.panels[0].series[0].points] == [3.0, 2.0, 1.5]
    assert "Mean over 2 utterances" in figure.caption


def test_svg_has_its_own_ids_and_the_colours_of_the_page():
    rows = [answer(m, samples=g) for m in ("em-tok", "pg-tok") for g in (4, 16)]
    figure = figures(rows)["samples"]
    text = drawing.as_svg(figure, "first")
    assert (text[:4], text[-6:]) == ("<svg", "</svg>")
    assert "var(--m-em-tok)" in text
    assert "var(--m-pg-tok)" in text
    assert drawing.COLOURS["em-tok"] not in text
    assert 'id="first-' in text
    assert "em-tok: 0.00 at 4, 0.00 at 16" in text
    assert text == drawing.as_svg(figure, "first")


def test_series_of_one_method_are_told_apart_and_the_legend_fits():
    presets = ({"preset": "exact"}, {"preset": "fast"})
    methods = ("em-tok-togo", "em-tok-togo-b")
    rows = [answer(m, options=preset, steps=n) for m in methods for preset in presets for n in (5, 10)]
    figure = drawing._draw(figures(rows)["steps"])
    (legend,) = figure.legends
    assert len({(mark.get_color(), mark.get_markersize()) for mark in legend.get_lines()}) == 4
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_a_long_legend_leaves_room_for_the_plot():
    rows = [
        answer(m, model=k, seconds=2.0 + i) for i, m in enumerate(drawing.COLOURS) for k in ("tiny", "base", "small")
    ]
    figure = drawing._draw(figures(rows)["time"])
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    plot, names = axes.get_tightbbox(), legend.get_window_extent()
    assert 2.2 < plot.height / figure.dpi < 4
    assert plot.y0 >= names.y1 - 1


@pytest.mark.parametrize(("low", "high"), [(5.1, 5.8), (0.9, 1.1), (0.1, 9.0), (2.1, 3.9)])
def test_a_time_axis_has_at_least_two_ticks(low, high):
    ticks = drawing._ticks(low, high)
    assert len(ticks) > 1
    assert all(low <= tick <= high for tick in ticks)
