"""docs/results.md says what `sharpen report` says of the rows that are kept."""

import re
import shlex
from pathlib import Path

import pytest

from sharpen.evaluation.report import document as report
from sharpen.evaluation.report import lines as results

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SECTIONS = [section for section in PAGE.split("\n## ") if "\n    sharpen report" in section]
FIGURES = re.compile(r"[-+]?\d+\.\d\d+|\d+ / \d+ / \d+")  # rates, differences, seconds; helped / hurt / same


def reported(section: str) -> set[str]:
    """All figures of the reports whose commands stand in a section."""
    found: set[str] = set()
    for command in re.findall(r"^    sharpen report (.+)$", section, flags=re.MULTILINE):
        words = shlex.split(command)
        against = words[words.index("--against") + 1].split(",") if "--against" in words else ["source"]
        folders = [ROOT / word for word in words if word.startswith("results/")]
        without = words[words.index("--without") + 1].split(",") if "--without" in words else []
        made = report.build(results.read(folders), against, without)
        found.update(FIGURES.findall(report.as_markdown(made).replace("−", "-")))
    return found


def test_there_are_sections_to_check():
    assert len(SECTIONS) >= 3


@pytest.mark.parametrize("section", SECTIONS, ids=[section.splitlines()[0] for section in SECTIONS])
def test_every_figure_of_a_table_is_in_its_report(section):
    tables = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    told = set(FIGURES.findall(tables))
    assert told
    wrong = told - reported(section)
    assert not wrong
