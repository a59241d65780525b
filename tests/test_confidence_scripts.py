"""The measures behind docs/confidence.md, and the shipped numbers from the stored rows."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", autouse=True)
def scripts():
    sys.path.insert(0, str(ROOT / "scripts"))
    yield
    sys.path.remove(str(ROOT / "scripts"))


def test_measures_known_by_hand():
    from confidence_rows import area_under_roc, average_precision, calibration_error

    score, right = np.array([0.9, 0.9, 0.4, 0.4]), np.array([True, True, True, False])
    assert calibration_error(score, right) == pytest.approx((0.1 + 0.1) / 2)
    assert area_under_roc(score, right) == pytest.approx((2 * 1 + 1 * 0.5) / 3)
    assert average_precision(-score, ~right) == pytest.approx(0.5)
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, False])) == pytest.approx(0.5)


def test_a_word_is_right_where_all_that_normalising_makes_of_it_is():
    from confidence_rows import marks

    reference = ["i", "do", "not", "know", "mister", "smith"]
    said = [["i"], ["do", "not"], ["now"], [], ["mister"], ["smyth"]]
    assert list(marks(reference, said)) == [True, True, False, None, True, False]
    assert list(marks(["a"], [["a"], ["b", "c"]])) == [True, False]


def test_the_fit_finds_the_map_that_made_the_words():
    from confidence_rows import calibration_error
    from fit_confidence import logistic, predicted

    rng = np.random.default_rng(1)
    X = rng.normal(size=(20_000, 2))
    chance = 1 / (1 + np.exp(-(1.5 * X[:, 0] - X[:, 1] + 0.5)))
    right = rng.random(len(X)) < chance
    weights = logistic(X, right)
    assert weights == pytest.approx([1.5, -1.0, 0.5], abs=0.06)
    assert calibration_error(predicted(X, weights), right) < 0.01
    assert calibration_error(predicted(X, 3 * weights), right) > 0.05


def test_the_shipped_numbers_are_those_of_the_stored_rows(tmp_path, capsys):
    from argparse import Namespace

    from fit_confidence import fit

    path = tmp_path / "confidence.json"
    fit(Namespace(rows=ROOT / "results" / "confidence" / "fitting.jsonl", write=path))
    shipped = json.loads((ROOT / "src/sharpen/speech/assets/confidence.json").read_text(encoding="utf-8"))
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["about"] == shipped["about"]
    for name, numbers in shipped["maps"].items():
        assert found["maps"][name] == pytest.approx(numbers, abs=2e-3), name
    printed = capsys.readouterr().out.splitlines()
    fitted = [line for line in printed if line.startswith("| adapted | 215 |")]
    assert len(fitted) == 4
    assert set(fitted) <= set(lines_of("confidence.md"))


def lines_of(page):
    return (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()


def test_the_tables_are_those_of_the_rows():
    from confidence_rows import judged, read
    from confidence_table import page

    folder = ROOT / "results" / "confidence"
    rows = [row for name in ("test-other", "accents", "languages") for row in read(folder / f"{name}.jsonl")]
    made = "\n".join(page(list(judged(rows)), "AC@10+MU@10")).splitlines()
    assert made == lines_of("confidence-tables.md")
    for name in ("tiny.en", "wide"):
        made += page(list(judged(read(folder / f"{name}.jsonl"))), "")
    shown = lines_of("confidence.md")
    shown = [line for line in shown[shown.index("## How well") :] if line.startswith("| ")]
    assert len(shown) > 50
    assert set(shown) <= set(made)
