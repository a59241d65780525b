"""The command line: one thin front. Transcripts go to standard output, progress and complaints to standard error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sharpen import __version__
from sharpen.errors import SharpenError

if TYPE_CHECKING:
    from tqdm import tqdm

    from sharpen.speech.files import Event
    from sharpen.speech.longform import Segment

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 done, 1 something failed, 2 bad usage, 130 interrupted."""
    args = _parser().parse_args(_dashed(sys.argv[1:] if arguments is None else arguments))
    try:
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
    parser = argparse.ArgumentParser(prog="sharpen", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"sharpen {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_transcribe(commands.add_parser("transcribe", help="speech to text", allow_abbrev=False))
    _add_models(commands.add_parser("models", help="which Whisper weights are here, and how to get more"))
    return parser


def _add_transcribe(parser: argparse.ArgumentParser) -> None:
    parser.description = "Transcribes audio or video files; flags may be written with - or _."
    parser.set_defaults(run=_transcribe)
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="audio or video files; - is standard input")
    add("--model", default="base", help="directory or file, size name, or Hugging Face id (default: base)")
    add("--language", default="auto", help="code or name; auto detects it (default: auto)")
    add("--task", choices=("transcribe", "translate"), default="transcribe", help="translate is into English")
    add("--method", choices=("source", "beam"), default="source", help="source: greedy decoding (default)")
    add("--beam-size", type=_positive, default=5, metavar="N", help="width of the beam (default: 5)")
    add("--output-format", "-f", metavar="F,F", help="txt, srt, vtt, tsv, json or all: write these files")
    add("--output-dir", "-o", metavar="DIR", help="where to write them (default: here)")
    add("--initial-prompt", default="", metavar="TEXT", help="text the recording continues: names, spelling, style")
    add("--condition-on-previous-text", type=_yes_no, nargs="?", const=True, default=False, metavar="BOOL",
        help="feed back what was just said (default: no; it amplifies loops)")  # fmt: skip
    add("--no-timestamps", action="store_true", help="decode text alone: one segment for each window")
    add("--temperature", type=float, default=0.0, metavar="T", help="of the first attempt (default: 0)")
    add("--temperature-increment-on-fallback", type=_optional, default=0.2, metavar="T",
        help="added when a check fails, up to 1; None for no second attempt (default: 0.2)")  # fmt: skip
    add("--best-of", type=_positive, default=5, metavar="N", help="samples above temperature 0 (default: 5)")
    add("--no-speech-threshold", type=_optional, default=0.6, metavar="P", help="default: 0.6; None: off")
    add("--compression-ratio-threshold", type=_optional, default=2.4, metavar="R", help="default: 2.4; None: off")
    add("--logprob-threshold", type=_optional, default=-1.0, metavar="L", help="default: -1.0; None: off")
    add("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="default: float32")
    add("--batch-size", type=_positive, default=1, metavar="N", help="windows decoded together (default: 1)")
    add("--threads", type=_positive, metavar="N", help="CPU threads (default: torch's choice)")
    add("--seed", type=int, default=0, help="of samples drawn on fallback (default: 0)")
    add("--quiet", "-q", action="store_true", help="no progress bar")


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_list_models)
    commands = parser.add_subparsers(metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="bring a model into the cache")
    fetch.add_argument("name", help="tiny, tiny.en, base, base.en, or any size or Hugging Face id")
    fetch.set_defaults(run=_fetch_model)


def _transcribe(args: argparse.Namespace) -> int:
    from sharpen.speech.writers import parse_formats

    formats = parse_formats(args.output_format or "all") if args.output_format or args.output_dir else []
    import torch  # only now: a mistake on the command line is answered at once

    from sharpen.speech.decoding import Options
    from sharpen.speech.files import transcribe_files
    from sharpen.speech.transcribe import load

    options = Options(
        language=args.language,
        task=args.task,
        method=args.method,
        beam_size=args.beam_size,
        timestamps=not args.no_timestamps,
        initial_prompt=args.initial_prompt,
        condition_on_previous_text=args.condition_on_previous_text,
        temperature=_temperatures(args.temperature, args.temperature_increment_on_fallback),
        best_of=args.best_of,
        no_speech_threshold=args.no_speech_threshold,
        compression_ratio_threshold=args.compression_ratio_threshold,
        logprob_threshold=args.logprob_threshold,
        batch_size=args.batch_size,
        seed=args.seed,
    )
    if args.threads:
        torch.set_num_threads(args.threads)
    model = load(args.model, device=args.device, dtype=args.dtype)
    model.check(options)
    return _report(
        transcribe_files(model, args.files, options, args.output_dir or ".", formats), len(args.files), args.quiet
    )


def _report(events: Iterator[Event], count: int, quiet: bool) -> int:
    """Prints transcripts as they come and says at the end what failed."""
    from tqdm import tqdm

    failures: list[Event] = []
    with tqdm(total=0, unit="s", disable=quiet, bar_format=_BAR, dynamic_ncols=True) as bar:
        for event in events:
            if event.kind == "opened":
                bar.total += event.seconds
                bar.set_postfix_str(event.source)
            elif event.kind == "window":
                bar.update(event.seconds)
                if count == 1:
                    _say(bar, event.segments)
            elif event.kind == "finished":
                if count > 1:
                    bar.clear()
                    print(f"==> {event.source} <==")
                    _say(bar, event.segments)
                if event.reason:
                    bar.write(f"sharpen: {event.source}: {event.reason}", file=sys.stderr)
            else:
                failures.append(event)
                bar.write(f"sharpen: {_named(event)}", file=sys.stderr)
    if failures and count > 1:
        print(f"sharpen: {len(failures)} of {count} failed:", file=sys.stderr)
        for event in failures:
            print(f"  {_named(event)}", file=sys.stderr)
    return FAILED if failures else DONE


_BAR = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s of audio [{elapsed}<{remaining}] {postfix}"


def _named(event: Event) -> str:
    return event.reason if event.source in event.reason else f"{event.source}: {event.reason}"


def _say(bar: tqdm[Any], segments: Sequence[Segment]) -> None:
    bar.clear()
    for segment in segments:
        print(segment.text.strip(), flush=True)


def _temperatures(first: float, increment: float | None) -> tuple[float, ...]:
    if not increment:
        return (first,)
    return tuple(round(first + i * increment, 6) for i in range(1 + int((1.0 + 1e-6 - first) / increment)))


def _list_models(args: argparse.Namespace) -> int:
    from sharpen.models.catalog import available

    rows = [("name", "source", "format", "parameters", "languages", "verified")]
    for model in available():
        count = f"{model.parameters / 1e6:.1f} M" if model.parameters else "?"
        rows.append((model.name, model.source, model.format, count, model.languages, model.verified))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if len(rows) == 1:
        print("none yet: pip install 'sharpen[base]', or sharpen models fetch base", file=sys.stderr)
    return DONE


def _fetch_model(args: argparse.Namespace) -> int:
    from sharpen.models.fetch import fetch

    print(fetch(args.name))
    return DONE


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _optional(text: str) -> float | None:
    return None if text.lower() in ("none", "off") else float(text)


def _yes_no(text: str) -> bool:
    answers = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answers:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return answers[text.lower()]
