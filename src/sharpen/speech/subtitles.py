"""Words laid out as subtitles: which are shown together, on which lines, and which is underlined when.

The options and what they do are those of openai-whisper's command; docs/words.md says what differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sharpen.errors import SharpenError
from sharpen.options import option, validate

if TYPE_CHECKING:
    from sharpen.speech.words import Word  # only the type: options are checked before torch is loaded

FORMATS = ("srt", "vtt")
LONG_PAUSE = 3.0  # seconds between the starts of two words, after which subtitles that run on begin anew


@dataclass(frozen=True)
class Subtitles:
    """How srt and vtt show words. Without any of these a segment is a subtitle, on one line."""

    highlight_words: bool = option(False, "underline each word in srt and vtt while it is spoken", role="output")
    max_line_width: int | None = option(None, "characters in a line of srt and vtt", least=1, role="output")
    max_line_count: int | None = option(
        None,
        "lines in a subtitle; it needs --max-line-width, and subtitles then run on from one segment to the next",
        least=1,
        role="output",
    )
    max_words_per_line: int | None = option(
        None, "words in a subtitle; not with --max-line-count", least=1, role="output"
    )

    def __post_init__(self) -> None:
        validate(self)
        if self.max_line_count is not None and self.max_line_width is None:
            raise SharpenError(f"max_line_count is {self.max_line_count}, but lines have no end: set max_line_width")
        if self.max_line_count is not None and self.max_words_per_line is not None:
            raise SharpenError("max_words_per_line has no effect with max_line_count: leave one of them out")

    @property
    def given(self) -> list[str]:
        """The names of the options that are not as usual."""
        return [f.name for f in fields(self) if getattr(self, f.name) != f.default]

    def check(self, word_timestamps: bool, formats: Collection[str]) -> None:
        """Raises if what is given needs words with times, or files, that there will not be."""
        if not self.given:
            return
        names, need = ", ".join(self.given), "needs" if len(self.given) == 1 else "need"
        if not word_timestamps:
            raise SharpenError(f"{names} {need} the times of words: set word_timestamps (--word-timestamps)")
        if not set(formats) & set(FORMATS):
            raise SharpenError(f"{names} {need} srt or vtt among the output formats (--output-format srt)")


@dataclass(frozen=True)
class Cue:
    """A text and when it is shown."""

    start: float  # seconds
    end: float
    text: str  # clean, with its line breaks and marks


class CueLayout:
    """Makes cues of words, segment after segment; `clean` makes a text safe for the format."""

    def __init__(self, style: Subtitles, clean: Callable[[str], str]) -> None:
        self.style, self.clean = style, clean
        self._runs_on = style.max_line_count is not None
        self._shown: list[tuple[Word, str]] = []  # words of the next subtitle, as they are shown
        self._width = 0  # of its last line so far
        self._lines = 1

    def add(self, words: Sequence[Word]) -> Iterator[Cue]:
        """The cues that the words of one more segment complete."""
        width, most = self.style.max_line_width or math.inf, self.style.max_words_per_line or math.inf
        for i, word in enumerate(word for word in words if word.word.strip()):
            text = " ".join(word.word.splitlines())
            ends = self._ends(word) if self._runs_on else i % most == 0
            if self._width and self._width + len(text) <= width and not ends:
                self._width += len(text)
            else:
                text = text.strip()
                full = self._runs_on and self._lines >= (self.style.max_line_count or math.inf)
                if self._shown and (ends or full):
                    yield from self.finish()
                elif self._width:
                    self._lines += 1
                    text = f"\n{text}"
                self._width = len(text.strip())
            self._shown.append((word, text))
        if not self._runs_on:
            yield from self.finish()

    def finish(self) -> Iterator[Cue]:
        """The cues of the words that are left."""
        shown, self._shown, self._width, self._lines = self._shown, [], 0, 1
        if not shown:
            return
        texts = [text for _, text in shown]
        if not self.style.highlight_words:
            yield Cue(shown[0][0].start, shown[-1][0].end, self.clean("".join(texts)))
            return
        at = shown[0][0].start
        for i, (word, text) in enumerate(shown):
            if round(1000 * word.start) > round(1000 * at):  # files have milliseconds: no cue of none
                yield Cue(at, word.start, self.clean("".join(texts)))
            space = text[: len(text) - len(text.lstrip())]
            before, after = self.clean("".join(texts[:i]) + space), self.clean("".join(texts[i + 1 :]))
            yield Cue(word.start, word.end, f"{before}<u>{self.clean(text.lstrip())}</u>{after}")
            at = word.end

    def _ends(self, word: Word) -> bool:
        """Whether the speaker has paused before this word."""
        return bool(self._shown) and word.start - self._shown[-1][0].start > LONG_PAUSE
