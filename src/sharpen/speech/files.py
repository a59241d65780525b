"""Many recordings to transcripts on disk: one that fails is named and the others go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sharpen.errors import SharpenError
from sharpen.speech.audio import read_audio
from sharpen.speech.decoding import Options
from sharpen.speech.longform import Segment
from sharpen.speech.transcribe import Job, Model, run
from sharpen.speech.writers import STDIN, TranscriptFiles, plan_outputs


@dataclass(frozen=True)
class Event:
    """Something that happened to one recording."""

    source: str  # as given
    kind: str  # "opened", "window" (done), "finished" or "failed"
    seconds: float  # of audio: its length when opened, what a window took, the length again when finished
    segments: tuple[Segment, ...] = ()  # new ones of a window, all of them when finished
    reason: str = ""  # why it failed, or what a finished one warns of


@dataclass
class _Open:
    source: str
    files: TranscriptFiles | None
    done: float = 0.0


def transcribe_files(
    model: Model, sources: Sequence[str], options: Options, output_dir: str = ".", formats: Sequence[str] = ()
) -> Iterator[Event]:
    """Transcribes each source, writing its files as segments come. "-" is standard input.

    A recording's files take their names when it is complete. Closing the iterator early, or an exception inside it,
    leaves what is complete and removes what is not.
    """
    stems = plan_outputs(sources)
    pending: list[Event] = []
    open_jobs: dict[Job, _Open] = {}

    with ExitStack() as stack:

        def jobs() -> Iterator[Job]:
            for source in stems:
                try:
                    audio = read_audio(sys.stdin.buffer if source == STDIN else source)
                    job = model.job(audio, options)
                    files = TranscriptFiles(output_dir, stems[source], formats) if formats else None
                    if files is not None:
                        stack.enter_context(files)
                except SharpenError as error:
                    pending.append(Event(source, "failed", 0.0, reason=str(error)))
                    continue
                open_jobs[job] = _Open(source, files)
                pending.append(Event(source, "opened", job.audio.duration))
                yield job

        for job, new in run(model.policy, jobs(), options.batch_size):
            yield from pending
            pending.clear()
            yield from _advance(job, new, open_jobs[job])
            if job.finished:
                del open_jobs[job]
        yield from pending


def _advance(job: Job, new: Sequence[Segment], state: _Open) -> Iterator[Event]:
    """One window further; a disk that refuses the segments fails this recording alone."""
    try:
        if state.files is not None:
            for segment in new:
                state.files.add(segment)
            if job.finished:
                state.files.finish({"language": job.language or "en", "duration": round(job.audio.duration, 3)})
    except OSError as error:
        job.cancel()
        yield Event(state.source, "failed", job.audio.duration, reason=f"cannot write: {error.strerror or error}")
        return
    yield Event(state.source, "window", job.done - state.done, tuple(new))
    state.done = job.done
    if job.finished:
        skipped = job.audio.skipped
        warning = f"{skipped} damaged packets were skipped" if skipped else ""
        yield Event(state.source, "finished", job.audio.duration, tuple(job.found), warning)
