"""The command line: one thin front. Transcripts go to standard output, progress and complaints to standard error.

Each command is a module with `arguments(parser)`: it gives the parser its arguments and names the function to run.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from sharpen import __version__
from sharpen.cli import bench, corpus, evaluate, interrupt, models, report, reproduce, theory, transcribe, tune
from sharpen.cli.values import FAILED, INTERRUPTED, USAGE
from sharpen.errors import SharpenError

COMMANDS = {
    "transcribe": (transcribe, "speech to text"),
    "theory": (theory, "bias and variance of every objective, exactly"),
    "corpus": (corpus, "look into a corpus; build corrupted LibriSpeech"),
    "evaluate": (evaluate, "run methods over corpora, one row for each utterance"),
    "report": (report, "tables and figures of runs, beside the paper's numbers"),
    "reproduce": (reproduce, "the paper's tables and figures, one word each"),
    "tune": (tune, "a small grid of hyper-parameters"),
    "bench": (bench, "how fast it is, against a straightforward version and the machine's limit"),
    "models": (models, "which Whisper weights are here, and how to get more"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 something failed, 2 bad usage, 130 interrupted."""
    args = _parser().parse_args(_dashed(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        with interrupt.kept():
            return int(args.run(args))
    except SharpenError as error:
        print(f"sharpen: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("sharpen: interrupted; finished output is kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _dashed(arguments: Sequence[str]) -> list[str]:
    """--beam_size is --beam-size: Whisper's own tools write the underscore."""
    dashed: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return [*dashed, *arguments[i:]]
        name, equals, value = argument.partition("=")
        dashed.append(name.replace("_", "-") + equals + value if name.startswith("--") else argument)
    return dashed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sharpen", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"sharpen {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (module, meaning) in COMMANDS.items():
        module.arguments(commands.add_parser(name, help=meaning, allow_abbrev=False))
    return parser
