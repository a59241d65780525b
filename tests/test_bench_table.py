"""The tables of docs/speed.md, and the numbers below them, are what the benchmark measured."""

import pytest
from published import ROOT, load_script

from sharpen.benchmarks.bench import BATCH, OURS

script = load_script("bench_table")
PAGE = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")


def test_the_tables_of_speed_are_what_the_benchmark_measured():
    costs, episodes = PAGE.split("## What an effort costs")[1].split("\n## ")[:2]
    assert episodes.startswith("Episodes")
    efforts, *others = script.tables()
    assert "\n".join(efforts) in costs
    printed = [line for line in episodes.splitlines() if line.startswith("|")]
    assert printed == [line for lines in others for line in lines]


def over_limit(engine, stage, batch=1):
    case = script.find(engine, "em-tok", 16, batch)
    return f"{case['stages'][stage] / case['limits'][stage]:.1f}"


def faster(engine, batch=1):
    reference, ours = (script.find(*one) for one in (("reference", "em-tok-b", 16), (engine, "em-tok-b", 16, batch)))
    return script.times(reference["seconds"] / ours["seconds"])


SAID = {  # word for word, with what was measured in place of {}
    "({:.0f} GFLOP/s), and every matrix were read at the speed of memory ({:.0f} GB/s)": lambda: (
        script.bench()["machine"]["flops"] / 1e9,
        script.bench()["machine"]["bandwidth"] / 1e9,
    ),
    "They take {} and {} times their limit.": lambda: [over_limit("exact", stage) for stage in ("encode", "backward")],
    "search is half of its time, and takes {} times its limit.": lambda: (over_limit("fastest", "search"),),
    "The search takes {} times its limit or more.": lambda: (
        min(over_limit(engine, "search", BATCH) for engine in OURS),
    ),
    "em-tok takes {:.2f} times as long as greedy-em": lambda: (script.bench()["ratios"]["em_tok_vs_greedy_em"],),
    "is {} (exact) and {} (fastest) times faster than its reference, and {} times with fastest in batches.": lambda: (
        faster("exact"),
        faster("fastest"),
        faster("fastest", BATCH),
    ),
    "The memory is that of processes of their own: {:.1f} and {:.1f} GB.": lambda: (
        script.bench()["memory_bytes"][engine] / 1e9 for engine in ("exact", "reference")
    ),
}


@pytest.mark.parametrize("claim", SAID)
def test_the_numbers_below_the_tables(claim):
    assert claim.format(*SAID[claim]()) in " ".join(PAGE.split())


def test_how_many_the_gate_left_alone():
    alone = {one["effort"]: one["left_alone"] for one in script.bench()["efforts"]}
    assert alone["normal"] == alone["high"] == 5
    assert "Five of the eight leave the model confident" in PAGE
