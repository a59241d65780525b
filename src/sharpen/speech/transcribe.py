"""`Model.transcribe`: a recording in, a transcript with lazy segments out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sharpen.errors import SharpenError
from sharpen.method.episode import StepListener
from sharpen.models.weights.checkpoint import Checkpoint
from sharpen.models.weights.load import Found, load_checkpoint
from sharpen.models.whisper import WhisperPolicy
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.decoding import Adapted, Decoded, Window, decode, prompt
from sharpen.speech.longform import SHORTEST, Segment, segments, settle
from sharpen.speech.options import Options
from sharpen.speech.presets import Dtype, default_device


@dataclass(frozen=True)
class Info:
    """What is known about a transcript besides its words."""

    model: str
    duration: float  # seconds of audio
    options: Options
    skipped: int = 0  # damaged packets or frames of the file that silence stands in for


@dataclass(eq=False)
class Job:
    """One recording on its way through the model: where it stands, and the segments found so far."""

    audio: Audio
    options: Options
    checkpoint: Checkpoint
    language: str | None = None  # None until detected
    position: int = 0  # samples that are behind us
    found: list[Segment] = field(default_factory=list)
    adapted: list[tuple[float, Adapted]] = field(default_factory=list)  # each adapted window: its start, and how
    cut: list[float] = field(default_factory=list)  # the starts of windows whose text the length limit ended
    _context: list[int] = field(default_factory=list)  # tokens that the next window is taken to continue

    def __post_init__(self) -> None:
        tokenizer = self.checkpoint.tokenizer
        if self.options.language != "auto" or not tokenizer.multilingual:
            self.language = "en" if self.options.language == "auto" else self.options.language
        self._forget()
        self._pass_silence()

    @property
    def finished(self) -> bool:
        return self.position >= len(self.audio.samples)

    @property
    def done(self) -> float:
        """Seconds that are behind us."""
        return self.position / self.audio.sampling_rate

    def window(self) -> Window:
        """What to decode next."""
        samples = self.audio.samples[self.position : self._end()]
        return Window(f"{self.audio.name}@{self.position}", samples, tuple(self._context))

    def accept(self, window: Window, decoded: Decoded) -> list[Segment]:
        """Takes the result of that window and moves on; returns its segments."""
        if decoded.is_speech:  # music or noise before it does not decide what is spoken
            self.language = self.language or decoded.language
        if decoded.adaptation is not None:
            self.adapted.append((self.done, decoded.adaptation))
        tokenizer, rate = self.checkpoint.tokenizer, self.audio.sampling_rate
        duration = len(window.samples) / rate
        last = self.position + len(window.samples) == len(self.audio.samples)
        new: list[Segment] = []
        consumed = duration
        if decoded.is_speech:
            self.cut += [] if decoded.finished else [self.done]
            closed, consumed = settle(tokenizer, decoded, duration, last=last)
            new = segments(tokenizer, closed, self.done, duration, len(self.found))
        self.found += new
        if self.options.condition_on_previous_text:
            if decoded.temperature > 0.5:  # Whisper's rule: a context that leads to shaky text leads to more of it
                self._forget()
            else:
                self._context += [token for segment in new for token in segment.tokens]
        self.position += round(consumed * rate)
        if len(self.audio.samples) - self.position < SHORTEST * rate:
            self.cancel()  # Whisper would invent a word for the rest
        self._pass_silence()
        return new

    def _forget(self) -> None:
        """Back to the context that the options give."""
        text = self.options.initial_prompt.strip()
        self._context = self.checkpoint.tokenizer.encode(f" {text}") if text else []

    def cancel(self) -> None:
        """Gives up the rest of the recording."""
        self.position = len(self.audio.samples)

    def _end(self) -> int:
        return min(len(self.audio.samples), self.position + self.checkpoint.mel.seconds * self.audio.sampling_rate)

    def _pass_silence(self) -> None:
        """Skips windows in which nothing can be heard: Whisper would invent text for them."""
        while not self.finished and Audio(self.audio.samples[self.position : self._end()]).is_silent:
            self.position = self._end()


def run(
    policy: WhisperPolicy,
    jobs: Iterable[Job],
    batch_size: int,
    on_step: StepListener | None = None,
    on_failure: Callable[[Job, Exception], None] | None = None,
) -> Iterator[tuple[Job, list[Segment]]]:
    """Drives jobs to their end, `batch_size` recordings side by side, each a window at a time.

    Where a window ends decides where the next one starts, so the windows of one recording follow each other.
    Yields a job when it is taken up, and whenever one of its windows is done, with the new segments.
    `on_step` hears of every adaptation step. With `on_failure`, a job that fails is told to it and given up, and the
    others go on.
    """
    waiting = iter(jobs)
    active: list[Job] = []
    exhausted = False
    while True:
        while not exhausted and len(active) < batch_size:
            job = next(waiting, None)
            if job is None:
                exhausted = True
            else:
                yield job, []
                active += [] if job.finished else [job]
        if not active:
            return
        for job, window, decoded in _decoded(policy, active, on_step, on_failure):
            yield job, job.accept(window, decoded)
        active = [job for job in active if not job.finished]


def _decoded(
    policy: WhisperPolicy,
    jobs: Sequence[Job],
    on_step: StepListener | None,
    on_failure: Callable[[Job, Exception], None] | None,
) -> list[tuple[Job, Window, Decoded]]:
    """The next window of each job; where that fails together, of each alone."""
    windows = [job.window() for job in jobs]
    try:
        results = decode(policy, windows, jobs[0].options, [job.language for job in jobs], on_step)
    except Exception as error:
        if on_failure is None:
            raise
        if len(jobs) == 1:
            jobs[0].cancel()
            on_failure(jobs[0], error)
            return []
        return [found for job in jobs for found in _decoded(policy, [job], on_step, on_failure)]
    return list(zip(jobs, windows, results, strict=True))


class Transcript:
    """The result of a transcription; the work is done as its segments are read, and done once.

    Where a window fails, or is interrupted, reading on tries that window again. Several threads may read it.
    """

    def __init__(self, job: Job, info: Info, policy: WhisperPolicy) -> None:
        self.info = info
        self._job, self._policy = job, policy
        self._steps = run(policy, [job], batch_size=1)
        self._reading = threading.Lock()

    @property
    def segments(self) -> Iterator[Segment]:
        """Segments in order, each as soon as its window is decoded."""
        i = 0
        while True:
            while i < len(self._job.found):
                yield self._job.found[i]
                i += 1
            if not self._more(i):
                return

    @property
    def text(self) -> str:
        """The whole transcript."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def language(self) -> str:
        """The language given or detected; "en" where a recording is silent and none was given."""
        while self._job.language is None and self._more(len(self._job.found)):
            pass
        return self._job.language or "en"

    @property
    def adapted(self) -> list[tuple[float, Adapted]]:
        """For each window that was adapted to: its start in seconds, and how it went."""
        while self._more(len(self._job.found)):
            pass
        return self._job.adapted

    def _more(self, known: int) -> bool:
        """Decodes the next window, if there is one and no other thread has found more than `known` segments."""
        with self._reading:
            if len(self._job.found) > known:
                return True
            try:
                return next(self._steps, None) is not None
            except BaseException:  # a generator that raised is over; the job is not
                self._steps = run(self._policy, [self._job], batch_size=1)
                raise


