"""`sharpen bench`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from sharpen.cli.values import DONE, positive


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times the method against a straightforward version of it and against what the machine allows, within one run."
    )
    parser.set_defaults(run=_bench)
    add = parser.add_argument
    add("--quick", action="store_true", help="one model, em-tok and greedy-em, two utterances: under five minutes")
    add("--models", metavar="NAME,NAME", help="the first is the ratios' (default: base,tiny.en; base with --quick)")
    add("--json", nargs="?", const="-", metavar="FILE", help="one object instead of tables, or into a file beside them")
    add("--plot", metavar="FILE", help="draw where the time goes (needs sharpen[report])")
    add(
        "--data",
        metavar="DIR",
        help="folder with librispeech-test-other/manifest.jsonl (default: SHARPEN_DATA, else a clone's examples/)",
    )
    add("--steps", type=positive, metavar="N", help="steps to time for each episode (default: 2; 1 with --quick)")
    add("--clips", type=positive, metavar="N", help="utterances of the main case (default: 8; 2 with --quick)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: torch's choice)")


def _bench(args: argparse.Namespace) -> int:
    import torch
    from tqdm import tqdm

    from sharpen.benchmarks.bench import QUICK, Plan, run
    from sharpen.benchmarks.episodes import read_clips
    from sharpen.benchmarks.tables import as_text, plot

    if args.threads:
        torch.set_num_threads(args.threads)
    plan = QUICK if args.quick else Plan()
    models = tuple(args.models.split(",")) if args.models else plan.models
    plan = replace(plan, models=models, steps=args.steps or plan.steps, clips=args.clips or plan.clips)
    folder = args.data or os.environ.get("SHARPEN_DATA")
    clips, what = read_clips(Path(folder) if folder else None, max(plan.clips, 2))
    with tqdm(total=0, bar_format="{elapsed} {desc}", file=sys.stderr) as bar:
        outcome = run(plan, clips, what, bar.set_description_str)
    if args.plot:
        plot(outcome, Path(args.plot))
    found = json.dumps(outcome.as_json(), indent=1)
    if args.json and args.json != "-":
        Path(args.json).write_text(found + "\n")
    print(found if args.json == "-" else as_text(outcome))
    return DONE
