"""`Model.transcribe`: a recording in, a transcript with lazy segments out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.method.adapt import StepCallback
from sharpen.method.policy import Policy
from sharpen.models.languages import UNSPACED
from sharpen.models.load import load_speech
from sharpen.models.speech import SpeechModel
from sharpen.speech.allowance import Allowance, Pool
from sharpen.speech.answers import Adapted, Decoded
from sharpen.speech.audio import Audio, read_audio
from sharpen.speech.decoding import Window, decode, initial_context
from sharpen.speech.efforts import DEFAULT, effort_options
from sharpen.speech.fallback import attempts
from sharpen.speech.longform import SHORTEST, Segment, quiet_end, segments, settle, with_words
from sharpen.speech.options import Options
from sharpen.speech.presets import Dtype, default_device


@dataclass(frozen=True)
class Info:
    """Facts about a transcript."""

    model: str
    duration: float  # seconds of audio
    options: Options
    skipped: int = 0  # damaged packets or frames of the file, replaced by silence


@dataclass(eq=False)
class Job:
    """One recording being transcribed: its position, and the segments so far."""

    audio: Audio
    options: Options
    speech: SpeechModel
    language: str | None = None  # None until detected
    position: int = 0  # samples already transcribed
    segments: list[Segment] = field(default_factory=list)
    adapted: list[tuple[float, Adapted]] = field(default_factory=list)  # adapted windows: start in seconds, and how
    cut: list[float] = field(default_factory=list)  # starts of windows whose text the length limit cut
    allowance: Allowance | None = field(init=False)  # of time; None: no limit
    _context: list[int] = field(default_factory=list)  # tokens of the text that the next window continues

    def __post_init__(self) -> None:
        if self.options.language != "auto" or not self.speech.multilingual:
            self.language = "en" if self.options.language == "auto" else self.options.language
        self.allowance = Allowance.of(self.options, self.audio.duration)
        self._reset_context()
        self._skip_silence()

    @property
    def finished(self) -> bool:
        return self.position >= len(self.audio.samples)

    @property
    def done(self) -> float:
        """Seconds already transcribed."""
        return self.position / self.audio.sampling_rate

    def window(self) -> Window:
        """The next window to decode."""
        samples = self.audio.samples[self.position : self._end()]
        return Window(f"{self.audio.name}@{self.position}", samples, tuple(self._context))

    def accept(self, window: Window, decoded: Decoded) -> list[Segment]:
        """Adds the transcript of that window and moves on; returns its segments."""
        if decoded.is_speech:  # music or noise at the start must not decide the language
            self.language = self.language or decoded.language
        if decoded.adaptation is not None:
            self.adapted.append((self.done, decoded.adaptation))
        tokenizer, rate = self.speech.tokenizer, self.audio.sampling_rate
        duration = len(window.samples) / rate
        last = self.position + len(window.samples) == len(self.audio.samples)
        new: list[Segment] = []
        consumed = duration
        if decoded.is_speech:
            self.cut += [] if decoded.finished else [self.done]
            closed, consumed = settle(tokenizer, decoded, duration, last=last)
            new = segments(tokenizer, closed, self.done, consumed, len(self.segments))
            if self.options.word_timestamps:
                spaced = self.options.task == "translate" or decoded.language not in UNSPACED
                ended = self.segments[-1].end if self.segments else 0.0
                new = with_words(tokenizer, new, closed, self.done, consumed, spaced=spaced, last=ended)
        self.segments += new
        if self.options.condition_on_previous_text:
            if decoded.temperature > 0.5:  # Whisper's rule: a context that leads to uncertain text leads to more of it
                self._reset_context()
            else:
                self._context += [token for segment in new for token in segment.tokens]
        self.position += round(consumed * rate)
        if len(self.audio.samples) - self.position < SHORTEST * rate:
            self.cancel()  # Whisper would invent a word for the rest
        self._skip_silence()
        return new

    def _reset_context(self) -> None:
        """Back to the initial prompt."""
        self._context = list(initial_context(self.speech, self.options))

    def cancel(self) -> None:
        """Skips the rest of the recording."""
        self.position = len(self.audio.samples)

    def _end(self) -> int:
        """Of the next window. What a model without timestamps wrote cannot be cut, so it gets no half words."""
        end = self.position + round(self.speech.seconds * self.audio.sampling_rate)
        if end >= len(self.audio.samples):
            return len(self.audio.samples)
        if self.speech.timestamps:
            return end
        return self.position + quiet_end(self.audio.samples[self.position : end], self.audio.sampling_rate)

    def _skip_silence(self) -> None:
        """Skips windows of digital silence: Whisper would invent text for them."""
        while not self.finished and Audio(self.audio.samples[self.position : self._end()]).is_silent:
            self.position = self._end()


def run(
    speech: SpeechModel,
    jobs: Iterable[Job],
    batch_size: int,
    on_step: StepCallback | None = None,
    on_failure: Callable[[Job, Exception], None] | None = None,
) -> Iterator[tuple[Job, list[Segment]]]:
    """Transcribes jobs, `batch_size` recordings side by side, one window of each at a time.

    The end of a window decides where the next one starts, so the windows of one recording follow each other.
    Yields a job when it starts, and after each of its windows, with the new segments. `on_step` is called after every
    adaptation step. With `on_failure`, a job that fails is reported to it and dropped, and the others continue.
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
        for job, window, decoded in _decoded(speech, active, on_step, on_failure):
            yield job, job.accept(window, decoded)
        active = [job for job in active if not job.finished]


