"""`sharpen evaluate-text`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from sharpen import terminal
from sharpen.cli import language
from sharpen.cli.flags import add_options, check_adaptation, given
from sharpen.cli.values import DONE, FAILED, positive, words
from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS
from sharpen.text.options import Generation, check_search

if TYPE_CHECKING:
    from sharpen.evaluation.text.run import TextRun

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
    language.add_model(parser)
    add("--methods", type=words, default=("source", "em-tok-b"), metavar="M,M",
        help="vote (the most frequent of G samples) or those of generate (default: source,em-tok-b)")  # fmt: skip
    add("--scorer", help="exact, number, choice, or FILE.py:FUNCTION (default: the task's own)")
    add("--limit", type=positive, metavar="N", help="items of each task (default: all)")
    add("--against", default="source", metavar="M", help="method to compare with, paired (default: source)")
    add("--quiet", "-q", action="store_true", help="no progress bar")
    add_options(parser.add_argument_group("adaptation"), Adaptation(), skip=OWN)
    language.add_answer(parser, skip=("votes",), cores=1)


def make_run(args: argparse.Namespace) -> TextRun:
    """What the command line asks for; refuses flags that none of its methods uses."""
    from sharpen.evaluation.text.run import VOTE, TextRun
    from sharpen.evaluation.text.tasks import read_task

    own, answering = given(args, Adaptation), language.answering(args)
    votes, decode = VOTE in args.methods, answering.get("decode", "greedy")
    temperature = answering.get("temperature", 1.0) if votes else 1.0
    if votes and decode != "sample":  # the temperature is that of the votes alone
        answering.pop("temperature", None)
    if decode != "vote":  # which is refused as a whole
        check_search(answering, decode)
    run = TextRun(
        model=args.model,
        tasks=tuple(map(read_task, args.tasks)),
        methods=tuple(dict.fromkeys(args.methods)),
        adapt=Adaptation(**own),
        options=Generation(**answering),
        vote_temperature=temperature,
        scorer=args.scorer,
        threads=args.threads,
        limit=args.limit,
    )
    if len({task.name for task in run.tasks}) < len(run.tasks):
        raise SharpenError("two tasks have the same name; rename one of the files")
    # A vote has as many samples as a beam has of width.
    rows = [METHODS["beam" if method == VOTE else method] for method in run.methods]
    check_adaptation(own, rows, "--methods source,em-tok-b")
    return run


def _evaluate_text(args: argparse.Namespace) -> int:
    from sharpen.evaluation.runs.store import Store
    from sharpen.evaluation.text.run import evaluate_text
    from sharpen.evaluation.text.table import tables

    run = make_run(args)
    total = sum(len(task.items[: run.limit]) for task in run.tasks) * len(run.methods)
    with Store(args.out) as store, terminal.progress(total, "items", quiet=args.quiet) as bar:
        rows = evaluate_text(run, store, lambda: language.load(args), bar.update)
    for task, lines in tables(rows, args.against).items():
        print(task)
        print(*terminal.columns(lines, right=range(1, len(lines[0]))), sep="\n")
    failed = [row for row in rows if row.failed]
    for row in failed[:10]:
        print(f"sharpen: {row.corpus} {row.id} by {row.method}: {row.failed}", file=sys.stderr)
    print(
        f"{args.out}: {len(rows) - len(failed)} rows; sharpen report {args.out} makes the tables and figures",
        file=sys.stderr,
    )
    return FAILED if failed else DONE
