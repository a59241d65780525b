import json
import sys

import pytest

from sharpen.errors import SharpenError
from sharpen.evaluation.report.theory import estimates_json, estimates_table, plot_estimates, prior_work_table
from sharpen.method import theory
from sharpen.method.objectives import METHODS


@pytest.fixture(scope="module")
def estimates():
    return theory.report()


def test_json_and_table(estimates):
    objects = json.loads(json.dumps(estimates_json(estimates)))
    assert len(objects) == len(estimates)
    assert {"objective", "search", "baseline", "normalise", "samples", "bias", "variance"} <= set(objects[0])
    lines = estimates_table(estimates).splitlines()
    assert "G = 3" in lines[0]
    names = {estimate.objective for estimate in estimates}
    assert {line[:29].strip() for line in lines[2:]} == names
    assert names >= {name for name, method in METHODS.items() if method.search}
    assert max(map(len, lines)) < 145


def test_a_line_of_the_table_holds_its_estimates(estimates):
    (line,) = [
        line.split()
        for line in estimates_table(estimates).splitlines()
        if line.split()[:4] == ["ent-tok", "sample", "yes", "group"]
    ]
    numbers = [float(cell) for cell in line[4:] if cell != "|"]
    found = [e for e in estimates if (e.objective, e.baseline, e.normalise) == ("ent-tok", True, "group")]
    expected = [value for e in found for value in (e.bias, e.rescaled_bias, e.relative_variance)]
    assert numbers == pytest.approx(expected, abs=5e-3)


def test_prior_work_table(estimates):
    lines = prior_work_table(theory.link_rows(estimates)).splitlines()
    assert len(lines) == 9
    assert [line.split()[-1] for line in lines[1:]] == ["no"] * 6 + ["yes"] * 2


def test_plot(estimates, tmp_path):
    pytest.importorskip("matplotlib")
    for suffix in ("png", "svg"):
        plot_estimates(estimates, tmp_path / f"theory.{suffix}")
        assert (tmp_path / f"theory.{suffix}").stat().st_size > 10_000
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "theory.png", tmp_path / "theory.docx"):
        with pytest.raises(SharpenError, match="cannot write the figure"):
            plot_estimates(estimates, path)


def test_plot_without_matplotlib_says_what_to_install(estimates, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SharpenError, match=r"pip install 'sharpen\[report\]'"):
        plot_estimates(estimates, tmp_path / "theory.png")
