"""The table of other models is what its rows give."""

from published import ROOT, load_script


def test_the_table_of_other_models_is_what_its_rows_give():
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    section = page.split("## Other models under the paper's settings")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == load_script("family_table").table()
