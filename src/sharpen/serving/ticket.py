"""One request in the batch: its recording, how far it is, and whom to tell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from sharpen.serving.errors import ApiError
from sharpen.serving.events import Failed, Finished, Told, WindowReport, WindowTold
from sharpen.speech.answers import Decoded, text_tree
from sharpen.speech.decoding import SourcePass, Window
from sharpen.speech.longform import segments
from sharpen.speech.options import WIDTH, Options, VadParameters
from sharpen.speech.transcribe import Job

MANY = 64  # hypotheses, more than any search finds
# Options that choose windows, or show more of their answers, and change no decode
NOT_OF_A_WINDOW: Any = {"vad_filter": False, "vad_parameters": VadParameters(), "n_best": 1, "confidence": False}
LATE = "deadline: greedy search, nothing adapts"


@dataclass(eq=False)
class Ticket:
    """A recording that waits for its windows to be transcribed, one after the other."""

    id: str
    job: Job
    send: Callable[[Told], None]  # called in a thread of the batch
    explain: bool = False
    until: float = math.inf  # the deadline, on the clock of time.monotonic
    vanished: bool = False  # nobody waits for the answer any more
    reports: list[WindowReport] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.job.audio.duration

    @property
    def share_ends(self) -> float:
        """When its next window should be done: each has its share of the time that is left."""
        now = time.monotonic()
        rest = max(self.seconds - self.job.done, 1e-3)
        share = min(1.0, self.job.speech.seconds / rest)
        return now + (self.until - now) * share if self.until < math.inf else math.inf

    def accept(self, window: Window, decoded: Decoded, stopped: str) -> bool:
        """Adds the transcript of its window and tells of it; true where the recording is done."""
        start, seconds = self.job.done, len(window.samples) / self.job.audio.sampling_rate
        how = decoded.adaptation
        steps = len(how.trace.steps) if how else 0
        adapted = bool(how and steps and not how.refused)
        answer = "adapted" if adapted else "source" if decoded.is_speech else "silence"
        reason = how.trace.stopped if how and how.trace.stopped else stopped
        report = WindowReport(round(start, 3), round(seconds, 3), answer, steps, reason, how.refused if how else "")
        made = self.job.accept(window, decoded)
        self.reports.append(report)
        source = self._used(how.source if how else decoded, self.job.done - start)
        other = self._used(how.result, self.job.done - start) if how and steps else ""
        tree = text_tree(self.job.speech, how.tree, MANY) if self.explain and how and how.tree else None
        self.send(WindowTold(report, tuple(made), source, other, tree))
        return self.job.finished

    def _used(self, decoded: Decoded, seconds: float) -> str:
        """The text of so many seconds of the window: the next one transcribes what comes after them."""
        return "".join(part.text for part in segments(self.job.speech.tokenizer, decoded, 0.0, seconds)).strip()

    def finish(self, complete: bool = True) -> None:
        """Tells that the recording is done, as far as it got."""
        job = self.job
        covered = self.seconds if complete else job.done
        reports, readings = tuple(self.reports), tuple(job.readings)
        self.send(Finished(tuple(job.segments), job.language or "en", self.seconds, reports, covered, readings))

    def fail(self, error: ApiError) -> None:
        self.send(Failed(error))


@dataclass(eq=False)
class LiveRow:
    """A window that the episode adapts to."""

    id: str
    ticket: Ticket
    source: SourcePass  # of this window alone
    options: Options
    until: float  # when its share of the deadline ends
    told: int = 0  # steps

    @property
    def window(self) -> Window:
        return self.source.windows[0]

    @property
    def seconds(self) -> float:
        return len(self.window.samples) / self.ticket.job.audio.sampling_rate


def source_key(options: Options) -> Hashable:
    """What windows must have in common for the source model to decode them together."""
    common = replace(options, adapt=None, language="auto", initial_prompt="", **NOT_OF_A_WINDOW)
    return common, None if options.adapt is None else options.adapt.norms


def answer_key(options: Options) -> Hashable:
    """What windows must have in common for their last decode."""
    assert options.adapt is not None
    return source_key(options), options.final_decode, options.adapt.guard


def cheapest(options: Options) -> Options:
    """The same request, answered as fast as the model can."""
    found: Options = replace(
        options, adapt=None, decode="greedy", beam_size=WIDTH, n_best=1, temperature=options.temperature[:1]
    )
    return found