class Model:
    """A loaded Whisper."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.policy = WhisperPolicy(checkpoint, device, dtype)

    @property
    def checkpoint(self) -> Checkpoint:
        return self.policy.checkpoint

    def transcribe(self, audio: Any, options: Options | None = None, **settings: Any) -> Transcript:
        """Transcribes a path, bytes, a file object, samples at 16 kHz, or an `Audio`.

        Settings are the fields of `Options`, as keywords:
        `model.transcribe("a.flac", language="en", adapt=sharpen.Adaptation(method="em-tok-b"))`.
        """
        if options is not None and settings:
            raise SharpenError(f"give either options or keywords ({', '.join(settings)}), not both")
        options = options or Options(**settings)
        self.check(options)
        job = self.job(audio, options)
        info = Info(self.checkpoint.name, job.audio.duration, options, job.audio.skipped)
        return Transcript(job, info, self.policy)

    def check(self, options: Options) -> None:
        """Refuses options that this checkpoint cannot serve, before any audio is read."""
        prompt(self.checkpoint.tokenizer, "en" if options.language == "auto" else options.language, options)

    def job(self, audio: Any, options: Options) -> Job:
        """A recording made ready; `run` transcribes several at once."""
        rate = self.checkpoint.mel.sampling_rate
        audio = audio.at(rate) if isinstance(audio, Audio) else read_audio(audio, sampling_rate=rate)
        return Job(audio, options, self.checkpoint)


def load(name: str | Path | Found = "base", *, device: str = "auto", dtype: Dtype = "float32") -> Model:
    """Loads a Whisper: a directory or file, an installed weights package, a size name, or a Hugging Face id."""
    with torch.inference_mode(False):  # weights that are made inside of it could never be adapted
        checkpoint = name.load() if isinstance(name, Found) else load_checkpoint(name)
        device = default_device() if device == "auto" else device
        try:
            return Model(checkpoint, device, getattr(torch, dtype))
        except (RuntimeError, AssertionError, AttributeError, TypeError) as error:
            raise SharpenError(f"cannot use device {device!r} with dtype {dtype!r}: {error}") from error
