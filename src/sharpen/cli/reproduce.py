"""`sharpen reproduce`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sharpen.cli.runs import add_machine, add_output, add_settings, execute, run_from, settings_from
from sharpen.cli.values import DONE, words
from sharpen.errors import SharpenError

LINK = "table-link"  # the one table without speech
# The names are here as well as in evaluation/runs/recipes.py: help must not wait for the imports of that file.
NAMES = {
    LINK: "prior methods and whether they minimise entropy",
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


DEFAULTS = {"guard": (False,)}  # as in the paper
FIXED = ("method", "samples", "steps")  # by the recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "A table or figure of the paper from your copies of its corpora; resumes like evaluate."
    parser.set_defaults(run=_reproduce)
    add = parser.add_argument
    names = "; ".join(f"{name}: {meaning}" for name, meaning in NAMES.items())
    add("name", choices=NAMES, metavar="NAME", help=names)
    add_output(parser, required=False)
    add = parser.add_argument_group("corpora").add_argument
    add("--librispeech", type=Path, metavar="DIR", help="LibriSpeech test-other")
    add("--noise-dir", type=Path, metavar="DIR", help="folder of MS-SNSD's noise clips; Gaussian noise needs none")
    add("--l2arctic", type=Path, metavar="DIR", help="L2-ARCTIC")
    add("--mls", type=Path, metavar="DIR", help="Multilingual LibriSpeech: a folder for each language")
    add("--corpus", metavar="CORPUS", help="any corpus, in place of those that are not given")
    add("--skip-bad", action="store_true", help="skip entries that cannot be used, and list them")
    add("--models", type=words, metavar="M,M", help="in place of the paper's: base; for table-models tiny,small,large")
    add_settings(parser, DEFAULTS, skip=FIXED)
    add_machine(parser, model=False)


def _reproduce(args: argparse.Namespace) -> int:
    if args.name == LINK:
        from sharpen.evaluation.report.theory import prior_work_table
        from sharpen.method.theory import link_rows

        print(prior_work_table(link_rows()))
        return DONE
    if args.out is None:
        raise SharpenError("reproduce needs a folder for its rows: --out DIR")
    from sharpen.evaluation.report import document
    from sharpen.evaluation.runs import recipes
    from sharpen.evaluation.runs.plan import plan
    from sharpen.evaluation.runs.settings import settings

    recipe = recipes.RECIPES[args.name]
    folders = recipes.Folders(args.librispeech, args.noise_dir, args.l2arctic, args.mls, args.corpus)
    parts, left_out = recipes.parts(recipe, folders, args.skip_bad)
    for reason in left_out:
        print(f"sharpen: left out {reason}", file=sys.stderr)
    values = settings_from(args, DEFAULTS)
    chosen = settings(recipe.methods, samples=recipe.samples, steps=recipe.at, **values)
    plans = [plan(parts, chosen, run_from(args, model), args.limit) for model in args.models or recipe.models]
    rows, code = execute(plans, args)
    if not rows:
        return code
    print(document.as_markdown(document.build(rows)), end="")
    if args.name == "fig-time":
        for G, share in recipes.saved(rows).items():
            print(f"G {G}: em-tok-b takes {100 * share:.0f} % less time than em-tok (the paper: nearly 35 % at G 16)")
    print(f"sharpen: sharpen report {args.out} --html FILE makes a page of it, with the figures", file=sys.stderr)
    return code
