"""Reads the text files of corpora: JSON lines, tab-separated tables and lists of transcripts, with line numbers."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError


def json_lines(path: Path) -> Iterator[dict[str, Any] | str | None]:
    """For each line its object, None if it is empty, or a text that says what is wrong with it."""
    for line in lines_of(path):
        try:
            row = json.loads(line) if line.strip() else None
            yield row if row is None or isinstance(row, dict) else f"{line[:40]!r} is not a JSON object"
        except json.JSONDecodeError as error:
            yield f"not JSON ({error.msg} at character {error.pos + 1})"
        except (
            ValueError,
            RecursionError,
        ) as error:  # a number with thousands of digits, brackets nested a thousand deep
            yield f"JSON that cannot be parsed ({error})"


def tab_separated(path: Path, columns: Iterable[str]) -> Iterator[tuple[dict[str, str | None], str]]:
    """Each line as a dict, with its place."""
    # Sentences contain single quotation marks; with csv's quoting, all text up to the next one would be one field.
    reader = csv.DictReader(lines_of(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = set(columns) - set(reader.fieldnames or ())
    if missing:
        raise SharpenError(
            f"{path}: no column {', '.join(sorted(missing))} in the first line; expected the columns of Common Voice"
        )
    for row in reader:
        yield row, f"{path} line {reader.line_num}"


def transcripts(path: Path, separator: str) -> Iterator[tuple[str, str | None, str]]:
    """Name, text and place of each line that is not empty; the text is None if the line has no separator."""
    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            name, separated, text = line.strip().partition(separator)
            yield name, text.strip() if separated else None, f"{path} line {number}"


def lines_of(path: Path) -> list[str]:
    """Lines as editors count them; str.splitlines also breaks at rarer characters, which would shift line numbers.

    Invalid UTF-8 becomes surrogates; the entry that holds them is skipped with a reason.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SharpenError(f"{path} cannot be read: {error.strerror or error}") from error
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SharpenError(f"{path} is in UTF-16; save it as UTF-8")
    return content.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n").split("\n")
