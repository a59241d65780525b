"""`sharpen evaluate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharpen import terminal
from sharpen.cli.runs import (
    add_corpora,
    add_machine,
    add_output,
    add_settings,
    execute,
    parts_from,
    run_from,
    settings_from,
)
from sharpen.cli.values import words
from sharpen.errors import SharpenError
from sharpen.speech.efforts import EFFORTS

if TYPE_CHECKING:
    from sharpen.evaluation.runs.rows import Row

DEFAULTS = {"method": ("source", "em-tok-b")}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Word error rates of methods on corpora. The same command resumes a run that was stopped."
    parser.set_defaults(run=_evaluate)
    parser.add_argument(
        "corpora", nargs="+", metavar="CORPUS", help="a manifest, a corpus's folder, or hf:ID[:config[:split]]"
    )
    add_output(parser)
    add_corpora(parser)
    add_settings(parser, DEFAULTS)
    parser.add_argument("--effort", type=words, default=(), metavar="E,E",
        help=f"efforts of `sharpen transcribe`, beside --methods or in their place: {', '.join(EFFORTS)}")  # fmt: skip
    add_machine(parser)


def _evaluate(args: argparse.Namespace) -> int:
    from sharpen.evaluation.runs.plan import plan
    from sharpen.evaluation.runs.settings import of_effort, settings

    made = [name for name in args.corpora if name.startswith("made:")]
    if made:
        raise SharpenError(f"{made[0]} is a task for language models; use `sharpen evaluate-text {made[0]}`")
    unknown = [name for name in args.effort if name not in EFFORTS]
    if unknown:
        raise SharpenError(f"--effort {unknown[0]}: expected {', '.join(EFFORTS)}")
    values = settings_from(args, {"method": ()} if args.effort else DEFAULTS)
    alone = [name for name in values if name != "method"] if not values["method"] else []
    if alone:
        flag = "--" + alone[0].replace("_", "-")
        raise SharpenError(
            f"{flag} changes nothing: an effort has its own settings; name methods, e.g. --methods em-tok-b {flag} …"
        )
    chosen = (*settings(values.pop("method"), **values), *map(of_effort, args.effort))
    work = plan(parts_from(args, args.corpora), chosen, run_from(args, args.model), args.limit)
    rows, code = execute([work], args)
    print(table(rows))
    print(f"{args.out}: {len(rows)} rows; sharpen report {args.out} makes the tables and figures", file=sys.stderr)
    return code


def table(rows: Sequence[Row]) -> str:
    """Word error rates in %, a line for each setting, a column for each domain."""
    from sharpen.evaluation.report.lines import column_names, columns, group_lines

    out = []
    for corpus, lines in group_lines(rows).items():
        domains = columns(lines)
        names = column_names(domains)
        table = [[f"{corpus}, WER %", *(names[domain] for domain in domains), "utterances"]]
        for line in lines:
            table.append([line.label, *(_rate(line.cells.get(d, ())) for d in domains), str(line.utterances)])
        out += terminal.columns(table, right=range(1, len(table[0])))
    return "\n".join(out)


def _rate(rows: Sequence[Row]) -> str:
    from sharpen.evaluation.runs.score import ErrorCounts

    return f"{100 * sum((row.errors for row in rows), ErrorCounts()).rate:.2f}" if rows else "-"
