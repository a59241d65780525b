"""`sharpen transcribe`."""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sharpen.cli import machine
from sharpen.cli.flags import add_options, check_adaptation, flag, given
from sharpen.cli.values import DONE, FAILED, positive
from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.options import declared
from sharpen.speech.efforts import DEFAULT, EFFORTS
from sharpen.speech.options import Options, VadParameters
from sharpen.speech.presets import PRESETS
from sharpen.speech.subtitles import Subtitles
from sharpen.terminal import progress

if TYPE_CHECKING:
    from sharpen.explain.page import Explanation
    from sharpen.method.trace import Step
    from sharpen.speech.confidence import WindowReadings
    from sharpen.speech.files import Event
    from sharpen.speech.longform import Segment
    from sharpen.speech.transcribe import Model

FROM_EFFORT = "the effort's"
INCREMENT = 0.2
SEARCHING = (  # options that say how to search, or judge what a search found
    *("decode", "beam_size", "length_penalty", "best_of", "temperature", "padding", "timestamps"),
    *("condition_on_previous_text", "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"),
)
NAMED = 5  # unreliable segments that one warning lists


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Transcribes audio or video files; flags may be written with - or _."
    parser.set_defaults(run=_transcribe)
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="audio or video files; - is standard input")
    add("--model", default="base", help=machine.MODEL)
    add("--effort", choices=EFFORTS, help="how much to spend: plain (beam search, nothing adapts), normal (where the "
        "model is in doubt), high (more of it), max (most of it), paper (everywhere, with the paper's settings) "
        f"(default: {DEFAULT}, unless --method is given)")  # fmt: skip
    bundles = [bundle["adapt"] or Adaptation() for bundle in EFFORTS.values()]
    own = {name: FROM_EFFORT for name in declared(Adaptation) if len({getattr(b, name) for b in bundles}) > 1}
    add_options(parser.add_argument_group("adaptation"), Adaptation(), defaults={**own, "method": FROM_EFFORT})
    group = parser.add_argument_group("decoding")
    own = {name: FROM_EFFORT for bundle in EFFORTS.values() for name in bundle if name != "adapt"}
    aliases = {"vad_filter": "--vad-filter"}
    add_options(group, Options(), skip=("seed",), aliases=aliases, defaults=own)  # one --seed is for both
    add_options(group, VadParameters())
    group.add_argument("--temperature-increment-on-fallback", type=_increment, default=INCREMENT, metavar="X",
        help="added to a single --temperature after a failed check, up to 1; none: one attempt "
        f"(default: {INCREMENT})")  # fmt: skip
    group = parser.add_argument_group("output")
    add = group.add_argument
    add("--output-format", "-f", metavar="F,F",
        help="files to write: txt, srt, vtt, tsv, json or all (default: all with --output-dir, else none)")  # fmt: skip
    add("--output-dir", "-o", metavar="DIR", help="where to write them (default: here)")
    add_options(group, Subtitles())
    add("--resume", action="store_true",
        help="keep what is finished of a recording on disk, and continue an interrupted run there")  # fmt: skip
    add("--quiet", "-q", action="store_true", help="no progress bar")
    group = parser.add_argument_group("machine")
    machine.add_machine(group, preset=None)
    group.add_argument("--lanes", type=positive, metavar="N", default=1,
        help="recordings at the same time, with their share of the threads: faster, but rounding and so a word may "
        "differ from run to run (default: 1)")  # fmt: skip


