"""Which words of a window to doubt, as a section of the page: each word with its confidence, and what else it may be.

The others show when a word is pointed at, clicked, or reached with the keyboard; the page needs no script for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from html import escape

from sharpen.method.network import Alternative
from sharpen.speech.longform import Segment
from sharpen.speech.words import Word

DOUBTS = (0.1, 0.2, 0.4, 0.6, 0.8)  # 1 - confidence: lower bounds of the colours e1 … e5


def trust_section(segments: Sequence[Segment]) -> str:
    """The words of the answer, coloured by how doubtful they are."""
    words = [word for segment in segments for word in segment.words]
    wrong = sum(segment.expected_wer * len(segment.words) for segment in segments) / max(1, len(words))
    notes = dict.fromkeys(segment.unreliable for segment in segments if segment.unreliable)
    return (
        "<section><h3>Which words to doubt</h3>"
        + "".join(f"<p class='note'>unreliable: {escape(note)}</p>" for note in notes)
        + f"<p class='facts'>Expected word error rate: {wrong:.0%}. Strong colours are doubtful words. Point "
        "at a coloured or underlined word, or move to it with the tab key, to see what other hypotheses have in its "
        f"place.</p><p class='tokens doubts'>{''.join(map(_shown, words))}</p></section>"
    )


def _shown(word: Word) -> str:
    others = [
        *_lines(word.before, "before it: {}"),
        *_lines(word.alternatives, "{}"),
        *_lines(word.after, "behind it: {}"),
    ]
    text = word.word.lstrip()
    gap = " " * (text != word.word)
    level = bisect_right(DOUBTS, round(1 - word.confidence, 6))
    if not others and level == 0:
        return f"{gap}{escape(text)}"
    note = f"<b>{word.confidence:.0%}</b> likely to be right"
    rest = "".join(f"<span>{line}</span>" for line in others)
    hidden = f'<span class="note-of" role="note">{note}{rest}</span>'
    return f'{gap}<span class="e{level}{" others" * bool(others)}" tabindex="0">{escape(text)}{hidden}</span>'


def _lines(some: Sequence[Alternative], form: str) -> list[str]:
    """Each alternative with its share of the beams."""
    return [f"{form.format(escape(a.word) or '<i>no word</i>')} <i>{a.probability:.0%}</i>" for a in some]
