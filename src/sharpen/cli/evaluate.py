"""`sharpen evaluate`, and what `reproduce` and `tune` share with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sharpen.cli.values import DONE, FAILED, count, positive, seconds
from sharpen.errors import SharpenError
from sharpen.method.objectives import METHODS

if TYPE_CHECKING:
    from sharpen.evaluation.runs.evaluate import Engine
    from sharpen.evaluation.runs.plan import Part, Plan, Run
    from sharpen.evaluation.runs.rows import Row
    from sharpen.evaluation.runs.score import ErrorCounts
    from sharpen.evaluation.runs.store import Store

LISTED = 5  # of what a corpus left out


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Word error rates of methods on corpora; the same command goes on where the last run stopped."
    parser.set_defaults(run=_evaluate)
    add = parser.add_argument
    add("corpora", nargs="+", metavar="CORPUS", help="a manifest, a corpus's folder, or hf:ID[:config[:split]]")
    add("--methods", type=words, default=("source", "em-tok-b"), metavar="M,M",
        help=f"of {', '.join(METHODS)} (default: source,em-tok-b)")  # fmt: skip
    add_output(parser)
    add_corpora(parser)
    add = parser.add_argument_group("methods").add_argument
    add("--samples", type=wholes, default=(16,), metavar="G,G", help="hypotheses; the width of beam (default: 16)")
    add("--steps-at", "--steps", type=wholes, default=(10,), metavar="N,N",
        help="updates after which an answer is kept, all from one episode (default: 10)")  # fmt: skip
    add("--seeds", type=seeds, default=(0,), metavar="S,S", help="of methods that sample (default: 0)")
    add("--lr", type=float, default=1e-3, help="learning rate of AdamW (default: 1e-3)")
    add("--weight-decay", type=float, default=0.0, metavar="W", help="of AdamW (default: 0)")
    add_norms(add)
    add_machine(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="where the rows go, or already are: DIR/rows.jsonl")
    add("--limit", type=positive, metavar="N", help="only the first N in a fixed shuffled order (default: all)")
    add("--quiet", "-q", action="store_true", help="no progress bar")


def add_corpora(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("corpora").add_argument
    add("--layout", default="auto", help="of all corpora; auto tells by looking (default: auto)")
    add("--language", help="instead of what the corpus says")
    add("--domain", help="instead of what the corpus says: the column of the table")
    add("--skip-bad", action="store_true", help="go on without entries that cannot be used, and count them")
    add("--max-seconds", type=seconds, metavar="S", help="leave out longer ones (over 30 s none can be evaluated)")
    add("--noise", type=words, default=("clean",), metavar="N,N",
        help="mix in GS, or with --noise-dir AA AC BA CM MU NB SD TP VC; clean: nothing (default: clean)")  # fmt: skip
    add("--snr", type=numbers, metavar="DB,DB", help="signal-to-noise ratios of --noise (default: 10)")
    add("--noise-dir", metavar="DIR", help="the folder of noise clips")


def add_norms(add: Callable[..., object]) -> None:
    add("--adapt-norms", choices=("encoder+decoder", "encoder", "decoder"), default="encoder+decoder",
        help="which norms adapt (default: encoder+decoder)")  # fmt: skip
    add("--normalise", choices=("tokens", "group"), default="tokens",
        help="divide the loss by the group's tokens (default, the paper's) or by its size")  # fmt: skip


def add_machine(parser: argparse.ArgumentParser, model: bool = True) -> None:
    add = parser.add_argument_group("machine").add_argument
    if model:
        add("--model", default="base", help="directory or file, size name, or Hugging Face id (default: base)")
    add("--preset", choices=("exact", "fast", "fastest"), default="exact",
        help="fast: condensed padding, and bfloat16 where the hardware has it; fastest: sparse padding, measured with "
        "base and not fit for tiny (default: exact)")  # fmt: skip
    add("--guard", choices=("on", "off"), default="on",
        help="off: the adapted text is the answer even where it looks broken; rows keep both (default: on; "
        "off for reproduce, as in the paper)")  # fmt: skip
    add("--batch-size", type=positive, default=4, metavar="B", help="utterances side by side (default: 4)")
    add("--device", default="cpu", help="cpu, cuda, mps (default: cpu)")
    add("--threads", type=positive, metavar="N", help="CPU threads of each model (default: torch's choice)")
    add("--engine", choices=("local", "ray"), default="local", help="ray: several models at once (needs sharpen[ray])")
    add("--workers", type=positive, metavar="N", help="models that ray runs (default: 2)")
    add("--address", metavar="HOST:PORT", help="of a running ray cluster (default: start one on this machine)")


def _evaluate(args: argparse.Namespace) -> int:
    from sharpen.evaluation.runs.plan import plan, settings

    run = the_run(args, args.model)
    chosen = settings(
        args.methods, args.samples, args.steps_at, args.seeds,
        lr=args.lr, weight_decay=args.weight_decay, norms=args.adapt_norms, normalise=args.normalise,
    )  # fmt: skip
    work = plan(the_parts(args, args.corpora), chosen, run, args.limit)
    rows, code = carry_out([work], args)
    print(table(rows))
    print(f"{args.out}: {len(rows)} rows; sharpen report {args.out} makes the tables and figures", file=sys.stderr)
    return code


def the_parts(args: argparse.Namespace, corpora: Iterable[str]) -> list[Part]:
    """Every corpus under every condition that the arguments name."""
    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.evaluation.runs.plan import Part

    if args.noise == ("clean",) and (args.snr or args.noise_dir):
        raise SharpenError("--snr and --noise-dir say how noise is mixed in, and none is named: give --noise too")
    options = {name: getattr(args, name) for name in ("layout", "language", "domain", "skip_bad", "max_seconds")}
    parts = []
    for where in corpora:
        corpus = read_corpus(where, **options)
        for noise in args.noise:
            if noise == "clean":
                parts.append(Part(corpus))
            else:
                ratios = args.snr or (10.0,)
                parts += [Part(corpus.corrupted(noise, snr, args.noise_dir), noise, snr) for snr in ratios]
    return parts


def the_run(args: argparse.Namespace, model: str) -> Run:
    import torch

    from sharpen.evaluation.runs.plan import Run
    from sharpen.speech.presets import PRESETS

    return Run(
        model=model,
        batch_size=args.batch_size,
        threads=args.threads or torch.get_num_threads(),
        device=args.device,
        preset=args.preset,
        dtype=PRESETS[args.preset].dtype(args.device),
        guard=args.guard == "on",
    )


def the_engine(args: argparse.Namespace) -> Engine:
    if args.engine == "ray":
        from sharpen.evaluation.runs.distributed import Distributed

        return Distributed(args.workers or 2, args.address)
    if args.workers or args.address:
        raise SharpenError("--workers and --address are for Ray: give --engine ray too, or leave them out")
    from sharpen.evaluation.runs.evaluate import local

    return local


def carry_out(plans: Sequence[Plan], args: argparse.Namespace) -> tuple[list[Row], int]:
    """Computes what is missing of all plans into one folder; returns the rows with an answer, and the exit code."""
    from sharpen.evaluation.runs.evaluate import evaluate
    from sharpen.evaluation.runs.store import Store
    from sharpen.models.weights.load import locate

    rows: list[Row] = []
    with Store(args.out) as store:
        for plan in (plan for plan in plans[1:] if args.engine == "local" and plan.missing(store)):
            locate(plan.run.model)  # complains now, not after the hours of the models before it
        for plan in plans:
            with Progress(plan, store, args.quiet) as progress:
                rows += evaluate(plan, store, the_engine(args), progress.hear)
    failed = [f"{row.corpus} {row.id} ({row.method}): {row.failed}" for row in rows if row.failed]
    refused = list(dict.fromkeys(why for plan in plans for why in plan.refused))
    skipped = list(dict.fromkeys(why for plan in plans for why in plan.skipped))
    _list("left out", skipped, LISTED)
    _list("refused", refused)
    _list("failed, and tried again by the same command", failed)
    return [row for row in rows if not row.failed], FAILED if failed or refused else DONE


def _list(what: str, reasons: Sequence[str], most: int | None = None) -> None:
    if reasons:
        print(f"sharpen: {len(reasons)} {what}:", *reasons[:most], sep="\n  ", file=sys.stderr)
        if most is not None and len(reasons) > most:
            print(f"  and {len(reasons) - most} more", file=sys.stderr)


class Progress:
    """A bar with the word error rate so far of each method."""

    def __init__(self, plan: Plan, store: Store, quiet: bool) -> None:
        from tqdm import tqdm

        done = plan.rows(store)
        self.words: dict[str, ErrorCounts] = {}
        self.bar = tqdm(total=plan.size, initial=len(done), unit="row", disable=quiet, dynamic_ncols=True)
        self._count(done)

    def __enter__(self) -> Progress:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__(*error)

    def hear(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.failed:
                self.bar.write(f"sharpen: {row.corpus} {row.id}: {row.failed}", file=sys.stderr)
        self._count(rows)
        self.bar.update(len(rows))

    def _count(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if not row.failed:
                name = _label(row)
                self.words[name] = self.words[name] + row.errors if name in self.words else row.errors
        rates = (f"{name} {100 * counts.rate:.1f}" for name, counts in self.words.items())
        self.bar.set_postfix_str(", ".join(rates), refresh=False)


def _label(row: Row) -> str:
    size, steps = f" G{row.samples}" if row.samples > 1 else "", f" @{row.steps}" if row.steps else ""
    return row.method + size + steps


def table(rows: Sequence[Row]) -> str:
    """Word error rates in %, a line for each setting, a column for each domain."""
    from sharpen.evaluation.report import lines as results

    out = []
    for corpus, lines in results.group_lines(rows).items():
        columns = results.columns(lines)
        names = results.column_names(columns)
        title = f"{corpus}, WER %"
        width = max(len(title), *(len(line.label) for line in lines))
        wide = max(10, *(len(names[c]) + 2 for c in columns))
        out.append(title.ljust(width) + "".join(names[c].rjust(wide) for c in columns) + "utterances".rjust(12))
        for line in lines:
            cells = [_rate(line.cells.get(c, ())) for c in columns]
            out.append(line.label.ljust(width) + "".join(cell.rjust(wide) for cell in cells) + f"{line.utterances:12}")
    return "\n".join(out)


def _rate(rows: Sequence[Row]) -> str:
    from sharpen.evaluation.runs.score import ErrorCounts

    return f"{100 * sum((row.errors for row in rows), ErrorCounts()).rate:.2f}" if rows else "-"


def words(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing; expected words with commas between them")
    return found


def wholes(text: str) -> tuple[int, ...]:
    return tuple(positive(word) for word in words(text))


def seeds(text: str) -> tuple[int, ...]:
    return tuple(count(word) for word in words(text))


def numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in words(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers with commas between them") from error
