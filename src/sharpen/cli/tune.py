"""`sharpen tune`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

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
from sharpen.cli.values import FAILED
from sharpen.method.objectives import METHODS

DEFAULTS: dict[str, tuple[Any, ...]] = {"lr": (3e-4, 1e-3, 3e-3), "steps": (3, 10), "samples": (4, 16)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "WER over a grid of settings, on speech that no result is reported on."
    parser.set_defaults(run=_tune)
    add = parser.add_argument
    add("corpora", nargs="+", metavar="CORPUS", help="held-out speech: a manifest, a corpus's folder, or hf:ID")
    add("--method", choices=[name for name, row in METHODS.items() if row.search], default="em-tok-b", metavar="NAME",
        help="the adapting method to tune (default: em-tok-b)")  # fmt: skip
    add("--plot", metavar="FILE", help="draw it (needs sharpen[report])")
    add_output(parser)
    add_corpora(parser)
    add_settings(parser, DEFAULTS, skip=("method",))
    add_machine(parser)


def _tune(args: argparse.Namespace) -> int:
    from sharpen.evaluation.report import tuning
    from sharpen.evaluation.runs.plan import plan

    values = settings_from(args, DEFAULTS)
    values.pop("method")
    chosen = tuning.grid(args.method, **values)
    work = plan(parts_from(args, args.corpora), chosen, run_from(args, args.model), args.limit)
    rows, code = execute([work], args)
    adapted = [row for row in rows if row.method != "source"]
    if not adapted:
        print("sharpen: no utterance has an answer", file=sys.stderr)
        return FAILED
    points = tuning.points(adapted)
    print(tuning.table(points, [row for row in rows if row.method == "source"]))
    if args.plot:
        tuning.plot(points, args.plot, args.method)
    return code
