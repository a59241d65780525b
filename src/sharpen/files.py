"""Whole files on disk, written at once or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from sharpen.errors import SharpenError

_DESCRIPTOR = re.compile(r"/dev/(?:(stdout)|(stderr)|fd/(\d{1,9}))")


def behind_links(path: Path) -> Path:
    """The file that a symbolic link leads to: it is written, and the link stays."""
    return Path(os.path.realpath(path))


def aside_of(path: Path, *, again: bool = False) -> Path:
    """A free name in the same folder; short, since the path's own name may be as long as the file system allows.

    `again`: the same name at every call for the path. What a killed process left there is then replaced by the next
    one; the caller sees to it that there is one at a time.
    """
    unique = hashlib.blake2b(path.name.encode(), digest_size=8).hexdigest() if again else secrets.token_hex(8)
    return path.with_name(f".{unique}.part")


def write_text(path: str | Path, text: str) -> Path:
    """Writes a whole file and returns its path.

    An ordinary file is replaced at once: an interrupt leaves what was there before. Symbolic links are followed. Pipes
    and devices are written to; /dev/stdout and /dev/fd/N continue after what was written to that descriptor.
    """
    path = Path(path)
    try:
        if (descriptor := _descriptor(path)) is not None:
            _write_to(os.dup(descriptor), text)
        elif path.exists() and not path.is_file():
            _write_to(path, text)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(behind_links(path), text)
    except BrokenPipeError:
        raise  # the reader stopped reading, as in `| head`
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def check_writable(path: str | Path) -> None:
    """Raises now if `write_text` could not write to the path later; makes missing folders and leaves no file."""
    path = Path(path)
    if _DESCRIPTOR.fullmatch(str(path)):
        return
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.exists() or path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = aside_of(behind_links(path))
            aside.touch()
            aside.unlink()
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> SharpenError:
    folder_is_file = isinstance(error, FileExistsError | NotADirectoryError)
    why = "a part of its path is a file" if folder_is_file else error.strerror or error
    return SharpenError(f"{path} cannot be written: {why}; choose another path")


def _descriptor(path: Path) -> int | None:
    match = _DESCRIPTOR.fullmatch(str(path))
    if match is None:
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    return 1 if match[1] else 2 if match[2] else int(match[3])


def _write_to(target: int | Path, text: str) -> None:
    with open(target, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    aside = aside_of(path)
    try:
        aside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