def _transcribe(args: argparse.Namespace) -> int:
    from sharpen.speech.output import check_resume
    from sharpen.speech.writers import parse_formats

    formats = parse_formats(args.output_format or "all") if args.output_format or args.output_dir else []
    options, subtitles = make_options(args), Subtitles(**given(args, Subtitles))
    subtitles.check(options.word_timestamps, formats)
    if args.resume:
        check_resume(formats, explain=options.adapt is not None and options.adapt.explain)
    from sharpen.models.weights.load import find_ahead

    checkpoint = find_ahead(args.model)  # a thread verifies it while torch is imported
    gc.disable()  # nothing that an import makes is garbage, and looking for it takes a tenth of the start-up
    import torch  # only now: a mistake on the command line is reported at once

    from sharpen.models.load import load_speech
    from sharpen.speech.files import transcribe_files
    from sharpen.speech.transcribe import Model

    gc.freeze()
    gc.enable()
    device, dtype = machine.device_and_dtype(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = Model(load_speech(checkpoint, device, dtype))
    if model.by_frames:
        options = _for_frames(args, model)
    model.check(options)
    report = _Report(len(args.files), args.quiet, options.adapt.steps if options.adapt else 0)
    folder = args.output_dir or "."
    events = transcribe_files(
        model, args.files, options, folder, formats, report.on_step, subtitles, args.resume, args.lanes
    )
    return report.run(events)


def make_options(args: argparse.Namespace, effort: str = DEFAULT) -> Options:
    """What the command line asks for, `effort` where it names none; refuses flags that its method does not use."""
    adaptation, decoding = given(args, Adaptation), given(args, Options)
    if args.effort and "method" in adaptation:
        raise SharpenError("--effort chooses the method; leave --effort or --method out")
    bundle = dict(EFFORTS["plain" if "method" in adaptation else args.effort or effort])
    base = bundle.pop("adapt") or Adaptation(method="source")
    adapt = Adaptation(**adaptation) if "method" in adaptation else replace(base, **adaptation)
    check_adaptation(adaptation, [adapt.row])
    if adapt.method == "beam" and ("beam_size" in decoding or decoding.get("decode") == "greedy"):
        raise SharpenError("--method beam is a beam search as wide as --samples; leave --decode and --beam-size out")
    if "beam_size" in decoding and decoding.get("decode") == "greedy":
        raise SharpenError("--beam-size needs --decode beam")
    vad = given(args, VadParameters)
    if vad and not (decoding.get("vad_filter") or decoding.get("chunk") == "vad"):
        need = "needs" if len(vad) == 1 else "need"
        raise SharpenError(f"{', '.join(flag(VadParameters, name) for name in vad)} {need} --vad or --chunk vad")
    if args.preset:
        bundle["padding"] = PRESETS[args.preset].padding
    decoding = {**bundle, **decoding}
    temperature = decoding.get("temperature", (0.0,))
    if len(temperature) == 1:
        decoding["temperature"] = _temperatures(temperature[0], args.temperature_increment_on_fallback)
    return Options(**decoding, adapt=adapt, vad_parameters=VadParameters(**vad))


def _for_frames(args: argparse.Namespace, model: Model) -> Options:
    """A CTC model has no search, and of the efforts only plain."""
    from sharpen.speech.frames import check_method

    name = model.speech.name
    check_method(model.speech, given(args, Adaptation).get("method", "source"))  # options no longer know of `beam`
    if args.effort not in (None, "plain"):
        raise SharpenError(f"--effort {args.effort} is not for CTC models such as {name}; use --method ctc-collapse")
    if args.resume:
        raise SharpenError(f"--resume is not for CTC models such as {name}; leave it out")
    unused = [flag(Options, option) for option in given(args, Options) if option in SEARCHING]
    if unused:
        raise SharpenError(
            f"{', '.join(unused)}: {name} is a CTC model, which is decoded without a search; leave it out"
        )
    return make_options(args, "plain")


class _Report:
    """Prints transcripts as they come, updates the progress bar, and lists at the end what failed.

    Transcripts of several recordings are printed in the order in which they were given.
    """

    def __init__(self, count: int, quiet: bool, steps: int) -> None:
        self.count, self.steps = count, steps
        self.bar = progress(0, "s of audio", quiet=quiet)
        self.failures: list[Event] = []
        self.untold: dict[str, Event | None] = {}  # recordings in their order, with their end where they have one

    def on_step(self, number: int, steps: Mapping[int, Step]) -> None:
        entropy = sum(step.H_tok for step in steps.values()) / len(steps)
        self.bar.set_text(f"step {number}/{self.steps}, entropy {entropy:.2f}")

    def run(self, events: Iterator[Event]) -> int:
        with self.bar:
            try:
                for event in events:
                    self._on_event(event)
            finally:  # also where the first of them was interrupted
                self._tell_finished(all_of_them=True)
        if self.failures and self.count > 1:
            print(f"sharpen: {len(self.failures)} of {self.count} failed:", file=sys.stderr)
            for event in self.failures:
                print(f"  {_failure(event)}", file=sys.stderr)
        return FAILED if self.failures else DONE

    def _on_event(self, event: Event) -> None:
        if event.kind == "opened":
            self.untold[event.source] = None
            self.bar.extend(event.seconds)
            self.bar.set_text(event.source)
        elif event.kind == "window":
            self.bar.update(event.seconds)
            if self.count == 1:
                self._say(event.segments)
                self._list(event.readings)
        elif event.kind == "finished":
            self.untold[event.source] = event
            self._tell_finished()
        else:
            self.untold.pop(event.source, None)
            self.failures.append(event)
            self._warn(_failure(event))
            self._tell_finished()

    def _tell_finished(self, all_of_them: bool = False) -> None:
        """Tells of recordings that are finished, up to the first that is not."""
        for source, event in list(self.untold.items()):
            if event is not None:
                del self.untold[source]
                self._tell(event)
            elif not all_of_them:
                return

    def _tell(self, event: Event) -> None:
        if self.count > 1:
            self.bar.write(f"==> {event.source} <==", sys.stdout)
            self._say(event.segments)
            self._list(event.readings)
        doubtful = [f"{s.start:.0f} s ({s.unreliable})" for s in event.segments if s.unreliable]
        if doubtful:
            more = [f"and {len(doubtful) - NAMED} more"] if len(doubtful) > NAMED else []
            self._warn(f"{event.source}: unreliable at {', '.join([*doubtful[:NAMED], *more])}")
        for start, how in event.adapted:
            if how.refused:
                self._warn(f"{event.source}: at {start:.0f} s the source transcript is kept: {how.refused}")
        self._explain(event.explanations)
        if event.reason:
            self._warn(f"{event.source}: {event.reason}")

    def _say(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.bar.write(segment.text.strip(), sys.stdout)

    def _list(self, windows: Sequence[WindowReadings]) -> None:
        for window in windows:
            for reading in window.readings:
                self.bar.write(f"  {reading.probability:4.2f}  {reading.text}", sys.stdout)

    def _explain(self, explanations: Sequence[Explanation]) -> None:
        if not explanations:
            return
        from sharpen.explain.page import as_text

        for explanation in explanations:
            self.bar.write(as_text(explanation, colour=sys.stderr.isatty()))

    def _warn(self, message: str) -> None:
        self.bar.write(f"sharpen: {message}")


def _failure(event: Event) -> str:
    return event.reason if event.source in event.reason else f"{event.source}: {event.reason}"


def _temperatures(first: float, increment: float | None) -> tuple[float, ...]:
    """Whisper's own rule: up to 1 in steps of the increment."""
    if not increment or first >= 1:
        return (first,)
    return tuple(round(first + i * increment, 6) for i in range(1 + int((1.0 + 1e-6 - first) / increment)))


def _increment(text: str) -> float | None:
    if text.lower() in ("none", "off"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, at least 0, or none")
    return value
