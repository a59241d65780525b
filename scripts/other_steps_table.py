"""Prints the tables of docs/results/README.md about other steps than those of `--effort high`.

    python scripts/other_steps_table.py

Their rows are in results/other-steps, those of the efforts and of plain search of the same days, on the same
utterances, in results/earlier: before float32 went through oneDNN. Utterances on which some setting repeats itself are
left out, as in the README's figure.
results/noise-draws has a second draw of the Gaussian noise, on which the settings took turns with the paper's, so that
their seconds can be compared; so can those of results/every-window, from after oneDNN. results/every-noises is of those
days, too, and compared with the efforts' second run. A test compares the page with the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from effort_table import RUNS, earlier, markdown
from effort_table import rows as efforts_of

from sharpen.evaluation.report.figures import Ids, shared_ids
from sharpen.evaluation.report.frontier import effort_names, search_name, setting_key
from sharpen.evaluation.report.lines import Column, Line, column_of, columns, group_lines, read
from sharpen.evaluation.report.markup import difference, percent
from sharpen.evaluation.report.statistics import Comparison, compare, rate
from sharpen.evaluation.runs.rows import Row
from sharpen.method import guard

RESULTS = Path(__file__).parent.parent / "results"
GAUSSIAN, EIGHT = "Gaussian noise", "eight other noises"
BEAM, WIDE, NORMAL = "beam 5, float32", "beam 16, float32", "normal, float32"
HIGH, PAPER = "high, float32", "paper, float32"
EVERY = "4 steps of 0.0025, G = 16, every window, bfloat16"
HEAD = ("condition", "utterances", "setting", "WER", "− beam 5", "helped / hurt", "− beam 16", "− high", "− paper")
DRAWS_HEAD = ("setting", "against", "draw 0", "draw 1", "both", "helped / hurt")
TIME_HEAD = ("setting", "utterances", "seconds", "part of the paper's")


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


def without_loops(rows: Sequence[Row]) -> list[Row]:
    """Those of the utterances on which no setting repeats itself."""
    loops = {(column_of(row), row.id) for row in rows if guard.repeats(row.text or "")}
    return [row for row in rows if (column_of(row), row.id) not in loops]


def steps(line: Line) -> str:
    values = line.settings
    falling = ", falling" if values.get("schedule") == "linear" else ""
    where = f", gate {values['gate']:g}" if values.get("gate") else ", every window"
    answer = {"mbr": "", "judged": ", judged by the source"}.get(values.get("decode", ""), ", greedy answer")
    many = "steps" if values["steps"] > 1 else "step"
    return f"{values['steps']} {many} of {values['lr']:g}{falling}, G = {values['samples']}{where}{answer}"


def paired(line: Line, other: Line, shared: Ids, over: Sequence[Column] | None = None) -> Comparison:
    items, others = (one.items(over, only=shared) for one in (line, other))
    pair = compare(items, others)
    assert pair is not None
    assert pair.utterances == len(items) == len(others)
    return pair


def signed(pair: Comparison) -> str:
    return difference(pair.difference.value, pair.difference.low, pair.difference.high)


def errors() -> list[tuple[str, ...]]:
    """A line for each condition and way of adapting but `normal` and the paper's."""
    tried = rows_of("other-steps")
    return [line for condition in RUNS for line in of_condition(condition, earlier(condition), tried)]


def of_condition(condition: str, efforts: Sequence[Row], tried: Sequence[Row]) -> list[tuple[str, ...]]:
    there = {(row.corpus, row.model, column_of(row)) for row in efforts}
    rows = [*efforts, *(row for row in tried if (row.corpus, row.model, column_of(row)) in there)]
    lines = by_name(without_loops(rows))
    shared = shared_ids(list(lines.values()))
    adapting = sorted(name for name in lines if lines[name].steps and name not in (NORMAL, PAPER))
    adapting.sort(key=HIGH.__ne__)  # what the others are compared with comes first
    made = []
    for name in adapting:
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


def draws() -> list[tuple[str, ...]]:
    """`high`, and the same in every window in bfloat16, against others in each draw of the noise and in both."""
    again = rows_of("noise-draws")
    kinds = {(row.corpus, row.model, row.domain) for row in again}
    rows = [*again, *earlier(GAUSSIAN), *rows_of("other-steps")]
    rows = [row for row in rows if (row.corpus, row.model, row.domain) in kinds]
    lines = by_name(without_loops(rows))
    among = [lines[name] for name in (BEAM, WIDE, HIGH, EVERY, PAPER)]
    shared, over = shared_ids(among), columns(among)
    assert [column.draw for column in over] == [0, 1]
    made = []
    for name, others in {HIGH: (BEAM, WIDE, PAPER), EVERY: (BEAM, WIDE, HIGH, PAPER)}.items():
        for other in others:
            pairs = [paired(lines[name], lines[other], shared, some) for some in ([over[0]], [over[1]], over)]
            counts = f"{pairs[-1].helped} / {pairs[-1].hurt}"
            made.append((name, other.partition(",")[0], *map(signed, pairs), counts))
    return made


def seconds(folder: str) -> list[tuple[str, ...]]:
    """A line for each setting that was timed, on the utterances that all have, the fastest first."""
    lines = by_name(rows_of(folder))
    shared = {name for _, name in shared_ids(list(lines.values()))}
    spent = {
        name: sum(row.seconds for row in line.rows if row.id in shared) / len(shared) for name, line in lines.items()
    }
    return [
        (name, str(len(shared)), f"{spent[name]:.1f}", f"1 / {spent[PAPER] / spent[name]:.1f}")
        for name in sorted(spent, key=lambda name: spent[name])
    ]


def in_eight_noises() -> list[tuple[str, ...]]:
    """`high`, and the same in every window in bfloat16, both after oneDNN."""
    return of_condition(EIGHT, efforts_of(EIGHT), rows_of("every-noises"))


def table() -> list[str]:
    """The lines of the five tables in markdown."""
    times = ((TIME_HEAD, seconds(folder)) for folder in ("noise-draws", "every-window"))
    tables = ((HEAD, errors()), (DRAWS_HEAD, draws()), *times, (HEAD, in_eight_noises()))
    return [line for head, lines in tables for line in (*markdown(head, lines), "")]


if __name__ == "__main__":
    print("\n".join(table()).strip())
