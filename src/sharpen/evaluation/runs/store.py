"""The file of a run: one JSON row per line, appended as rows come, and resumed after any crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.rows import Row, parse

NAME = "rows.jsonl"


def read_rows(where: str | Path) -> list[Row]:
    """The rows of a run's folder, or of one file, in the order they were written; one for each key.

    An incomplete last line is left out: a run may be writing it. A failed row is replaced by a later answer.
    """
    path = Path(where)
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise SharpenError(f"{path}: no such file; expected the rows of a run, which `sharpen evaluate --out` writes")
    lines = _whole_lines(path.read_bytes())
    return [row for _, row in _kept(zip(lines, _parse_lines(path, lines), strict=True))]


class Store:
    """The rows of one run, open for appending. Only one process at a time may hold a folder.

    A line that a crash left incomplete is cut off when the file is opened. Failed rows stay in the file until an answer
    replaces them; they are not in `rows`, so that they are tried again.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / NAME
        self._lock: int | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path.parent)
            self.rows: dict[str, Row] = {row.key: row for row in self._repair()}
            self._file = self.path.open("ab")
        except BaseException as error:
            self._unlock()
            if isinstance(error, OSError):
                raise SharpenError(f"cannot write to {folder}: {error}; give another folder to --out") from error
            raise

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def add(self, rows: Iterable[Row]) -> list[Row]:
        """Appends and returns the rows whose keys are new. Each is flushed at once: a kill breaks one at most."""
        added = []
        try:
            for row in rows:
                if row.key not in self.rows:
                    self._file.write(row.as_json().encode() + b"\n")
                    self._file.flush()
                    self.rows[row.key] = row
                    added.append(row)
            if added:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise SharpenError(
                f"cannot write to {self.path}: {error}; make room, then run the same command again to resume"
            ) from error
        return added

    def close(self) -> None:
        with contextlib.suppress(OSError):  # `add` has reported what could not be written
            self._file.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _repair(self) -> list[Row]:
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = _whole_lines(content)
        kept = _kept(zip(whole, _parse_lines(self.path, whole), strict=True))
        incomplete = content and not content.endswith(b"\n")
        if incomplete or len(kept) < len(whole):
            _replace(self.path, b"".join(line + b"\n" for line, _ in kept))
        return [row for _, row in kept if not row.failed]


def _kept(lines: Iterable[tuple[bytes, Row]]) -> list[tuple[bytes, Row]]:
    """One line for each key: the first answer, or else the last failure."""
    by_key: dict[str, tuple[bytes, Row]] = {}
    for line, row in lines:
        if row.key not in by_key or by_key[row.key][1].failed:
            by_key.pop(row.key, None)  # its place is where the answer was written
            by_key[row.key] = line, row
    return list(by_key.values())


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines, without an incomplete last one; a row's newline is written last."""
    *whole, last = content.split(b"\n")
    if last:
        with contextlib.suppress(SharpenError, UnicodeDecodeError):
            parse(last.decode())
            whole.append(last)  # only its newline is missing
    return whole


def _parse_lines(path: Path, lines: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        try:
            yield parse(line.decode())
        except (SharpenError, UnicodeDecodeError) as error:
            raise SharpenError(
                f"{path}, line {number}: {error}; remove that line, or give another folder to --out"
            ) from error


def _replace(path: Path, content: bytes) -> None:
    """Atomic: the old file stays until the new one is complete on the disk."""
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock."""
    handle = _lock(folder)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(folder: Path) -> int | None:
    """A lock on the folder itself, so that no lock file stays; it ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock, so a second writer is not refused there
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise SharpenError(
            f"{folder} is in use by another run; wait until it ends, or give another folder to --out"
        ) from error
    return handle