def _decoded(
    speech: SpeechModel,
    jobs: Sequence[Job],
    on_step: StepCallback | None,
    on_failure: Callable[[Job, Exception], None] | None,
) -> list[tuple[Job, Window, Decoded]]:
    """The next window of each job; a batch that fails is decoded one by one."""

    def results(some: Sequence[tuple[Job, Window]]) -> list[Decoded]:
        windows, languages = [window for _, window in some], [job.language for job, _ in some]
        pool = Pool([job.allowance for job, _ in some])
        return decode(speech, windows, some[0][0].options, languages, on_step, pool)

    pairs = [(job, job.window()) for job in jobs]
    if on_failure is None:
        return [(job, window, result) for (job, window), result in zip(pairs, results(pairs), strict=True)]
    decoded = []
    for attempt in attempts(pairs, results):
        job, window = attempt.item
        if attempt.error is not None:
            job.cancel()
            on_failure(job, attempt.error)
        elif attempt.result is not None:
            decoded.append((job, window, attempt.result))
    return decoded


class Transcript:
    """The result of a transcription; windows are decoded as segments are read, each once.

    If a window fails or is interrupted, reading again retries that window. Several threads may read it.
    """

    def __init__(self, job: Job, info: Info) -> None:
        self.info = info
        self._job = job
        self._steps = run(job.speech, [job], batch_size=1)
        self._reading = threading.Lock()

    @property
    def segments(self) -> Iterator[Segment]:
        """Segments in order, each as soon as its window is decoded."""
        i = 0
        while True:
            while i < len(self._job.segments):
                yield self._job.segments[i]
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
        while self._job.language is None and self._more(len(self._job.segments)):
            pass
        return self._job.language or "en"

    @property
    def adapted(self) -> list[tuple[float, Adapted]]:
        """For each window that the model was adapted to: its start in seconds, and how."""
        while self._more(len(self._job.segments)):
            pass
        return self._job.adapted

    def _more(self, known: int) -> bool:
        """Decodes the next window, unless another thread has added to the `known` segments; false at the end."""
        with self._reading:
            if len(self._job.segments) > known:
                return True
            try:
                return next(self._steps, None) is not None
            except BaseException:  # a generator that raised is exhausted; the job is not
                self._steps = run(self._job.speech, [self._job], batch_size=1)
                raise


class Model:
    """A loaded speech model."""

    def __init__(self, speech: SpeechModel) -> None:
        self.speech = speech

    @property
    def policy(self) -> Policy[Any, Any, Any]:
        """What `sharpen.adapt` and the searches take."""
        return self.speech.policy

    def transcribe(
        self, audio: Any, options: Options | None = None, *, effort: str | None = None, **settings: Any
    ) -> Transcript:
        """Transcribes a path, bytes, a file object, samples at 16 kHz, or an `Audio`.

        `effort` (sharpen.speech.efforts) says how much to spend on adapting: plain, normal (the default), high, paper.
        Settings are the fields of `Options`, as keywords, and take precedence over it:
        `model.transcribe("a.flac", language="en", adapt=sharpen.Adaptation(method="em-tok-b"))`.
        """
        given = [*(["effort"] if effort is not None else []), *settings]
        if options is not None and given:
            raise SharpenError(f"pass either options or keywords ({', '.join(given)}), not both")
        options = options or effort_options(effort or DEFAULT, **settings)
        self.check(options)
        job = self.job(audio, options)
        info = Info(self.speech.name, job.audio.duration, options, job.audio.skipped)
        return Transcript(job, info)

    def check(self, options: Options) -> None:
        """Raises if this model cannot serve the options, before any audio is read."""
        self.speech.check("en" if options.language == "auto" else options.language, options.task)
        if options.word_timestamps and not self.speech.timestamps:
            raise SharpenError(
                f"{self.speech.name} cannot say when a word was spoken; word timestamps need a Whisper model"
            )
        initial_context(self.speech, options)  # raises for a model that takes no text

    def job(self, audio: Any, options: Options) -> Job:
        """A recording to transcribe; `run` takes several at once."""
        rate = self.speech.sampling_rate
        audio = audio.at(rate) if isinstance(audio, Audio) else read_audio(audio, sampling_rate=rate)
        return Job(audio, options, self.speech)


def load(name: str | Path = "base", *, device: str = "auto", dtype: Dtype = "float32") -> Model:
    """Loads a model: a directory or file, an installed weights package, a size name, or a Hugging Face id."""
    return Model(load_speech(name, default_device() if device == "auto" else device, dtype))
