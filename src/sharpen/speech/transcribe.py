"""`Model.transcribe`: a recording in, a transcript with lazy segments out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.method.adapt import StepCallback
from sharpen.method.policy import Policy
from sharpen.models.load import load_speech
from sharpen.models.silero import load_silero
from sharpen.models.speech import FrameModel, SpeechModel
from sharpen.speech.allowance import Pool
from sharpen.speech.answers import Adapted, Decoded
from sharpen.speech.audio import Audio, open_audio
from sharpen.speech.confidence import Trust, WindowReadings, trust
from sharpen.speech.decoding import Window, decode, initial_context
from sharpen.speech.efforts import DEFAULT, effort_options
from sharpen.speech.fallback import attempts
from sharpen.speech.frames import check_frames
from sharpen.speech.job import Job as Job
from sharpen.speech.longform import Segment
from sharpen.speech.options import Options
from sharpen.speech.presets import Dtype, default_device


@dataclass(frozen=True)
class Info:
    """Facts about a transcript."""

    model: str
    duration: float  # seconds of audio
    options: Options
    skipped: int = 0  # damaged packets or frames of the file, replaced by silence


def run(
    speech: SpeechModel,
    jobs: Iterable[Job],
    batch_size: int,
    on_step: StepCallback | None = None,
    on_failure: Callable[[Job, Exception], None] | None = None,
) -> Iterator[tuple[Job, list[Segment]]]:
    """Transcribes jobs, `batch_size` windows side by side.

    Where the end of a window decides where the next one starts, they are windows of different recordings. Yields a job
    when it starts, and after each of its windows, with the new segments. `on_step` is called after every adaptation
    step. With `on_failure`, a job that fails is reported to it and dropped, and the others continue.
    """
    waiting = iter(jobs)
    active: list[Job] = []
    exhausted = False
    while True:
        while not exhausted and sum(len(job.starts()) for job in active) < batch_size:
            job = next(waiting, None)
            if job is None:
                exhausted = True
            else:
                yield job, []
                active += [] if job.finished else [job]
        if not active:
            return
        for job, window, decoded in _decoded(speech, _windows(active, batch_size, on_failure), on_step, on_failure):
            if not job.finished:  # the caller may have cancelled it
                yield job, job.accept(window, decoded)
        active = [job for job in active if not job.finished]


def _windows(
    jobs: Sequence[Job], most: int, on_failure: Callable[[Job, Exception], None] | None
) -> list[tuple[Job, Window]]:
    """The next windows of the jobs, in order; the audio of a long recording is decoded here."""
    pairs: list[tuple[Job, Window]] = []
    for job in jobs:
        try:
            pairs += [(job, job.window(start)) for start in job.starts()[: most - len(pairs)]]
        except Exception as error:
            if on_failure is None:
                raise
            pairs = [pair for pair in pairs if pair[0] is not job]
            job.cancel()
            on_failure(job, error)
    return pairs


def _decoded(
    speech: SpeechModel,
    pairs: Sequence[tuple[Job, Window]],
    on_step: StepCallback | None,
    on_failure: Callable[[Job, Exception], None] | None,
) -> list[tuple[Job, Window, Decoded]]:
    """The transcript of each window; a batch that fails is decoded one by one."""
    if not pairs:
        return []

    def results(some: Sequence[tuple[Job, Window]]) -> list[Decoded]:
        windows, languages = [window for _, window in some], [job.language for job, _ in some]
        pool = Pool([job.allowance for job, _ in some])
        return decode(speech, windows, some[0][0].options, languages, on_step, pool)

    if on_failure is None:
        return [(job, window, result) for (job, window), result in zip(pairs, results(pairs), strict=True)]
    decoded = []
    for attempt in attempts(pairs, results):
        job, window = attempt.item
        if attempt.error is not None and not job.finished:
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
        self._finish()
        return self._job.adapted

    @property
    def windows(self) -> list[WindowReadings]:
        """With `n_best`: the best texts of each window that has speech, the answer first."""
        self._finish()
        return self._job.readings

    @property
    def trust(self) -> Trust:
        """How far to trust the whole transcript."""
        return trust(list(self.segments))

    def _finish(self) -> None:
        """Decodes all windows that are left."""
        while self._more(len(self._job.segments)):
            pass

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

    @property
    def by_frames(self) -> bool:
        """Whether it is a CTC model, which has no policy and methods of its own."""
        return isinstance(self.speech, FrameModel)

    def transcribe(
        self, audio: Any, options: Options | None = None, *, effort: str | None = None, **settings: Any
    ) -> Transcript:
        """Transcribes a path, bytes, a file object, samples at 16 kHz, or an `Audio`.

        `effort` (sharpen.speech.efforts) says how much to spend on adapting: plain, normal (the default), high, max
        or paper. Settings are the fields of `Options`, as keywords, and take precedence over it:
        `model.transcribe("a.flac", language="en", adapt=sharpen.Adaptation(method="em-tok-b"))`.
        """
        given = [*(["effort"] if effort is not None else []), *settings]
        if options is not None and given:
            raise SharpenError(f"pass either options or keywords ({', '.join(given)}), not both")
        options = options or effort_options(effort or ("plain" if self.by_frames else DEFAULT), **settings)
        self.check(options)
        job = self.job(audio, options)
        info = Info(self.speech.name, job.audio.duration, options, job.audio.skipped)
        return Transcript(job, info)

    def check(self, options: Options) -> None:
        """Raises if this model cannot serve the options, or a package is missing, before any audio is read."""
        if options.needs_voice:
            load_silero()
        self.speech.check("en" if options.language == "auto" else options.language, options.task)
        if options.word_timestamps and not self.speech.timestamps:
            raise SharpenError(
                f"{self.speech.name} cannot say when a word was spoken; word timestamps need a Whisper model"
            )
        check_frames(self.speech, options)
        initial_context(self.speech, options)  # raises for a model that takes no text

    def job(self, audio: Any, options: Options) -> Job:
        """A recording to transcribe; `run` takes several at once."""
        rate = self.speech.sampling_rate
        audio = audio.at(rate) if isinstance(audio, Audio) else open_audio(audio, sampling_rate=rate)
        return Job(audio, options, self.speech)


def load(name: str | Path = "base", *, device: str = "auto", dtype: Dtype = "float32") -> Model:
    """Loads a model: a directory or file, an installed weights package, a size name, or a Hugging Face id."""
    return Model(load_speech(name, default_device() if device == "auto" else device, dtype))
