"""`sharpen tune`."""

from __future__ import annotations

import argparse
import sys

from sharpen.cli.evaluate import (
    add_corpora,
    add_machine,
    add_output,
    carry_out,
    numbers,
    the_parts,
    the_run,
    wholes,
)
from sharpen.cli.values import FAILED, count
from sharpen.method.objectives import METHODS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "WER over a grid of learning rates, steps and G, on speech that no result is reported on."
    parser.set_defaults(run=_tune)
    add = parser.add_argument
    add("corpora", nargs="+", metavar="CORPUS", help="held-out speech: a manifest, a corpus's folder, or hf:ID")
    add("--method", choices=[name for name, row in METHODS.items() if row.search], default="em-tok-b", metavar="NAME",
        help="what to tune (default: em-tok-b)")  # fmt: skip
    add("--lrs", type=numbers, default=(3e-4, 1e-3, 3e-3), metavar="L,L",
        help="learning rates (default: 3e-4,1e-3,3e-3)")  # fmt: skip
    add("--steps", type=wholes, default=(3, 10), metavar="N,N", help="updates (default: 3,10)")
    add("--samples", type=wholes, default=(4, 16), metavar="G,G", help="hypotheses (default: 4,16)")
    add("--seed", type=count, default=0, help="of methods that sample (default: 0)")
    add("--plot", metavar="FILE", help="draw it (needs sharpen[report])")
    add_output(parser)
    add_corpora(parser)
    add_machine(parser)


def _tune(args: argparse.Namespace) -> int:
    from sharpen.evaluation.report import tuning as tune
    from sharpen.evaluation.runs.plan import plan

    chosen = tune.grid(args.method, args.lrs, args.steps, args.samples, args.seed)
    work = plan(the_parts(args, args.corpora), chosen, the_run(args, args.model), args.limit)
    rows, code = carry_out([work], args)
    adapted = [row for row in rows if row.steps]
    if not adapted:
        print("sharpen: no utterance has an answer", file=sys.stderr)
        return FAILED
    found = tune.cells(adapted)
    print(tune.table(found, [row for row in rows if row.method == "source"]))
    if args.plot:
        tune.plot(found, args.plot, args.method)
    return code
