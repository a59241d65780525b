"""`sharpen corpus`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from sharpen.cli.values import DONE, positive, seconds

if TYPE_CHECKING:
    from sharpen.evaluation.corpora.corpus import Corpus

NAMED = 10  # skipped entries that are printed one by one


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Looks into corpora, and builds corrupted LibriSpeech."
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _show_arguments(commands.add_parser("show", help="domains, hours and speakers of a corpus", allow_abbrev=False))
    _ls_c_arguments(commands.add_parser("ls-c", help="LibriSpeech in ten noises, as files", allow_abbrev=False))


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Counts what a corpus holds."
    parser.set_defaults(run=_show)
    add = parser.add_argument
    add("where", metavar="WHERE", help="a manifest, a corpus's folder, or hf:ID[:config[:split]]")
    add("--layout", default="auto", metavar="NAME",
        help="manifest, common-voice, mls, l2-arctic, librispeech or folder (default: auto)")  # fmt: skip
    add("--language", metavar="CODE", help="in place of what the corpus says")
    add("--domain", metavar="NAME", help="in place of what the corpus says")
    add("--max-seconds", type=seconds, metavar="S", help="leave longer utterances out")
    add("--skip-bad", action="store_true", help="go on without entries that cannot be used, and count them")
    add("--json", action="store_true", help="an object instead of a table, with every skipped entry")


def _ls_c_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Writes OUT/NOISE/manifest.jsonl and its audio for each noise; a rerun does what is missing."
    parser.set_defaults(run=_ls_c)
    add = parser.add_argument
    add("--librispeech", required=True, metavar="DIR", help="LibriSpeech, or any corpus that `corpus show` can read")
    add("--noise", metavar="DIR", help="MS-SNSD's clips (AirConditioner_6.wav …); GS needs none")
    add("--snr", type=float, required=True, metavar="DB", help="speech over noise")
    add("--out", required=True, metavar="DIR", help="where to write")
    add("--domains", metavar="GS,BA", help="only these (default: AA,AC,BA,CM,GS,MU,NB,SD,TP,VC)")
    add("--limit", type=positive, metavar="N", help="only the first N of a fixed random order")
    add("--max-seconds", type=seconds, default=20.0, metavar="S",
        help="leave longer utterances out (default: 20, as others who report on corrupted LibriSpeech)")  # fmt: skip
    add("--snr-rule", choices=("true", "ms-snsd-legacy"), default="true",
        help="ms-snsd-legacy: as MS-SNSD's mixer, whose 10 dB are 5 dB (default: true)")  # fmt: skip
    add("--overflow", choices=("float", "clip", "wrap"), default="float",
        help="32-bit floats (default); 16 bits, clipped; or 16 bits, wrapped as in published files")  # fmt: skip
    add("--skip-bad", action="store_true", help="go on without missing clips and bad entries, and name them")
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
        found = {"corpus": corpus.name, "domains": domains, "total": total, "skipped": corpus.skipped}
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return DONE
    print(f"{corpus.name}: {len(corpus.utterances)} utterances, {len(corpus.skipped)} skipped\n")
    rows = [("domain", "utterances", "hours", "speakers", "languages")]
    for counts in [*domains, total] if len(domains) > 1 else domains:
        spoken = ",".join(counts["languages"])
        rows.append(
            (counts["domain"], str(counts["utterances"]), f"{counts['hours']:.2f}", str(counts["speakers"]), spoken)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    _name_skipped(corpus.skipped)
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
    from tqdm import tqdm

    from sharpen.evaluation.corpora.corpus import read_corpus
    from sharpen.evaluation.corpora.corrupted import build
    from sharpen.speech.noise import DOMAINS

    domains = args.domains.upper().replace(" ", "").split(",") if args.domains else list(DOMAINS)
    corpus = read_corpus(args.librispeech, skip_bad=args.skip_bad, max_seconds=args.max_seconds).first(args.limit)
    with tqdm(total=len(domains) * len(corpus.utterances), unit="utt", disable=args.quiet, dynamic_ncols=True) as bar:

        def progress(noise: str) -> None:
            bar.set_description_str(noise, refresh=False)
            bar.update()

        made = build(
            corpus,
            args.out,
            args.snr,
            args.noise,
            domains=domains,
            snr_rule=args.snr_rule,
            overflow=args.overflow,
            skip_bad=args.skip_bad,
            progress=progress,
        )
    for domain in made:
        if domain.manifest:
            print(f"{domain.manifest}  {domain.written} written, {domain.kept} kept")
    _name_skipped([*corpus.skipped, *(f"{d.noise}: {reason}" for d in made for reason in d.skipped)])
    return DONE


def _name_skipped(reasons: tuple[str, ...] | list[str]) -> None:
    if reasons:
        print(f"sharpen: {len(reasons)} skipped:", file=sys.stderr)
    for reason in reasons[:NAMED]:
        print(f"  {reason}", file=sys.stderr)
    if len(reasons) > NAMED:
        print(f"  and {len(reasons) - NAMED} more (corpus show --json lists all)", file=sys.stderr)
