"""Prints the table of docs/results/README.md about other steps than those of `--effort high`.

    python scripts/other_steps_table.py

Their rows are in results/other-steps, those of the efforts and of plain search, on the same utterances, in
results/frontier-*. As in the README's figure, utterances on which some setting repeats itself are left out.
A test compares the page with the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from effort_table import RUNS, markdown

from sharpen.evaluation.report.figures import Ids, shared_ids
from sharpen.evaluation.report.frontier import effort_names, search_name, setting_key
from sharpen.evaluation.report.lines import Line, column_of, group_lines, read
from sharpen.evaluation.report.markup import difference, percent
from sharpen.evaluation.report.statistics import Comparison, compare, rate
from sharpen.evaluation.runs.rows import Row
from sharpen.method import guard

RESULTS = Path(__file__).parent.parent / "results"
BEAM, WIDE, HIGH, PAPER = "beam 5, float32", "beam 16, float32", "high, float32", "paper, float32"
HEAD = ("condition", "utterances", "setting", "WER", "− beam 5", "helped / hurt", "− beam 16", "− high", "− paper")


def rows_of(folder: str) -> list[Row]:
    return read([RESULTS / folder])


def by_name(rows: Iterable[Row]) -> dict[str, Line]:
    """The lines of one corpus, each called by its effort, plain search or steps, and the type of its weights."""
    ((_, lines),) = group_lines(rows).items()
    efforts = effort_names()
    named = {}
    for line in lines:
        values = line.settings
        name = efforts.get(setting_key(line.method, values)) or search_name(line.method, values) or steps(line)
        named[f"{'beam 5' if name == 'plain' else name}, {values['dtype']}"] = line
    return named


def steps(line: Line) -> str:
    values = line.settings
    falling = ", falling" if values.get("schedule") == "linear" else ""
    where = f", gate {values['gate']:g}" if values.get("gate") else ", every window"
    answer = "" if values.get("decode") == "mbr" else ", greedy answer"
    return f"{values['steps']} steps of {values['lr']:g}{falling}, G = {values['samples']}{where}{answer}"


def paired(line: Line, other: Line, shared: Ids) -> Comparison:
    items, others = (one.items(only=shared) for one in (line, other))
    pair = compare(items, others)
    assert pair is not None
    assert pair.utterances == len(items) == len(others)
    return pair


def signed(pair: Comparison) -> str:
    return difference(pair.difference.value, pair.difference.low, pair.difference.high)


def errors() -> list[tuple[str, ...]]:
    """A line for each condition and way of adapting by several steps."""
    tried = rows_of("other-steps")
    return [line for condition, folder in RUNS.items() for line in of_condition(condition, rows_of(folder), tried)]


def of_condition(condition: str, efforts: Sequence[Row], tried: Sequence[Row]) -> list[tuple[str, ...]]:
    there = {(row.corpus, row.model, column_of(row)) for row in efforts}
    rows = [*efforts, *(row for row in tried if (row.corpus, row.model, column_of(row)) in there)]
    loops = {(row.domain, row.id) for row in rows if guard.repeats(row.text or "")}
    lines = by_name(row for row in rows if (row.domain, row.id) not in loops)
    shared = shared_ids(list(lines.values()))
    several = sorted(name for name in lines if lines[name].steps > 1 and name != PAPER)
    several.sort(key=HIGH.__ne__)  # what the others are compared with comes first
    made = []
    for name in several:
        against = {
            other: paired(lines[name], lines[other], shared)
            for other in (BEAM, WIDE, HIGH, PAPER)
            if other in lines and other != name
        }
        cells = {other: signed(pair) for other, pair in against.items()}
        counts = f"{against[BEAM].helped} / {against[BEAM].hurt}"
        wer = percent(rate(lines[name].items(only=shared)).value)
        compared = (cells[BEAM], counts, cells[WIDE], cells.get(HIGH, ""), cells.get(PAPER, ""))
        made.append((condition, str(len(shared)), name, wer, *compared))
    return made


def table() -> list[str]:
    """The lines of the table in markdown."""
    return markdown(HEAD, errors())


if __name__ == "__main__":
    print("\n".join(table()))
