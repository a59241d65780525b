"""What `evaluate`, `reproduce` and `tune` share: flags, the corpora they read, and running a plan."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sharpen.cli import machine
from sharpen.cli.flags import add_options, given
from sharpen.cli.values import DONE, FAILED, positive, seconds, several_decibels, several_numbers, words
from sharpen.errors import SharpenError
from sharpen.evaluation.runs.settings import decoding, varied
from sharpen.method.adaptation import Adaptation
from sharpen.speech.options import Options
from sharpen.terminal import progress

if TYPE_CHECKING:
    from sharpen.evaluation.runs.evaluate import Engine
    from sharpen.evaluation.runs.plan import Part, Plan, Run
    from sharpen.evaluation.runs.rows import Row
    from sharpen.evaluation.runs.score import ErrorCounts
    from sharpen.evaluation.runs.settings import Setting
    from sharpen.evaluation.runs.store import Store

LISTED = 5  # skipped entries of corpora that are printed
SHOWN = 5  # settings whose error rates are beside the bar; of more, the latest
SNR = 10.0  # dB, where noise is mixed in and no ratio given
ALIASES = {"method": "--methods", "steps": "--steps-at", "seed": "--seeds", "lr": "--lrs"}


def add_output(parser: argparse.ArgumentParser, required: bool = True) -> None:
    add = parser.add_argument
    add("--out", required=required, metavar="DIR", help="folder of the rows, new or of an earlier run: DIR/rows.jsonl")
    add("--limit", type=positive, metavar="N",
        help="only the first N of each corpus (reproduce: each domain), in a fixed shuffled order")  # fmt: skip
    add("--quiet", "-q", action="store_true", help="no progress bar")


def add_corpora(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("corpora").add_argument
    add("--layout", default="auto", help="of all corpora; auto looks at the folder (default: auto)")
    add("--language", help="in place of the corpus's own")
    add("--domain", help="in place of the corpus's own: the column of the table")
    add("--skip-bad", action="store_true", help="skip entries that cannot be used, and list them")
    add("--max-seconds", type=seconds, metavar="S", help="skip longer utterances (over 30 s none can be evaluated)")
    add("--noise", type=words, default=("clean",), metavar="N,N",
        help="mix in GS, or with --noise-dir AA AC BA CM MU NB SD TP VC; clean: nothing (default: clean)")  # fmt: skip
    add("--snr", type=several_decibels, metavar="DB,DB", help=f"signal-to-noise ratios of --noise (default: {SNR:g})")
    add("--noise-dir", metavar="DIR", help="folder of MS-SNSD's noise clips")
    add("--noise-draws", type=several_numbers, metavar="N,N",
        help="draws of --noise: 0 is the usual one, the others are other samples of it (default: 0)")  # fmt: skip


def add_settings(
    parser: argparse.ArgumentParser, defaults: Mapping[str, tuple[Any, ...]], skip: Collection[str] = ()
) -> None:
    """A flag for every option that a run can vary, each of which takes several values."""
    group = parser.add_argument_group("settings", "Each takes several values, with commas between them: --lr 1e-3,3e-3")
    common: dict[str, Any] = {"grid": True, "aliases": ALIASES, "defaults": {"padding": "the preset's", **defaults}}
    add_options(group, Adaptation(), skip=skip, **common)
    add_options(group, decoding("exact"), skip=(*skip, "seed"), **common)


def add_machine(parser: argparse.ArgumentParser, model: bool = True) -> None:
    group = parser.add_argument_group("machine")
    add = group.add_argument
    if model:
        add("--model", default="base", help=machine.MODEL)
    machine.add_machine(group)
    add("--batch-size", type=positive, default=4, metavar="N", help="utterances side by side (default: 4)")
    add("--engine", choices=("local", "ray"), default="local", help="ray: several models at once (needs sharpen[ray])")
    add("--workers", type=positive, metavar="N", help="models that ray runs (default: 2)")
    add("--address", metavar="HOST:PORT", help="of a running ray cluster (default: start one on this machine)")


def settings_from(args: argparse.Namespace, defaults: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values of every setting that is given or has a default of its own in this command."""
    values = {**given(args, Options), **given(args, Adaptation)}
    return {**defaults, **{name: value for name, value in values.items() if name == "method" or name in varied()}}


def parts_from(args: argparse.Namespace, corpora: Iterable[str]) -> list[Part]:
    """Every corpus under every noise that the arguments name."""
    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.evaluation.runs.plan import Part

    of_noise = {"--snr": args.snr, "--noise-dir": args.noise_dir, "--noise-draws": args.noise_draws}
    lone = [flag for flag, value in of_noise.items() if value]
    if args.noise == ("clean",) and lone:
        raise SharpenError(f"{lone[0]} needs a noise, e.g. --noise GS")
    options = {name: getattr(args, name) for name in ("layout", "domain", "language", "skip_bad", "max_seconds")}
    noises = [noise if noise == "clean" else noise.upper() for noise in args.noise]
    parts = []
    for where in corpora:
        corpus = read_corpus(where, **options)
        for noise in noises:
            if noise == "clean":
                parts.append(Part(corpus))
            else:
                drawn = product(args.snr or (SNR,), args.noise_draws or (0,))
                parts += [
                    Part(corpus.corrupted(noise, snr, args.noise_dir, draw=draw), noise, snr, draw)
                    for snr, draw in drawn
                ]
    return parts


