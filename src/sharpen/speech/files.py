"""Many recordings to transcripts on disk; one that fails is reported and the others continue."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import reason
from sharpen.explain.page import Explanation, write_html
from sharpen.method.adapt import StepCallback
from sharpen.speech.answers import Adapted
from sharpen.speech.audio import open_audio
from sharpen.speech.confidence import WindowReadings, trust
from sharpen.speech.doubts import trust_section
from sharpen.speech.lanes import run_in_lanes
from sharpen.speech.longform import Segment
from sharpen.speech.options import Options
from sharpen.speech.output import STDIN, TranscriptFiles, check_resume, plan_outputs
from sharpen.speech.resume import SUFFIX, ResumeFile, adapted_row
from sharpen.speech.subtitles import Subtitles
from sharpen.speech.transcribe import Job, Model
from sharpen.speech.writers import as_readings, as_trust


@dataclass(frozen=True)
class Event:
    """Something that happened to one recording."""

    source: str  # as given
    kind: str  # "opened", "window" (done), "finished" or "failed"
    seconds: float  # of audio: the length when opened or finished, the progress of a window
    segments: tuple[Segment, ...] = ()  # the new ones of a window; all of them when finished
    readings: tuple[WindowReadings, ...] = ()  # as the segments, with n_best: the best texts of a window
    adapted: tuple[tuple[float, Adapted], ...] = ()  # when finished: adapted windows, by their start in seconds
    explanations: tuple[Explanation, ...] = ()  # when finished, with `explain`
    reason: str = ""  # why it failed, or warnings about a finished one


@dataclass
class _OpenRecording:
    source: str
    files: TranscriptFiles | None
    page: Path | None  # where to explain what adaptation changed
    resume: ResumeFile | None = None
    done: float = 0.0


def transcribe_files(
    model: Model,
    sources: Sequence[str],
    options: Options,
    output_dir: str = ".",
    formats: Sequence[str] = (),
    on_step: StepCallback | None = None,
    subtitles: Subtitles | None = None,
    resume: bool = False,
    lanes: int = 1,
) -> Iterator[Event]:
    """Transcribes each source and writes its files as segments come. "-" is standard input.

    A recording's files get their final names when it is complete. Closing the iterator early, or an exception inside
    it, keeps complete files and removes partial ones. `subtitles` say how srt and vtt show words. With `resume` what is
    finished of a recording is also kept beside its files (speech/resume.py), and a later call with it continues there.
    So many recordings as there are `lanes` are transcribed at the same time (speech/lanes.py), and their events mix.
    """
    (subtitles or Subtitles()).check(options.word_timestamps, formats)
    if resume:
        check_resume(formats, explain=options.adapt is not None and options.adapt.explain)
    stems = plan_outputs(sources)
    pending: list[Event] = []
    open_jobs: dict[Job, _OpenRecording] = {}

    with ExitStack() as stack:

        def jobs() -> Iterator[Job]:
            for source in stems:
                try:
                    rate = model.speech.sampling_rate
                    audio = open_audio(sys.stdin.buffer if source == STDIN else source, sampling_rate=rate)
                    job = model.job(audio, options)
                    files = (
                        TranscriptFiles(output_dir, stems[source], formats, subtitles, again=resume)
                        if formats
                        else None
                    )
                    side = ResumeFile(Path(output_dir) / (stems[source] + SUFFIX), job) if resume else None
                    if side is not None:
                        stack.callback(side.close)
                    if files is not None:
                        stack.enter_context(files)
                        for segment in job.segments:
                            files.add(segment)
                except Exception as error:  # one unreadable file must not stop the others
                    pending.append(Event(source, "failed", 0.0, reason=reason(error)))
                    continue
                explain = options.adapt is not None and options.adapt.explain
                page = Path(output_dir) / f"{stems[source]}.html" if explain else None
                open_jobs[job] = _OpenRecording(source, files, page, side, job.done if job.segments else 0.0)
                pending.append(Event(source, "opened", job.audio.duration))
                if job.segments:
                    pending.append(Event(source, "window", job.done, tuple(job.segments)))
                yield job

        def failed(job: Job, error: Exception) -> None:
            state = open_jobs.pop(job)
            if state.files is not None:
                state.files.discard()
            pending.append(Event(state.source, "failed", job.audio.duration, reason=reason(error)))

        for job, new in run_in_lanes(
            model.speech, jobs(), min(lanes, len(stems) or 1), options.batch_size, on_step, failed
        ):
            yield from pending
            pending.clear()
            yield from _advance(job, new, open_jobs[job])
            if job.finished:
                del open_jobs[job]
        yield from pending


def _advance(job: Job, new: Sequence[Segment], state: _OpenRecording) -> Iterator[Event]:
    """Writes one more window; a write error fails this recording alone."""
    try:
        if state.files is not None:
            for segment in new:
                state.files.add(segment)
            if state.resume is not None:
                state.resume.add(job, new)
            if job.finished:
                state.files.finish(_meta(job, state.resume))
                if state.resume is not None:
                    state.resume.remove()
    except Exception as error:
        job.cancel()
        if state.files is not None:
            state.files.discard()
        yield Event(state.source, "failed", job.audio.duration, reason=f"cannot write: {error}")
        return
    best = tuple(job.readings[-1:]) if new else ()
    yield Event(state.source, "window", job.done - state.done, tuple(new), best)
    state.done = job.done
    if job.finished:
        warnings = [f"{job.audio.skipped} damaged packets were skipped"] if job.audio.skipped else []
        if state.page is not None and job.adapted:
            try:
                write_html(state.page, explanations(job))
            except Exception as error:  # the transcript is complete, with or without its page
                warnings.append(f"the explanation page was not written: {reason(error)}")
        if not job.options.timestamps and job.audio.duration > job.speech.seconds:
            warnings.append(
                "without timestamps Whisper may stop at the first pause of a window; compare a run with them"
            )
        if job.options.word_timestamps and job.options.task == "translate":
            warnings.append("the times of translated words are rough: a translation does not follow the speech")
        if job.cut:
            where = ", ".join(f"{start:.0f} s" for start in job.cut)
            warnings.append(f"the length limit cut the text at {where}: it ends too early, or repeats itself")
        yield Event(
            state.source,
            "finished",
            job.audio.duration,
            tuple(job.segments),
            tuple(job.readings),
            tuple(job.adapted),
            tuple(explanations(job)) if state.page is not None else (),
            "; ".join(warnings),
        )


def explanations(job: Job) -> list[Explanation]:
    """What adaptation changed in each window, for people."""
    adaptation = job.options.adapt
    method = adaptation.method if adaptation is not None and isinstance(adaptation.method, str) else "custom"
    return [
        Explanation(
            name=f"{job.audio.name} at {start:.1f} s" if start else job.audio.name,
            method=method,
            source=how.source,
            adapted=how.result,
            trace=how.trace,
            tokenizer=job.speech.tokenizer,
            guard=how.refused,
            seconds=sum(sum(step.seconds.values()) for step in how.trace.steps),
            more=trust_section(job.explained[start]) if job.explained.get(start) else "",
        )
        for start, how in job.adapted
    ]


def _meta(job: Job, resumed: ResumeFile | None = None) -> dict[str, Any]:
    """The fields of the JSON file besides text and segments; a resumed transcription has windows of earlier runs."""
    meta: dict[str, Any] = {"language": job.language or "en", "duration": round(job.audio.duration, 3)}
    meta |= as_trust(trust(job.segments))
    if job.options.n_best > 1:
        meta["windows"] = [as_readings(window) for window in job.readings]
    if job.options.adapt is not None:
        meta["adaptation"] = {
            "method": job.options.adapt.method if isinstance(job.options.adapt.method, str) else "custom",
            "windows": [adapted_row(*one) for one in job.adapted] if resumed is None else resumed.adapted,
        }
    return meta
