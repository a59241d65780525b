"""Prints the table of docs/results.md from the rows in results/.

    python scripts/summary_table.py

A test compares the page with the table, cell by cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sharpen.evaluation.report import document, markup, paper
from sharpen.evaluation.report.comparisons import LineResult, line_results, own_source
from sharpen.evaluation.report.lines import group_lines, read
from sharpen.evaluation.report.markup import percent
from sharpen.evaluation.report.statistics import Interval

RESULTS = Path(__file__).parent.parent / "results"
METHODS = ("source", "beam", "em-tok-b")
STEPS = 10  # of the paper's setting
LOOPS = {  # the utterance of each run in whose transcript beam search repeats itself up to the length limit
    "ls-gs10": "2414-128291-0015",
    "frontier-noises": "5442-32873-0005",
    "accents": "096400008",
    "languages": "common_voice_nl_18058272",
}
HEAD = (
    "domain", "utterances", "source", "beam", "em-tok-b", "em-tok-b − source", "em-tok-b − beam",
    "time × source", "time × beam", "paper: source / beam / em-tok-b",
)  # fmt: skip


@dataclass(frozen=True)
class SummaryLine:
    """One line of the table."""

    label: str
    run: str
    column: str = ""  # of the run's table; empty for the average, or for the only one
    paper: tuple[str, ...] = ()  # columns of the paper's table whose mean stands beside ours
    table: str = ""  # the paper's table
    preset: str = "fastest"
    timed: bool = True  # whether the seconds of the three methods may be compared
    without_loop: bool = False


NOISES = {"AA": "announcements", "AC": "air conditioner", "BA": "babble", "CM": "copy machine", "MU": "munching",
          "NB": "a neighbour speaking", "SD": "shutting door", "VC": "vacuum cleaner"}  # fmt: skip
LANGUAGES = {"de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "nl": "Dutch", "pl": "Polish",
             "pt": "Portuguese"}  # fmt: skip
EIGHT = "frontier-noises"
LINES = (
    SummaryLine("Gaussian noise", "ls-gs10", paper=("GS",), table="table-noise"),
    SummaryLine("Gaussian noise, loop left out", "ls-gs10", without_loop=True),
    SummaryLine(
        "Gaussian noise, exact", "ls-gs10-exact", paper=("GS",), table="table-noise", preset="exact", timed=False
    ),
    SummaryLine("Gaussian noise, tiny", "ls-gs10-tiny", paper=("Tiny",), table="table-models", preset="fast"),
    *(
        SummaryLine(name, EIGHT, f"{code} 10 dB", (code,), "table-noise", preset="exact", timed=False)
        for code, name in NOISES.items()
    ),
    SummaryLine("eight noises, average", EIGHT, paper=tuple(NOISES), table="table-noise", preset="exact", timed=False),
    SummaryLine("eight noises, loop left out", EIGHT, preset="exact", timed=False, without_loop=True),
    SummaryLine("Chinese accent", "accents", paper=("Chinese",), table="table-accent"),
    SummaryLine("Chinese accent, loop left out", "accents", without_loop=True),
    *(SummaryLine(name, "languages", code, (name,), "table-languages") for code, name in LANGUAGES.items()),
    SummaryLine("seven languages, average", "languages", paper=tuple(LANGUAGES.values()), table="table-languages"),
    SummaryLine("seven languages, loop left out", "languages", without_loop=True),
)


@cache
def results(run: str, without: str = "", preset: str = "fastest") -> dict[str, LineResult]:
    """The lines of a run by method, each compared with source and beam."""
    if run == EIGHT:
        return of_efforts(run, without)
    made = document.build(read([RESULTS / run]), ("source", "beam"), [without] if without else [])
    (section,) = made.sections
    return {r.line.method: r for r in section.results if r.line.options.get("preset") == preset}


def of_efforts(run: str, without: str) -> dict[str, LineResult]:
    """The paper's setting among the efforts of a run, with the source of its own rows, and a beam of its width."""
    ((_, lines),) = group_lines(row for row in read([RESULTS / run]) if row.id != without).items()
    (adapted,) = (line for line in lines if line.steps == STEPS)
    (beam,) = (line for line in lines if (line.method, line.samples) == ("beam", adapted.samples))
    source = own_source(adapted)
    assert source is not None
    return {r.line.method: r for r in line_results([source, beam, adapted], ("source", "beam"))}


def cells(line: SummaryLine) -> tuple[str, ...]:
    """The line of the table."""
    of = results(line.run, LOOPS[line.run] if line.without_loop else "", line.preset)
    adapted = of["em-tok-b"]
    return (
        f"[{line.label}](results/{line.run}{'-without-loop' if line.without_loop else ''}.md)",
        str(sum(len(rows) for rows in _rows(adapted, line))),
        *(_rate(of[method], line) for method in METHODS),
        *(_difference(adapted, method, line) for method in ("source", "beam")),
        *(_time(adapted, of[method], line) for method in ("source", "beam")),
        _paper(line),
    )


def _rows(result: LineResult, line: SummaryLine) -> list:
    """The rows of each of the columns that the line of the table is about."""
    return [rows for column, rows in result.line.cells.items() if line.column in ("", column.key)]


def _rate(result: LineResult, line: SummaryLine) -> str:
    if line.column:
        (rate,) = (rate for column, rate in result.cells.items() if column.key == line.column)
    else:
        rate = result.average or next(iter(result.cells.values()))
    return percent(rate.wer.value)


def difference(result: LineResult, method: str, column: str = "") -> Interval:
    pair = result.paired[method]
    if column:
        return next(c.difference for key, c in pair.cells.items() if key.key == column)
    return pair.average.difference


def _difference(result: LineResult, method: str, line: SummaryLine) -> str:
    x = difference(result, method, line.column)
    return markup.difference(x.value, x.low, x.high)


def _time(result: LineResult, other: LineResult, line: SummaryLine) -> str:
    if not line.timed:
        return ""
    ours, theirs = (sum(row.seconds for rows in _rows(r, line) for row in rows) for r in (result, other))
    return f"{ours / theirs:.0f}"


def _paper(line: SummaryLine) -> str:
    if not line.paper:
        return ""
    numbers = []
    for method in METHODS:
        rates = [_paper_rate(line.table, name, method) for name in line.paper]
        mean = sum(rates) / len(rates)
        numbers.append("–" if math.isnan(mean) else f"{mean:.2f}")
    return " / ".join(numbers)


def _paper_rate(table: str, name: str, method: str) -> float:
    """NaN where the paper has none; it has beam search for six domains only."""
    prefix = {"table-noise": "LS-{}-10", "table-accent": "L2-{}", "table-languages": "MLS-{}"}.get(table, "")
    if method == "beam":
        return paper.table("table-beam")["rows"]["beam"].get(prefix.format(name), math.nan)
    return paper.table(table)["rows"][method][name]


def main() -> None:
    print("| " + " | ".join(HEAD) + " |")
    print("|---|" + "---:|" * (len(HEAD) - 1))
    for line in LINES:
        print("| " + " | ".join(cells(line)) + " |")


if __name__ == "__main__":
    main()
