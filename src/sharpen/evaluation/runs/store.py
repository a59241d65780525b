"""The file of a run: one JSON row a line, written as each comes, and taken up again after any crash."""

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

    A torn last line is left out: a run may be writing it. A row that says why it failed gives way to a later answer.
    """
    path = Path(where)
    path = path / NAME if path.is_dir() else path
    if not path.is_file():
        raise SharpenError(f"{path}: no such file; expected the rows of a run, which `sharpen evaluate --out` writes")
    lines = _whole_lines(path.read_bytes())
    return [row for _, row in _kept(zip(lines, _parse_lines(path, lines), strict=True))]


class Store:
    """The rows of one run, open for more. Only one process at a time may hold a folder.

    What is in the file when it is opened was finished by an earlier run. A line torn by a crash is cut off. Rows that
    failed stay in the file, as a record, until an answer takes their place; they are not in `rows`, so that they are
    tried again.
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
        """Writes those rows that are not here yet, each flushed before the next: a kill tears one at most."""
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
                f"cannot write to {self.path}: {error}; make room, and give the same command again: it goes on where "
                "this run stopped"
            ) from error
        return added

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was told by `add`
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
        torn = content and not content.endswith(b"\n")
        if torn or len(kept) < len(whole):
            _replace(self.path, b"".join(line + b"\n" for line, _ in kept))
        return [row for _, row in kept if not row.failed]


def _kept(lines: Iterable[tuple[bytes, Row]]) -> list[tuple[bytes, Row]]:
    """One line for each key: the first answer, or else the last failure."""
    found: dict[str, tuple[bytes, Row]] = {}
    for line, row in lines:
        if row.key not in found or found[row.key][1].failed:
            found.pop(row.key, None)  # it stands where it was written
            found[row.key] = line, row
    return list(found.values())


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines without what a kill left of the last one; the newline is the last byte of a row to be written."""
    *whole, last = content.split(b"\n")
    if last:
        with contextlib.suppress(SharpenError, UnicodeDecodeError):
            parse(last.decode())
            whole.append(last)  # all but its newline is there
    return whole


def _parse_lines(path: Path, lines: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        try:
            yield parse(line.decode())
        except (SharpenError, UnicodeDecodeError) as error:
            raise SharpenError(
                f"{path}, line {number}: {error}; remove that line, or take another folder, to go on"
            ) from error


def _replace(path: Path, content: bytes) -> None:
    """All of it or nothing: the old file stays until the new one is whole on the disk."""
    aside = path.with_name(path.name + ".part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process that asks for it has the folder meanwhile."""
    handle = _lock(folder)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _lock(folder: Path) -> int | None:
    """Holds the folder itself, so that nothing is left behind; the system lets go of it when the process ends."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: there nothing hinders a second writer
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise SharpenError(
            f"{folder} is held by another run; wait for it to end, or give another folder to --out"
        ) from error
    return handle
