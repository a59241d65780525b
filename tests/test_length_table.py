"""The table of the length penalty is what its rows give."""

from published import ROOT, load_script


def test_the_table_of_the_length_penalty_is_what_its_rows_give():
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    section = page.split("## How beams are compared")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == load_script("length_table").table()
