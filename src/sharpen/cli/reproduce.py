"""`sharpen reproduce`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sharpen.cli.evaluate import add_machine, carry_out, seeds, the_run, words
from sharpen.cli.values import DONE, positive
from sharpen.errors import SharpenError

# The names stand here as well as in evaluation/reproduce.py: help must not wait for what that file imports.
NAMES = {
    "table-link": "prior methods and whether they minimise entropy",
    "table-noise": "ten noises",
    "table-accent": "six accents",
    "table-languages": "seven languages",
    "table-beam": "against beam search",
    "table-models": "sizes of Whisper",
    "table-cases": "utterances that adaptation changed",
    "fig-samples": "WER against G",
    "fig-samples-beam": "WER against G, over beams",
    "fig-steps": "WER against steps",
    "fig-time": "WER against time",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "A table or figure of the paper from your copies of its corpora; resumes like evaluate."
    parser.set_defaults(run=_reproduce)
    add = parser.add_argument
    names = "; ".join(f"{name}: {meaning}" for name, meaning in NAMES.items())
    add("name", choices=NAMES, metavar="NAME", help=names)
    add("--out", metavar="DIR", help="where the rows go, or already are (not needed for table-link)")
    add("--limit", type=positive, metavar="N", help="only the first N of each domain, in a fixed shuffled order")
    add("--seeds", type=seeds, default=(0,), metavar="S,S", help="of methods that sample (default: 0)")
    add("--quiet", "-q", action="store_true", help="no progress bar")
    add = parser.add_argument_group("corpora").add_argument
    add("--librispeech", type=Path, metavar="DIR", help="LibriSpeech test-other")
    add("--noise", type=Path, metavar="DIR", help="the noise clips of MS-SNSD; Gaussian noise needs none")
    add("--l2arctic", type=Path, metavar="DIR", help="L2-ARCTIC")
    add("--mls", type=Path, metavar="DIR", help="Multilingual LibriSpeech: a folder for each language")
    add("--corpus", metavar="CORPUS", help="any corpus, instead of those that are not given")
    add("--skip-bad", action="store_true", help="go on without entries that cannot be used, and count them")
    add(
        "--models", type=words, metavar="M,M", help="instead of the paper's: base, or for table-models tiny,small,large"
    )
    add_machine(parser, model=False)
    parser.set_defaults(guard="off")  # as in the paper


def _reproduce(args: argparse.Namespace) -> int:
    if args.name == "table-link":
        from sharpen.evaluation.report.theory import prior_work_table
        from sharpen.method.theory import link_rows

        print(prior_work_table(link_rows()))
        return DONE
    if args.out is None:
        raise SharpenError("reproduce needs a folder for its rows: --out DIR")
    from sharpen.evaluation.report import document as report
    from sharpen.evaluation.runs import recipes as reproduce
    from sharpen.evaluation.runs.plan import plan, settings

    recipe = reproduce.RECIPES[args.name]
    folders = reproduce.Folders(args.librispeech, args.noise, args.l2arctic, args.mls, args.corpus)
    parts, left_out = reproduce.parts(recipe, folders, args.skip_bad)
    for reason in left_out:
        print(f"sharpen: left out {reason}", file=sys.stderr)
    chosen = settings(recipe.methods, recipe.samples, recipe.at, args.seeds)
    plans = [plan(parts, chosen, the_run(args, model), args.limit) for model in args.models or recipe.models]
    rows, code = carry_out(plans, args)
    if not rows:
        return code
    print(report.as_markdown(report.build(rows)), end="")
    if args.name == "fig-time":
        for G, share in reproduce.saved(rows).items():
            print(f"G {G}: em-tok-b takes {100 * share:.0f} % less time than em-tok (the paper: nearly 35 % at G 16)")
    print(f"sharpen: sharpen report {args.out} --html FILE makes a page of it, with the figures", file=sys.stderr)
    return code
