"""`sharpen theory`."""

from __future__ import annotations

import argparse
import json

from sharpen.cli.values import DONE


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Enumerates a small model and compares each objective's expected gradient with the entropy's."
    parser.set_defaults(run=_theory)
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw bias and variance (needs sharpen[report])")
    parser.add_argument("--link-table", action="store_true", help="the paper's table of prior methods, measured")


def _theory(args: argparse.Namespace) -> int:
    from sharpen.evaluation.report.theory import estimates_json, estimates_table, plot_estimates, prior_work_table
    from sharpen.method import theory

    estimates = theory.report()
    if args.plot:
        plot_estimates(estimates, args.plot)
    if args.link_table:
        print(prior_work_table(theory.link_rows(estimates)))
    elif args.json:
        print(json.dumps(estimates_json(estimates), indent=1))
    else:
        print(estimates_table(estimates))
        print(f"\nOne small random model (seed {theory.SEED}); docs/theory.md has the ranges over twelve of them.")
    return DONE
