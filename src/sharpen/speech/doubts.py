"""Which words of a window to doubt, as a section of the page: each word with its confidence, its times if they are
known, and what else it may be.

The others show when a word is pointed at, clicked, or reached with the keyboard; the page needs no script for it. A
word that is certain and has no others is no stop of the keyboard: its times show where the mouse points.
"""

from __future__ import annotations

import math
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
        + f"<p class='facts'>Expected word error rate: {wrong:.0%}. Colour is here the chance that a word is wrong. "
        "Point at a coloured or underlined word, click it, or move to it with the tab key, to see "
        f"{'when it was said and ' * any(map(_timed, words))}what other hypotheses have in its place.</p>"
        f"{_legend()}<p class='tokens doubts'>{''.join(map(_shown, words))}</p></section>"
    )


def _legend() -> str:
    swatches = "".join(f'<li><i class="e{k}"></i>{low:.0%}</li>' for k, low in enumerate((0.0, *DOUBTS)))
    return f"<ul class='legend' aria-label='Chance that a word is wrong'><li>right</li>{swatches}<li>wrong</li></ul>"


def _shown(word: Word) -> str:
    others = [
        *_lines(word.before, "before it: {}"),
        *_lines(word.alternatives, "{}"),
        *_lines(word.after, "behind it: {}"),
    ]
    text = word.word.lstrip()
    gap = " " * (text != word.word)
    level = bisect_right(DOUBTS, round(1 - word.confidence, 6))
    when = f"{word.start:.2f} to {word.end:.2f} s" if _timed(word) else ""
    if not others and level == 0:
        return f'{gap}<span class="sure" title="{when}">{escape(text)}</span>' if when else f"{gap}{escape(text)}"
    note = f"<b>{word.confidence:.0%}</b> likely to be right" + (f"<span>{when}</span>" if when else "")
    rest = "".join(f"<span>{line}</span>" for line in others)
    hidden = f'<span class="note-of" role="note">{note}{rest}</span>'
    return f'{gap}<span class="e{level}{" others" * bool(others)}" tabindex="0">{escape(text)}{hidden}</span>'


def _timed(word: Word) -> bool:
    return not math.isnan(word.start)


def _lines(some: Sequence[Alternative], form: str) -> list[str]:
    """Each alternative with its share of the beams."""
    return [f"{form.format(escape(a.word) or '<i>no word</i>')} <i>{a.probability:.0%}</i>" for a in some]