def run_from(args: argparse.Namespace, model: str) -> Run:
    import torch

    from sharpen.evaluation.runs.plan import Run

    device, dtype = machine.device_and_dtype(args)
    return Run(
        model=model,
        batch_size=args.batch_size,
        threads=args.threads or torch.get_num_threads(),
        device=device,
        preset=args.preset,
        dtype=dtype,
    )


def engine_from(args: argparse.Namespace) -> Engine:
    if args.engine == "ray":
        from sharpen.evaluation.runs.distributed import Distributed

        return Distributed(args.workers or 2, args.address)
    if args.workers or args.address:
        raise SharpenError(f"{'--workers' if args.workers else '--address'} needs --engine ray")
    from sharpen.evaluation.runs.evaluate import local

    return local


def execute(plans: Sequence[Plan], args: argparse.Namespace) -> tuple[list[Row], int]:
    """Computes what is missing of all plans into one folder; returns the rows with an answer, and the exit code."""
    from sharpen.evaluation.runs.evaluate import evaluate
    from sharpen.evaluation.runs.store import Store
    from sharpen.models.weights.load import locate

    rows: list[Row] = []
    with Store(args.out) as store:
        for plan in (plan for plan in plans[1:] if args.engine == "local" and plan.missing(store)):
            locate(plan.run.model)  # a missing model is reported before hours are spent on the others
        for plan in plans:
            with RunProgress(plan, store, args.quiet) as progress:
                rows += evaluate(plan, store, engine_from(args), progress.on_rows)
    failed = [f"{row.corpus} {row.id} ({row.method}): {row.failed}" for row in rows if row.failed]
    refused = list(dict.fromkeys(why for plan in plans for why in plan.refused))
    skipped = list(dict.fromkeys(why for plan in plans for why in plan.skipped))
    _list("skipped", skipped, LISTED)
    _list("refused", refused)
    _list("failed; the same command tries them again", failed)
    return [row for row in rows if not row.failed], FAILED if failed or refused else DONE


def _list(what: str, reasons: Sequence[str], most: int | None = None) -> None:
    if reasons:
        print(f"sharpen: {len(reasons)} {what}:", *reasons[:most], sep="\n  ", file=sys.stderr)
        if most is not None and len(reasons) > most:
            print(f"  and {len(reasons) - most} more", file=sys.stderr)


class RunProgress:
    """A bar with the word error rate of each setting so far."""

    def __init__(self, plan: Plan, store: Store, quiet: bool) -> None:
        done = plan.rows(store)
        self.words: dict[str, ErrorCounts] = {}
        self.varied = _varied([batch.setting for batch in plan.batches], plan.run.preset)
        self.bar = progress(plan.size, "rows", done=len(done), quiet=quiet)
        self._count(done)

    def __enter__(self) -> RunProgress:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.__exit__(*error)

    def on_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.failed:
                self.bar.write(f"sharpen: {row.corpus} {row.id}: {row.failed}")
        self._count(rows)
        self.bar.update(len(rows))

    def _count(self, rows: Sequence[Row]) -> None:
        latest = {}
        for row in rows:
            if not row.failed:
                name = self._label(row)
                self.words[name] = self.words[name] + row.errors if name in self.words else row.errors
                latest[name] = self.words[name]
        shown = self.words if len(self.words) <= SHOWN else latest
        rates = [f"{name} {100 * counts.rate:.1f}" for name, counts in shown.items()]
        self.bar.set_text("WER " + ", ".join(rates[-SHOWN:]) if rates else "")

    def _label(self, row: Row) -> str:
        from sharpen.evaluation.report.lines import said

        values = {"samples": row.samples, "steps": row.steps, **row.options}
        return " ".join([row.method, *(said(name, values[name]) for name in self.varied if values.get(name))])


def _varied(settings: Iterable[Setting], preset: str) -> list[str]:
    """The names of what differs between the settings of a run."""
    values: dict[str, set[str]] = {}
    every = [{"samples": s.samples, "steps": s.at, **s.recorded(preset)} for s in dict.fromkeys(settings) if s.adapts]
    for name in dict.fromkeys(name for one in every for name in one):
        values[name] = {json.dumps(one.get(name)) for one in every}
    return ["steps", *(name for name, different in values.items() if len(different) > 1 and name != "steps")]
