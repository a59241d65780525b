"""`sharpen evaluate-text`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, get_args

from sharpen import terminal
from sharpen.cli.flags import add_options, given
from sharpen.cli.generate import MODEL
from sharpen.cli.values import DONE, FAILED, positive, threads, words
from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.speech.presets import Dtype, default_device
from sharpen.text.options import Generation

if TYPE_CHECKING:
    from sharpen.text.generate import LanguageModel

OWN = ("method", "explain", "greedy_at")  # what this command decides itself


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Accuracy of methods on tasks with known answers. The same command resumes a run that was stopped."
    )
    parser.set_defaults(run=_evaluate_text)
    add = parser.add_argument
    add("tasks", nargs="+", metavar="TASK",
        help='JSONL of {"id", "prompt", "answer"} and, for multiple choice, "choices"; or made:arithmetic, copying, '
        "sorting, reading or reading-choice, with :tune or :test")  # fmt: skip
    add("--out", required=True, metavar="DIR", help="where the rows are, and go")
    add("--model", default="smollm2-135m", help=MODEL)
    add("--methods", type=words, default=("source", "em-tok-b"), metavar="M,M",
        help="vote (the most frequent of G samples) or those of generate (default: source,em-tok-b)")  # fmt: skip
    add("--scorer", help="exact, number, choice, or FILE.py:FUNCTION (default: the task's own)")
    add("--limit", type=positive, metavar="N", help="items of each task (default: all)")
    add("--against", default="source", metavar="M", help="method to compare with, paired (default: source)")
    add("--quiet", "-q", action="store_true", help="no progress bar")
    add_options(parser.add_argument_group("adaptation"), Adaptation(), skip=OWN)
    add_options(parser.add_argument_group("answer"), Generation(), skip=("seed", "votes"))
    group = parser.add_argument_group("machine")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto, which never takes mps)")
    group.add_argument("--dtype", choices=get_args(Dtype), default="float32", help="of the weights (default: float32)")
    group.add_argument("--threads", type=threads, default=1, metavar="N", help="CPU threads (default: 1)")


def _evaluate_text(args: argparse.Namespace) -> int:
    from sharpen.evaluation.runs.store import Store
    from sharpen.evaluation.text.run import TextRun, evaluate_text
    from sharpen.evaluation.text.table import tables
    from sharpen.evaluation.text.tasks import read_task

    answering = given(args, Generation)
    if "end_with" in answering:  # a newline is hard to type
        answering["end_with"] = answering["end_with"].replace("\\n", "\n")
    run = TextRun(
        model=args.model,
        tasks=tuple(map(read_task, args.tasks)),
        methods=tuple(dict.fromkeys(args.methods)),
        adapt=Adaptation(**given(args, Adaptation)),
        options=Generation(**{**answering, "seed": 0}),
        scorer=args.scorer,
        threads=args.threads,
        limit=args.limit,
    )
    if len({task.name for task in run.tasks}) < len(run.tasks):
        raise SharpenError("two tasks have the same name; rename one of the files")

    def load() -> LanguageModel:
        import torch

        from sharpen.text.generate import load_text

        torch.set_num_threads(args.threads)
        device = default_device() if args.device == "auto" else args.device
        return load_text(args.model, device=device, dtype=args.dtype)

    total = sum(len(task.items[: run.limit]) for task in run.tasks) * len(run.methods)
    with Store(args.out) as store, terminal.progress(total, "items", quiet=args.quiet) as bar:
        rows = evaluate_text(run, store, load, bar.update)
    for task, lines in tables(rows, args.against).items():
        print(task)
        print(*terminal.columns(lines, right=range(1, len(lines[0]))), sep="\n")
    failed = [row for row in rows if row.failed]
    for row in failed[:10]:
        print(f"sharpen: {row.corpus} {row.id} by {row.method}: {row.failed}", file=sys.stderr)
    print(f"{args.out}: {len(rows) - len(failed)} rows", file=sys.stderr)
    return FAILED if failed else DONE
