"""What a page shows beside the numbers of the events: drawings, readings, and the words of an answer.

The drawings are those of the page that `sharpen transcribe --explain` writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from sharpen.explain.alignment import stretches
from sharpen.explain.drawing import curve_svg, level, tree_svg
from sharpen.method.tree import HypothesisTree
from sharpen.models.speech import TokenText
from sharpen.serving.events import SourceTold, StepTold, Told, WindowTold
from sharpen.speech.longform import Segment
from sharpen.speech.writers import as_dict, number


class Pictures:
    """What there is to see of one recording; its windows follow each other."""

    def __init__(self, tokenizer: TokenText) -> None:
        self.tokenizer = tokenizer
        self._entropies: list[tuple[float, float]] = []  # H_tok and H_seq of the window's steps
        self._read = ""  # its most probable text so far

    def of(self, event: Told) -> dict[str, Any]:
        """What to add to the event."""
        if isinstance(event, SourceTold):
            self._entropies, self._read = [], event.decoded.text
            return self._drawn(event.tree, "Hypotheses of the source model", event.decoded.text)
        if isinstance(event, StepTold):
            self._entropies.append((event.step.H_tok, event.step.H_seq))
            k = len(self._entropies) - 1
            when = "before the first update" if k == 0 else f"after {k} update{'' if k == 1 else 's'}"
            curve = curve_svg([H_tok for H_tok, _ in self._entropies], [H_seq for _, H_seq in self._entropies])
            return {"curve": curve, **self._drawn(event.step.tree, f"Hypotheses {when}")}
        if isinstance(event, WindowTold):
            found = self._drawn(event.tree, "Hypotheses of the adapted model", event.adapted)
            return {**found, "changes": changes(event.source, event.segments, self.tokenizer)}
        return {}

    def _drawn(self, tree: HypothesisTree | None, title: str, text: str = "") -> dict[str, Any]:
        """The drawing of the hypotheses, and their text, or the best of them, beside that of the drawing before."""
        if tree is None or not tree.hypotheses:
            return {}
        best = max(tree.hypotheses, key=lambda y: -math.inf if math.isnan(y.logprob) else y.logprob / len(y))
        text, before = text or self.tokenizer.decode(best.content).strip(), self._read
        self._read = text
        reading = [
            {"before": "".join(part.source), "after": "".join(part.adapted), "changed": part.changed}
            for part in stretches(before, text)
        ]
        return {"title": title, "drawing": tree_svg(tree, self.tokenizer.decode, title), "reading": reading}


def changes(source: str, segments: Sequence[Segment], tokenizer: TokenText) -> list[dict[str, Any]]:
    """The answer of a window beside the source's text: stretches of words, and what the source has in their place.

    A word has what the JSON of `sharpen transcribe` says about it, alternatives among it, and also the highest entropy
    of its tokens and the colour of that.
    """
    words = [word for segment in segments for word in _words(segment, tokenizer)]
    starts = list(accumulate((len(word["word"]) for word in words), initial=0))
    starts = [at + len(word["word"]) - len(word["word"].lstrip()) for at, word in zip(starts, words, strict=False)]
    text = "".join(word["word"] for word in words)
    found = []
    end = len(text) - len(text.lstrip())
    for part in stretches(source, text):
        begin, end = end, end + len("".join(part.adapted))
        inside = [word for at, word in zip(starts, words, strict=True) if begin <= at < end]
        found.append({"source": "".join(part.source), "changed": part.changed, "words": inside})
    return found


def _words(segment: Segment, tokenizer: TokenText) -> Iterator[dict[str, Any]]:
    words = as_dict(segment).get("words", [])
    ends = list(accumulate(len(tokenizer.token_bytes(token)) for token in segment.tokens))
    begin = first = 0
    for word in words:
        end = begin + len(word["word"].encode())
        last = first
        while last < len(ends) and ends[last] <= end:
            last += 1
        entropy = max(segment.entropies[first:last], default=math.nan)
        yield {**word, "entropy": number(entropy, 4), "level": level(entropy)}
        begin, first = end, last
