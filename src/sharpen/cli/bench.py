"""`sharpen bench`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path

from sharpen.cli.values import DONE, positive, threads
from sharpen.errors import SharpenError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Times the efforts of sharpen transcribe, then the method, a straightforward implementation of it with "
        "transformers, and the machine's limit, in one run. Needs sharpen[transformers]."
    )
    parser.set_defaults(run=_bench)
    add = parser.add_argument
    add("--quick", action="store_true", help="one model, em-tok and greedy-em, two utterances: minutes")
    add("--models", metavar="NAME,NAME", help="the efforts are timed with each, the episodes with Whisper models; the "
        "ratios are those of the first of these (default: base,tiny.en; with --quick base)")  # fmt: skip
    add("--json", nargs="?", const="-", metavar="FILE", help="print JSON instead of tables, or also write it to FILE")
    add("--plot", metavar="FILE", help="draw the stages and the growth (needs sharpen[report])")
    add(
        "--data",
        metavar="DIR",
        help="folder with librispeech-test-other/manifest.jsonl (default: SHARPEN_DATA, else examples/ of a clone)",
    )
    add("--steps", type=positive, metavar="N", help="steps to time in each episode (default: 2; with --quick 1)")
    add(
        "--clips",
        type=positive,
        metavar="N",
        help="utterances of the main case and of the efforts (default: 8; with --quick 2)",
    )
    add("--threads", type=threads, metavar="N", help="CPU threads (default: torch's choice)")
    add("--quiet", "-q", action="store_true", help="no progress")


def _bench(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("transformers") is None:
        raise SharpenError(
            "bench compares with a reference that uses transformers, which is not installed: "
            "pip install 'sharpen[transformers]'"
        )
    import torch

    from sharpen.benchmarks.bench import QUICK, BenchPlan, check_models, run
    from sharpen.benchmarks.episodes import read_clips
    from sharpen.benchmarks.tables import as_text, check_plot, plot
    from sharpen.files import check_writable, write_text
    from sharpen.terminal import progress

    plan = QUICK if args.quick else BenchPlan()
    models = _models(args.models) if args.models else plan.models
    plan = replace(plan, models=models, steps=args.steps or plan.steps, clips=args.clips or plan.clips)
    file = args.json if args.json != "-" else None
    if file:
        check_writable(file)
    if args.plot:
        check_plot(Path(args.plot))
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = args.data or os.environ.get("SHARPEN_DATA")
    clips, utterances = read_clips(Path(folder) if folder else None, max(plan.clips, 2))
    check_models(plan.models)
    with progress(None, "cases", quiet=args.quiet) as bar:
        result = run(plan, clips, utterances, bar.set_text)
    made = json.dumps(result.as_json(), indent=1)
    print(made if args.json == "-" else as_text(result))
    if file:
        write_text(file, made + "\n")
    if args.plot:
        plot(result, Path(args.plot))
    return DONE


def _models(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise SharpenError(f"--models {text!r} has an empty name; expected names with commas between them")
    return names
