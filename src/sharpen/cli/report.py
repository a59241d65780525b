"""`sharpen report`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from sharpen.cli.values import DONE
from sharpen.errors import SharpenError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tables, figures and single utterances from the rows of one or several runs, on speech or on text. "
        "Without a file option the markdown goes to standard output."
    )
    parser.set_defaults(run=_report)
    add = parser.add_argument
    add(
        "results",
        nargs="+",
        metavar="DIR",
        help="what `sharpen evaluate --out` or `evaluate-text --out` wrote: a folder, or its rows.jsonl",
    )
    add("--html", metavar="FILE", help="one self-contained page (figures need sharpen[report])")
    add("--markdown", metavar="FILE", help="tables as markdown")
    add("--latex", metavar="FILE", help="tables for a paper that loads booktabs, graphicx and xcolor")
    add("--json", metavar="FILE", help="every number")
    add("--figures", metavar="DIR", help="write the figures as PNG files, and link them in the markdown")
    add("--frontier", metavar="FILE", help="draw WER against computing time, a panel for each DIR, and add its tables")
    add("--no-figures", action="store_true", help="leave the figures out of the page")
    add("--without", metavar="ID,ID", default="", help="leave these utterances out, to see how much depends on them")
    add("--against", metavar="NAME,NAME", default="source", help="methods to compare with, paired (default: source)")


def _report(args: argparse.Namespace) -> int:
    from sharpen.evaluation.report import document, frontier, lines
    from sharpen.files import write_text

    for name in ("figures", "frontier"):
        if getattr(args, name) and args.no_figures:
            raise SharpenError(f"--{name} and --no-figures contradict each other: give only one")
    against = list(dict.fromkeys(name.strip() for name in args.against.split(",") if name.strip()))
    without = [name.strip() for name in args.without.split(",") if name.strip()]
    rows, runs = lines.read(args.results), {}
    if args.frontier:
        names = frontier.run_names(args.results)
        runs = {name: lines.read([folder]) for name, folder in zip(names, args.results, strict=True)}
    made = document.build(rows, against, without, runs)
    images = document.draw(made, args.figures) if args.figures else []
    front = document.draw_frontier(made, args.frontier) if args.frontier else None
    written = []
    if args.html:
        written.append(write_text(args.html, document.as_html(made, figures=not args.no_figures)))
    if args.latex:
        written.append(write_text(args.latex, document.as_latex(made)))
    if args.json:
        written.append(write_text(args.json, document.as_json(made)))
    if args.markdown or not written:
        beside = Path(args.markdown).parent if args.markdown else Path()
        addresses = [[_relative(path, beside) for path in paths] for paths in images]
        shown = _relative(front, beside) if front else ""
        if args.markdown:
            written.append(write_text(args.markdown, document.as_markdown(made, addresses, _command(args), shown)))
        else:
            print(document.as_markdown(made, addresses, frontier_image=shown), end="")
    for path in (*written, *(path for paths in images for path in paths), *([front] if front else [])):
        print(f"sharpen: wrote {path}", file=sys.stderr)
    if made.failed:
        print(f"sharpen: {len(made.failed)} rows failed; they are listed in the report", file=sys.stderr)
    return DONE


def _relative(path: Path, beside: Path) -> str:
    return Path(os.path.relpath(path, beside)).as_posix()


def _command(args: argparse.Namespace) -> str:
    """The command that gives these numbers, without the options that say where they go."""
    against = ["--against", args.against] if args.against != "source" else []
    without = ["--without", args.without] if args.without else []
    front = ["--frontier", Path(args.frontier).name] if args.frontier else []
    return shlex.join(["sharpen", "report", *args.results, *against, *without, *front])
