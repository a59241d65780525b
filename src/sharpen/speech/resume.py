"""What is finished of a long recording, on disk as it comes, so that an interrupted transcription can be continued.

The file lies beside the transcript, `NAME.resume.jsonl`. Its first line says what is transcribed, by which model and
how; a line follows for each window: the position after it and what it added. It is removed when the transcript is
complete.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.options import as_text, declared
from sharpen.speech.answers import Adapted
from sharpen.speech.confidence import WindowReadings
from sharpen.speech.job import Job
from sharpen.speech.longform import Segment
from sharpen.speech.options import Options, VadParameters
from sharpen.speech.writers import number

VERSION = 1  # of the file's layout
SUFFIX = ".resume.jsonl"
CONTEXT = 448  # tokens of earlier text that are kept: more than any model reads


class ResumeFile:
    """The windows of one recording that are finished. One process at a time may hold it."""

    def __init__(self, path: Path, job: Job) -> None:
        self.path = path
        self.adapted: list[dict[str, Any]] = []  # adapted windows of all runs, as the JSON transcript has them
        self._seen = self._cuts = self._read = 0  # adapted windows, cuts and readings of the job that are in the file
        self._position = job.position
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise SharpenError(f"{path} cannot be written: {error.strerror or error}; choose another folder") from error
        try:
            _lock(self._file, path)
            self._begin(job)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, job: Job) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]  # a kill may have left half a line
        header, now = None, identity(job)
        try:
            rows = [json.loads(line) for line in whole.splitlines()]
            if rows:
                header = dict(rows[0])
        except (ValueError, TypeError) as error:
            raise SharpenError(f"{self.path} is damaged ({error}): delete it to begin anew") from error
        if header is None:
            self._file.truncate(0)
            self._write(now)
            return
        _compare(header, now, self.path)
        self._file.truncate(len(whole))
        try:
            self._restore(job, rows[1:])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SharpenError(f"{self.path} is damaged ({error!r}): delete it to begin anew") from error

    def _restore(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        found = [restored(Segment, segment) for row in rows for segment in row["segments"]]
        job.cut += [start for row in rows for start in row["cut"]]
        job.readings += [restored(WindowReadings, window) for row in rows for window in row["readings"]]
        self.adapted += [how for row in rows for how in row["adapted"]]
        last = rows[-1]
        if job.allowance is not None:
            job.allowance.earned, job.allowance.spent = last["time"]
        job.resume(last["position"], found, last["language"], last["context"])
        self._cuts, self._read, self._position = len(job.cut), len(job.readings), job.position

    def add(self, job: Job, new: Sequence[Segment]) -> None:
        """One more window of the job; it is on disk when this returns. A window that waits for its turn is not."""
        if job.position == self._position:
            return
        adapted = [adapted_row(start, how) for start, how in job.adapted[self._seen :]]
        time = None if job.allowance is None else (job.allowance.earned, job.allowance.spent)
        row = {
            "position": job.position,
            "language": job.language,
            "segments": [dataclasses.asdict(segment) for segment in new],
            "cut": job.cut[self._cuts :],
            "adapted": adapted,
            "readings": [dataclasses.asdict(window) for window in job.readings[self._read :]],
            "context": job.context[-CONTEXT:],
            "time": time,
        }
        self._write(row)
        self.adapted += adapted
        self._seen, self._cuts, self._read = len(job.adapted), len(job.cut), len(job.readings)
        self._position = job.position

    def close(self) -> None:
        """Keeps the file, for the next run."""
        with suppress(OSError):
            self._file.close()

    def remove(self) -> None:
        """The transcript is complete."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()


def identity(job: Job) -> dict[str, Any]:
    """What must be the same in both runs for the text to be the same."""
    adapt, voice = job.options.adapt, job.options.vad_parameters
    options = {name: as_text(getattr(job.options, name)) for name in declared(Options)}
    vad = {f"vad {name}": as_text(getattr(voice, name)) for name in declared(VadParameters)}
    names = declared(Adaptation) if adapt is not None else ()
    adaptation = {f"adapt {name}": as_text(getattr(adapt, name)) for name in names}
    return {
        "sharpen resume": VERSION,
        "audio": job.audio.fingerprint,
        "model": f"{job.speech.name} {_norms_digest(job)}",
        "options": {**options, **vad, **adaptation},
    }


def adapted_row(start: float, how: Adapted) -> dict[str, Any]:
    """An adapted window, as the JSON transcript has it."""
    return {
        "start": round(start, 3),
        "steps": len(how.trace.steps),
        "H_tok": [number(step.H_tok, 4) for step in how.trace.steps],
        "source_text": how.source.text,
        "refused": how.refused,
        "stopped": how.trace.stopped,
    }


def restored(kind: Any, value: Any) -> Any:
    """The dataclass, tuple or plain value that JSON has made lists and objects of."""
    if value is None:
        return None
    kind = next((part for part in get_args(kind) if part is not NoneType), kind) if NoneType in get_args(kind) else kind
    if dataclasses.is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{name: restored(kinds[name], part) for name, part in value.items()})  # type: ignore[operator]
    if isinstance(value, list):
        parts = [part for part in get_args(kind) if get_origin(kind) is tuple and part is not ...]
        each = parts * len(value) if len(parts) == 1 else parts
        return tuple(restored(part, one) for part, one in zip(each, value, strict=True))
    return value


def _norms_digest(job: Job) -> str:
    """Of the norms' parameters: any training changes them."""
    digest = hashlib.blake2b(digest_size=8)
    for norm in job.speech.policy.norms():
        for tensor in (norm.weight, norm.bias):
            if tensor is not None:
                digest.update(tensor.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _compare(then: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuses to mix two transcriptions."""
    advice = "continue with the same, or delete it to begin anew"
    if then.get("sharpen resume") != VERSION:
        raise SharpenError(f"{path} is not a file of this version's --resume: delete it to begin anew")
    for what in ("audio", "model"):
        if then.get(what) != now[what]:
            raise SharpenError(f"{path} belongs to another {what}: {advice}")
    old = dict(then.get("options") or {})
    changed = [
        f"{name} was {old.get(name)}, is {now['options'].get(name)}"
        for name in {**old, **now["options"]}
        if old.get(name) != now["options"].get(name)
    ]
    if changed:
        raise SharpenError(f"{path} was begun with other options ({'; '.join(changed)}): {advice}")


def _lock(file: Any, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise SharpenError(f"{path} is in use: another process transcribes this recording") from error
