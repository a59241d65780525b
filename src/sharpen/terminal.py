"""Text for a terminal: display width, aligned columns, and progress that also reads well in a log file."""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import IO, Any

EVERY = 30.0  # seconds between two progress lines where there is no terminal
GAP = "  "  # between two columns
_JOINER = "\u200d"  # ZERO WIDTH JOINER: makes one emoji of several
_JAMO = range(0x1160, 0x1200)  # vowels and final consonants of decomposed Hangul, drawn inside their syllable


def width(text: str) -> int:
    """How many terminal columns the text takes: two for wide East Asian characters, none for combining marks."""
    total, before = 0, ""
    for c in text:
        wide = unicodedata.east_asian_width(c) in "WF"
        if not _is_zero_width(c) and not (wide and before == _JOINER):
            total += 2 if wide else 1
        before = c
    return total


def clusters(text: str) -> Iterator[str]:
    """The text's characters, each with the marks that belong to it."""
    cluster = ""
    for c in text:
        belongs = unicodedata.category(c) in ("Mn", "Mc", "Me", "Cf") or ord(c) in _JAMO or cluster.endswith(_JOINER)
        if cluster and not belongs:
            yield cluster
            cluster = ""
        cluster += c
    if cluster:
        yield cluster


def _is_zero_width(c: str) -> bool:
    return unicodedata.category(c) in ("Mn", "Me", "Cf", "Cc") or ord(c) in _JAMO


def pad(text: str, size: int, *, right: bool = False) -> str:
    """The text filled up with spaces to `size` columns; with `right` they stand before it."""
    spaces = " " * max(0, size - width(text))
    return spaces + text if right else text + spaces


def cut(text: str, size: int, *, end: bool = False) -> str:
    """The longest beginning (with `end`: the longest end) in `size` columns; characters keep their marks."""
    kept, used = [], 0
    parts = list(clusters(text))
    for cluster in reversed(parts) if end else parts:
        used += width(cluster)
        if used > size:
            break
        kept.append(cluster)
    return "".join(reversed(kept) if end else kept)


def wrap(text: str, size: int) -> list[str]:
    """The text in lines of at most `size` columns, broken at spaces; a word longer than a line is divided."""
    lines, line = [], ""
    for word in text.split():
        rest = word
        while rest:
            if width(line) + bool(line) + width(rest) <= size:
                line, rest = (f"{line} {rest}" if line else rest), ""
            elif line:
                lines.append(line)
                line = ""
            else:
                head = cut(rest, size) or next(clusters(rest))
                lines.append(head)
                rest = rest[len(head) :]
    return [*lines, line] if line else lines


def columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), rule: bool = False) -> list[str]:
    """The rows as lines with aligned columns. Missing cells at the end of a row are empty.

    Columns numbered in `right` are right-aligned. `rule` draws a line below the first row.
    """
    widths = [max(map(width, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = [_line(row, widths, right) for row in rows]
    return [lines[0], GAP.join("-" * w for w in widths), *lines[1:]] if rule and lines else lines


def _line(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    return GAP.join(
        pad(cell, w, right=i in right) for i, (cell, w) in enumerate(zip(row, widths, strict=False))
    ).rstrip()


class ProgressBar:
    """How far a long computation is: a bar on a terminal; elsewhere a line at most every EVERY seconds and at the end.

    with progress(len(clips), "clips") as bar:
        for clip in clips:
            bar.set_text(clip.name)
            bar.update()
    """

    def __init__(self, total: float | None, unit: str, done: float, quiet: bool, stream: IO[str]) -> None:
        self.total, self.unit, self.done, self.text = total, unit, done, ""
        self._stream, self._quiet = stream, quiet
        self._first = done
        self._start = self._last = time.monotonic()
        self._printed = ""
        self._bar: Any = None
        if not quiet and stream.isatty():
            from tqdm import tqdm

            known = "{percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}] {desc}"
            self._bar = tqdm(
                total=total or 0,
                initial=done,
                unit=unit,
                file=stream,
                dynamic_ncols=True,
                bar_format="[{elapsed}] {desc}" if total is None else known,
            )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, amount: float = 1) -> None:
        """`amount` more is done."""
        self.done += amount
        if self.total is not None:
            self.total = max(self.total, self.done)  # rounding; tqdm gives up its bar where the total is exceeded
        if self._bar is not None:
            self._bar.total = self.total or 0
            self._bar.update(amount)
        self._print_if_due()

    def extend(self, amount: float) -> None:
        """The total grows by `amount`."""
        self.total = (self.total or 0) + amount
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.refresh()

    def set_text(self, text: str) -> None:
        """What to show beside the numbers."""
        self.text = text
        if self._bar is not None:
            self._bar.set_description_str(text)
        self._print_if_due()

    def write(self, text: str, file: IO[str] | None = None) -> None:
        """Prints lines (to standard error, unless `file` is given) without breaking the bar; also where quiet."""
        file = sys.stderr if file is None else file
        if self._bar is not None:
            self._bar.write(text, file=file)
        else:
            print(text, file=file)
        file.flush()

    def close(self) -> None:
        """Ends the bar, or prints the last line."""
        if self._bar is not None:
            self._bar.close()
        elif not self._quiet and self.total != 0:
            self._print()

    def _print_if_due(self) -> None:
        if self._bar is None and not self._quiet and time.monotonic() - self._last >= EVERY:
            self._print()

    def _print(self) -> None:
        state = f"{self.done:.0f}/{self.total:.0f} {self.unit}" if self.total is not None else ""
        facts = f"{state}; {self.text}"
        if facts == self._printed:
            return
        now = time.monotonic()
        elapsed, gained = now - self._start, self.done - self._first
        times = [state, f"{_clock(elapsed)} elapsed"]
        if self.total is not None and gained > 0 and self.done < self.total:
            times.append(f"{_clock(elapsed * (self.total - self.done) / gained)} left")
        line = ", ".join(part for part in times if part) + (f"; {self.text}" if self.text else "")
        print(f"sharpen: {line}", file=self._stream, flush=True)
        self._last, self._printed = now, facts


def progress(
    total: float | None, unit: str, *, done: float = 0, quiet: bool = False, stream: IO[str] | None = None
) -> ProgressBar:
    """Progress towards `total` units of work, of which `done` were there before; None where the total is not known.

    It goes to standard error unless `stream` is given. `quiet` shows nothing but what `write` prints.
    """
    return ProgressBar(total, unit, done, quiet, sys.stderr if stream is None else stream)


def _clock(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    h, m = divmod(minutes, 60)
    return f"{h}:{m:02d}:{s:02d}" if h else f"{m}:{s:02d}"
