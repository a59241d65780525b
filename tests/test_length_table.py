"""The table of the length penalty is what its rows give."""

from published import ROOT, load_script

length = load_script("length_table")


def test_the_table_of_the_length_penalty_is_what_its_rows_give():
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    section = page.split("## How beams are compared")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")] == length.table()


def test_what_is_said_of_all_utterances_of_base():
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    five, wide = length.of_base(length.BEAM), length.of_base(length.WIDE)
    assert five.utterances == 1018
    said = [f"{length.signed(x).strip('*')} {{}} ({x.helped} helped, {x.hurt} hurt)" for x in (five, wide)]
    assert ", ".join(said).format("with a beam of five", "with one of 16") in page
