"""`sharpen corpus`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from sharpen.cli.values import DONE, decibels, positive, seconds, words
from sharpen.terminal import columns, progress

if TYPE_CHECKING:
    from sharpen.evaluation.corpora.corpus import Corpus

LISTED = 10  # skipped entries that are printed


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Looks into corpora, and builds corrupted LibriSpeech."
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _show_arguments(commands.add_parser("show", help="domains, hours and speakers of a corpus"))
    _ls_c_arguments(commands.add_parser("ls-c", help="LibriSpeech in ten noises, as files"))


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Counts what a corpus holds."
    parser.set_defaults(run=_show)
    add = parser.add_argument
    add("where", metavar="WHERE", help="a manifest, a corpus's folder, or hf:ID[:config[:split]]")
    add("--layout", default="auto", metavar="NAME",
        help="manifest, common-voice, mls, l2-arctic, librispeech or folder (default: auto)")  # fmt: skip
    add("--language", metavar="CODE", help="in place of the corpus's own")
    add("--domain", metavar="NAME", help="in place of the corpus's own")
    add("--max-seconds", type=seconds, metavar="S", help="skip longer utterances")
    add("--skip-bad", action="store_true", help="skip entries that cannot be used, and list them")
    add("--json", action="store_true", help="an object instead of a table, with every skipped entry")


def _ls_c_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Writes OUT/NOISE/manifest.jsonl and its audio for each noise. The same command resumes."
    parser.set_defaults(run=_ls_c)
    add = parser.add_argument
    add("--librispeech", required=True, metavar="DIR", help="LibriSpeech, or any corpus that `corpus show` can read")
    add("--noise", "--domains", type=words, metavar="N,N",
        help="only these (default: AA,AC,BA,CM,GS,MU,NB,SD,TP,VC)")  # fmt: skip
    add("--noise-dir", metavar="DIR", help="folder of MS-SNSD's clips (AirConditioner_6.wav …); GS needs none")
    add("--snr", type=decibels, required=True, metavar="DB", help="signal-to-noise ratio")
    add("--out", required=True, metavar="DIR", help="where to write")
    add("--limit", type=positive, metavar="N", help="only the first N of a fixed random order")
    add("--max-seconds", type=seconds, default=20.0, metavar="S",
        help="skip longer utterances (default: 20, as published results on corrupted LibriSpeech do)")  # fmt: skip
    add("--snr-rule", choices=("true", "ms-snsd-legacy"), default="true",
        help="ms-snsd-legacy: as MS-SNSD's mixer, whose 10 dB are 5 dB (default: true)")  # fmt: skip
    add("--overflow", choices=("float", "clip", "wrap"), default="float",
        help="32-bit floats (default); 16 bits, clipped; or 16 bits, wrapped around as in published files")  # fmt: skip
    add("--skip-bad", action="store_true", help="skip missing clips and bad entries, and list them")
    add("--quiet", "-q", action="store_true", help="no progress bar")


def _show(args: argparse.Namespace) -> int:
    from sharpen.evaluation.corpora.corpus import read_corpus

    corpus = read_corpus(
        args.where,
        layout=args.layout,
        skip_bad=args.skip_bad,
        language=args.language,
        domain=args.domain,
        max_seconds=args.max_seconds,
    )
    domains = [_counts(corpus, domain) for domain in corpus.domains]
    total = {**_counts(corpus, None), "domain": "all"}
    if args.json:
        counts = {"corpus": corpus.name, "domains": domains, "total": total, "skipped": corpus.skipped}
        print(json.dumps(counts, indent=1, ensure_ascii=False))
        return DONE
    print(f"{corpus.name}: {len(corpus.utterances)} utterances, {len(corpus.skipped)} skipped\n")
    rows = [("domain", "utterances", "hours", "speakers", "languages")]
    for one in [*domains, total] if len(domains) > 1 else domains:
        languages = ",".join(one["languages"])
        rows.append((one["domain"], str(one["utterances"]), f"{one['hours']:.2f}", str(one["speakers"]), languages))
    print(*columns(rows), sep="\n")
    _list_skipped(corpus.skipped)
    return DONE


def _counts(corpus: Corpus, domain: str | None) -> dict[str, Any]:
    of = [u for u in corpus.utterances if domain in (None, u.domain)]
    return {
        "domain": domain,
        "utterances": len(of),
        "hours": round(sum(u.duration for u in of) / 3600, 4),
        "speakers": len({u.speaker for u in of} - {""}),
        "languages": sorted({u.language for u in of}),
    }


def _ls_c(args: argparse.Namespace) -> int:
    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.evaluation.corpora.corrupted import build
    from sharpen.speech.noise import DOMAINS

    noises = [code.upper() for code in args.noise] if args.noise else list(DOMAINS)
    corpus = read_corpus(args.librispeech, skip_bad=args.skip_bad, max_seconds=args.max_seconds).first(args.limit)
    with progress(len(noises) * len(corpus.utterances), "utterances", quiet=args.quiet) as bar:

        def on_utterance(noise: str) -> None:
            bar.set_text(noise)
            bar.update()

        made = build(
            corpus,
            args.out,
            args.snr,
            args.noise_dir,
            domains=noises,
            snr_rule=args.snr_rule,
            overflow=args.overflow,
            skip_bad=args.skip_bad,
            progress=on_utterance,
        )
    for domain in made:
        if domain.manifest:
            print(f"{domain.manifest}  {domain.written} written, {domain.kept} kept")
    _list_skipped([*corpus.skipped, *(f"{d.noise}: {reason}" for d in made for reason in d.skipped)])
    return DONE


def _list_skipped(reasons: tuple[str, ...] | list[str]) -> None:
    if reasons:
        print(f"sharpen: {len(reasons)} skipped:", file=sys.stderr)
    for reason in reasons[:LISTED]:
        print(f"  {reason}", file=sys.stderr)
    if len(reasons) > LISTED:
        print(f"  and {len(reasons) - LISTED} more (corpus show --json lists all)", file=sys.stderr)
