"""The tables of docs/speed.md are what the benchmark measured."""

from published import ROOT, load_script


def test_the_tables_of_speed_are_what_the_benchmark_measured():
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    costs, episodes = page.split("## What an effort costs")[1].split("\n## ")[:2]
    assert episodes.startswith("Episodes")
    efforts, *others = load_script("bench_table").tables()
    assert "\n".join(efforts) in costs
    printed = [line for line in episodes.splitlines() if line.startswith("|")]
    assert printed == [line for lines in others for line in lines]
