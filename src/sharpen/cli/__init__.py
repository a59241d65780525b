"""The command line. Transcripts go to standard output, progress and errors to standard error.

Each command is a module with `arguments(parser)`, which adds its arguments and names the function to run. Only the
module of the command that was asked for is imported.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sharpen import __version__
from sharpen.cli import interrupt
from sharpen.cli.parser import Parser
from sharpen.cli.values import FAILED, INTERRUPTED, USAGE
from sharpen.errors import SharpenError, WeightsWarning

COMMANDS = {
    "transcribe": "speech to text",
    "generate": "prompts to answers, with a language model",
    "theory": "bias and variance of every objective, exactly",
    "corpus": "look into a corpus; build corrupted LibriSpeech",
    "evaluate": "run methods over corpora, one row for each utterance",
    "evaluate-text": "run methods over tasks for language models, one row for each item",
    "report": "tables and figures of runs, beside the paper's numbers",
    "reproduce": "the paper's tables and figures by name",
    "tune": "a small grid of hyper-parameters",
    "bench": "speed, against a straightforward version and the machine's limit",
    "serve": "transcripts over HTTP, for clients of OpenAI's API",
    "models": "list weights that are installed, and fetch more",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 something failed, 2 bad usage, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    args = _parser(next((word for word in arguments if word in COMMANDS), None)).parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        with interrupt.kept(), _plain_warnings():
            return int(args.run(args))
    except SharpenError as error:
        print(f"sharpen: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("sharpen: interrupted; finished output is kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output ended first, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings of our own are one line, without the place in the source that they come from."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, WeightsWarning):
                print(f"sharpen: {message}", file=sys.stderr)
            else:
                others(message, category, *rest, **more)

        warnings.showwarning = show
        yield


def _parser(command: str | None) -> Parser:
    """The parser of all commands, of which only the one that was asked for has its arguments."""
    parser = Parser(
        prog="sharpen",
        description="Adapts a model to each input while it answers it: Whisper to a recording, a language model to a "
        "prompt. Transcripts and answers go to standard output, progress and errors to standard error.",
    )
    parser.add_argument("--version", action="version", version=f"sharpen {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, meaning in COMMANDS.items():
        sub = commands.add_parser(name, help=meaning)
        if name == command:
            importlib.import_module(f"sharpen.cli.{name.replace('-', '_')}").arguments(sub)
    return parser
