"""The tables of other steps are what their rows give."""

from published import ROOT, load_script


def test_the_tables_of_other_steps_are_what_their_rows_give():
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    section = page.split("## Other steps")[1].split("\n## ")[0]
    printed = [line for line in section.splitlines() if line.startswith("|")]
    assert printed == [line for line in load_script("other_steps_table").table() if line]
