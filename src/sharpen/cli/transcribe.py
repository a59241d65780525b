"""`sharpen transcribe`."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sharpen.cli.values import DONE, FAILED, count, optional, positive, yes_no
from sharpen.errors import SharpenError
from sharpen.method.objectives import METHODS

if TYPE_CHECKING:
    from sharpen.method.adaptation import Adaptation
    from sharpen.method.episode import Step
    from sharpen.speech.explain import Explanation
    from sharpen.speech.files import Event
    from sharpen.speech.longform import Segment


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Transcribes audio or video files; flags may be written with - or _."
    parser.set_defaults(run=_transcribe)
    adapting = [name for name, row in METHODS.items() if row.search]
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="audio or video files; - is standard input")
    add("--model", default="base", help="directory or file, size name, or Hugging Face id (default: base)")
    add("--language", default="auto", help="code or name; auto detects it (default: auto)")
    add("--task", choices=("transcribe", "translate"), default="transcribe", help="translate is into English")
    add("--method", choices=METHODS, default="source", metavar="NAME",
        help=f"source: the model as it is (default); beam; or adapt it first: {', '.join(adapting)}")  # fmt: skip
    _add_adaptation(parser.add_argument_group("adaptation").add_argument)
    _add_decoding(parser.add_argument_group("decoding").add_argument)
    add = parser.add_argument_group("output").add_argument
    add(
        "--output-format",
        "-f",
        metavar="F,F",
        help="txt, srt, vtt, tsv, json or all: write these files (default: all with --output-dir, else none)",
    )
    add("--output-dir", "-o", metavar="DIR", help="where to write them (default: here)")
    add("--quiet", "-q", action="store_true", help="no progress bar")
    add = parser.add_argument_group("machine").add_argument
    add("--preset", choices=("exact", "fast", "fastest"), default="exact",
        help="fast: condensed padding, and bfloat16 where the hardware has it; fastest: sparse padding, measured with "
        "base and not fit for tiny (default: exact)")  # fmt: skip
    add("--padding", choices=("full", "condensed", "sparse"),
        help="how the silence behind short audio is told to the model (default: the preset's)")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda, mps (default: auto, which never takes mps)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the preset's")
    add("--batch-size", type=positive, default=1, metavar="N", help="recordings side by side (default: 1)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: torch's choice)")


def _add_adaptation(add: Callable[..., object]) -> None:
    """Without defaults: those of `Adaptation` count, and what is given for a method that does not adapt is noticed."""
    add("--steps", type=count, metavar="N", help="updates of the norms (default: 10)")
    add("--samples", type=positive, metavar="G", help="hypotheses at each step (default: 16)")
    add("--lr", type=float, help="learning rate of AdamW (default: 1e-3)")
    add("--weight-decay", type=float, metavar="W", help="of AdamW (default: 0)")
    add("--adapt-norms", choices=("encoder+decoder", "encoder", "decoder"), dest="norms",
        help="which norms adapt (default: encoder+decoder)")  # fmt: skip
    add("--normalise", choices=("tokens", "group"),
        help="divide the loss by the group's tokens (default, the paper's) or by its size")  # fmt: skip
    add("--stop", action="append", choices=("certain", "agreed", "settled"),
        help="end a window's adaptation early; may be given several times (default: never)")  # fmt: skip
    add("--guard", choices=("on", "off"), help="fall back to the source where adapting broke the text")
    add("--explain", action="store_true", help="say what adaptation changed, and write it as a page, STEM.html")
    add("--seed", type=int, default=0, help="of every random draw (default: 0)")


def _add_decoding(add: Callable[..., object]) -> None:
    add(
        "--decode", choices=("greedy", "beam"), help="how the answer is found (default: greedy; beam for --method beam)"
    )
    add("--beam-size", type=positive, metavar="N", help="width of that beam (default: 5)")
    add("--initial-prompt", default="", metavar="TEXT", help="text the recording continues: names, spelling, style")
    add("--condition-on-previous-text", type=yes_no, nargs="?", const=True, default=False, metavar="BOOL",
        help="feed back what was just said (default: no; it amplifies loops)")  # fmt: skip
    add("--no-timestamps", action="store_true", help="decode text alone: one segment for each window, which may lack "
        "what follows a pause")  # fmt: skip
    add("--temperature", type=float, default=0.0, metavar="T", help="of the first attempt (default: 0)")
    add("--temperature-increment-on-fallback", type=optional, default=0.2, metavar="T",
        help="added when a check fails, up to 1; None for no second attempt (default: 0.2)")  # fmt: skip
    add("--best-of", type=positive, default=5, metavar="N", help="samples above temperature 0 (default: 5)")
    add("--no-speech-threshold", type=optional, default=0.6, metavar="P", help="default: 0.6; None: off")
    add("--compression-ratio-threshold", type=optional, default=2.4, metavar="R", help="default: 2.4; None: off")
    add("--logprob-threshold", type=optional, default=-1.0, metavar="L", help="default: -1.0; None: off")


def _transcribe(args: argparse.Namespace) -> int:
    from sharpen.speech.writers import parse_formats

    formats = parse_formats(args.output_format or "all") if args.output_format or args.output_dir else []
    from sharpen.models.weights.load import find_ahead

    checkpoint = find_ahead(args.model)  # a thread verifies it while torch is imported
    gc.disable()  # nothing that an import makes is garbage, and looking for it takes longer than the rest of our own
    import torch  # only now: a mistake on the command line is answered at once

    from sharpen.speech.files import transcribe_files
    from sharpen.speech.options import Options
    from sharpen.speech.presets import PRESETS, default_device
    from sharpen.speech.transcribe import load

    gc.freeze()
    gc.enable()

    preset = PRESETS[args.preset]
    device = default_device() if args.device == "auto" else args.device

    decode = args.decode or METHODS[args.method].decode
    if args.beam_size and decode != "beam":
        raise SharpenError("--beam-size is the width of a beam search: give --decode beam or --method beam too")
    options = Options(
        language=args.language,
        task=args.task,
        adapt=_adaptation(args),
        decode=decode,
        beam_size=args.beam_size,
        padding=args.padding or preset.padding,
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
    model = load(checkpoint, device=device, dtype=args.dtype or preset.dtype(device))
    model.check(options)
    report = _Report(len(args.files), args.quiet, options.adapt.steps if options.adapt else 0)
    events = transcribe_files(model, args.files, options, args.output_dir or ".", formats, report.on_step)
    return report.run(events)


def _adaptation(args: argparse.Namespace) -> Adaptation | None:
    from sharpen.method.adaptation import Adaptation

    names = ("steps", "samples", "lr", "weight_decay", "norms", "normalise", "stop", "guard")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if METHODS[args.method].search is None:
        if args.explain or given:
            flags = [f"--{'adapt-norms' if name == 'norms' else name.replace('_', '-')}" for name in given]
            flags += ["--explain"] * args.explain
            raise SharpenError(f"{', '.join(flags)}: about adapting, and {args.method} does not: give --method too")
        return None
    if "guard" in given:
        given["guard"] = args.guard == "on"
    if "stop" in given:
        given["stop"] = tuple(args.stop)
    return Adaptation(method=args.method, explain=args.explain, seed=args.seed, **given)


_BAR = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s of audio [{elapsed}<{remaining}] {desc}"


class _Report:
    """Prints transcripts as they come, keeps the progress bar, and says at the end what failed."""

    def __init__(self, count: int, quiet: bool, steps: int) -> None:
        from tqdm import tqdm

        self.count, self.steps = count, steps
        self.bar = tqdm(total=0, unit="s", disable=quiet, bar_format=_BAR, dynamic_ncols=True)
        self.failures: list[Event] = []

    def on_step(self, number: int, steps: Mapping[int, Step]) -> None:
        entropy = sum(step.H_tok for step in steps.values()) / len(steps)
        self.bar.set_description_str(f"step {number}/{self.steps}, entropy {entropy:.2f}")

    def run(self, events: Iterator[Event]) -> int:
        with self.bar:
            for event in events:
                self._hear(event)
        if self.failures and self.count > 1:
            print(f"sharpen: {len(self.failures)} of {self.count} failed:", file=sys.stderr)
            for event in self.failures:
                print(f"  {_named(event)}", file=sys.stderr)
        return FAILED if self.failures else DONE

    def _hear(self, event: Event) -> None:
        if event.kind == "opened":
            self.bar.total += event.seconds
            self.bar.set_description_str(event.source)
        elif event.kind == "window":
            self.bar.update(event.seconds)
            if self.count == 1:
                self._say(event.segments)
        elif event.kind == "finished":
            if self.count > 1:
                self.bar.clear()
                print(f"==> {event.source} <==")
                self._say(event.segments)
            for start, how in event.adapted:
                if how.refused:
                    self._warn(f"{event.source}: at {start:.0f} s the source transcript stands: {how.refused}")
            self._explain(event.explanations)
            if event.reason:
                self._warn(f"{event.source}: {event.reason}")
        else:
            self.failures.append(event)
            self._warn(_named(event))

    def _say(self, segments: Sequence[Segment]) -> None:
        self.bar.clear()
        for segment in segments:
            print(segment.text.strip(), flush=True)

    def _explain(self, explanations: Sequence[Explanation]) -> None:
        if not explanations:
            return
        from sharpen.speech.explain import as_text

        self.bar.clear()
        for explanation in explanations:
            print(as_text(explanation, colour=sys.stderr.isatty()), file=sys.stderr)

    def _warn(self, message: str) -> None:
        self.bar.write(f"sharpen: {message}", file=sys.stderr)


def _named(event: Event) -> str:
    return event.reason if event.source in event.reason else f"{event.source}: {event.reason}"


def _temperatures(first: float, increment: float | None) -> tuple[float, ...]:
    if increment is None or not (increment > 0 and first < 1):
        return (first,)
    return tuple(round(first + i * increment, 6) for i in range(1 + int((1.0 + 1e-6 - first) / increment)))
