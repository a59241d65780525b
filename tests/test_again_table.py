"""The table of the efforts run again is what the rows of both runs give."""

from published import ROOT, load_script


def test_the_table_of_the_second_run_is_what_its_rows_give():
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    section = page.split("## The same settings, run again")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == load_script("again_table").table()
