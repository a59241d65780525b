"""Single utterances, word by word: where adapting helped most and where it hurt most.

Three rows stand one above the other: the reference, what the model as it is heard, and what the adapted one heard. A
word that is wrong carries a sign, so that colour only repeats what black ink says: ≠ another word, + a word too many,
– a word that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

from sharpen.evaluation.report.lines import Line
from sharpen.evaluation.report.markup import latex
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import align, labelled, recount
from sharpen.terminal import width as width_of

OTHER, EXTRA, MISSING = "≠", "+", "–"
LEGEND = f"{OTHER} another word, {EXTRA} a word too many, {MISSING} a word missing"
ROOM = 96  # columns of a line in plain text


@dataclass(frozen=True)
class Slot:
    """One place of the three texts; None where a text has no word there."""

    reference: str | None
    source: str | None
    adapted: str | None


@dataclass(frozen=True)
class Case:
    """An utterance that the method changed."""

    id: str
    domain: str
    method: str
    before: int  # errors of the source
    after: int  # errors of the answer
    words: int
    slots: tuple[Slot, ...]
    guard: str  # what it did about the text, or would have done; empty where nothing

    @property
    def title(self) -> str:
        return f"{self.id} ({self.domain}): {self.before} → {self.after} errors in {self.words} words"


def cases(line: Line, source: Line | None, count: int = 5) -> tuple[list[Case], list[Case]]:
    """The most helped and the most hurt, at most `count` each, of the line's first seed; ties in the order of ids."""
    others = {(column, row.id): row.text for column, rows in (source.cells if source else {}).items() for row in rows}
    found = []
    for column, rows in line.cells.items():
        for row in rows:
            if row.seed == line.seeds[0]:
                text = others.get((column, row.id), row.source_text)
                found.append((_errors(row, row.text) - _errors(row, text), row.id, (row, column.key, text)))
    found.sort(key=lambda one: (-abs(one[0]), one[1]))
    helped = [heard for change, _, heard in found if change < 0][:count]
    hurt = [heard for change, _, heard in found if change > 0][:count]
    return [_case(*heard) for heard in helped], [_case(*heard) for heard in hurt]


def _errors(row: Row, text: str) -> int:
    return recount(row.reference, text, row.normaliser)[0].errors


def _case(row: Row, domain: str, source: str) -> Case:
    clean = labelled(row.normaliser)
    return Case(
        row.id,
        domain,
        row.method,
        before=_errors(row, source),
        after=_errors(row, row.text),
        words=row.errors.reference,
        slots=slots(clean(row.reference), clean(source), clean(row.text)),
        guard=_guard(row),
    )


def _guard(row: Row) -> str:
    if not row.refused:
        return ""
    return f"guard: {row.refused}" if row.options.get("guard") else f"the guard was off; it would say: {row.refused}"


def slots(reference: str, source: str, adapted: str) -> tuple[Slot, ...]:
    """Both texts aligned with the reference, and so with each other."""
    first, second = _by_place(reference, source), _by_place(reference, adapted)
    found: list[Slot] = []
    for place, word in enumerate([*reference.split(), None]):
        found += [Slot(None, a, b) for a, b in zip_longest(first[place][0], second[place][0])]
        if word is not None:
            found.append(Slot(word, first[place][1], second[place][1]))
    return tuple(found)


def _by_place(reference: str, text: str) -> list[tuple[list[str], str | None]]:
    """For each reference word, and for the end: the words inserted before it, and the word in its place."""
    found: list[tuple[list[str], str | None]] = []
    inserted: list[str] = []
    for edit in align(reference, text):
        if edit.reference is None:
            inserted.append(edit.hypothesis or "")
        else:
            found.append((inserted, edit.hypothesis))
            inserted = []
    return [*found, (inserted, None)]


def sign(slot: Slot, word: str | None) -> str:
    """The word of one text with the sign of its error."""
    if word == slot.reference:
        return word or ""
    if word is None:
        return MISSING
    return (OTHER if slot.reference is not None else EXTRA) + word


def as_text(case: Case) -> str:
    """Three rows in a fixed-width font, folded."""
    names = ("reference", "source", case.method)
    indent = max(map(len, names)) + 2
    lines = [case.title + (f"; {case.guard}" if case.guard else "")]
    block, used = ["", "", ""], 0

    def flush() -> None:
        lines.extend((name.ljust(indent) + words).rstrip() for name, words in zip(names, block, strict=True))

    for slot in case.slots:
        words = (slot.reference or "", sign(slot, slot.source), sign(slot, slot.adapted))
        wide = max(map(width_of, words)) + 1
        if used and used + wide > ROOM - indent:
            flush()
            lines.append("")
            block, used = ["", "", ""], 0
        block = [row + word + " " * (wide - width_of(word)) for row, word in zip(block, words, strict=True)]
        used += wide
    flush()
    return "\n".join(lines)


def as_html(case: Case) -> str:
    """Places side by side that wrap as words do."""
    places = []
    for slot in case.slots:
        cells = "".join(
            f"<span class='{_class(slot, word)}'>{escape(sign(slot, word)) or '&nbsp;'}</span>"
            for word in (slot.source, slot.adapted)
        )
        places.append(f"<span class='slot'><span>{escape(slot.reference or '') or '&nbsp;'}</span>{cells}</span>")
    guard = f"<p class='note'>{escape(case.guard)}</p>" if case.guard else ""
    names = "".join(f"<span>{escape(name)}</span>" for name in ("reference", "source", case.method))
    words = f"<span class='slot names'>{names}</span>{' '.join(places)}"
    return f"<div class='case'><h4>{escape(case.title)}</h4>{guard}<p class='aligned'>{words}</p></div>"


def _class(slot: Slot, word: str | None) -> str:
    if word != slot.reference:
        return "wrong"
    return "right" if slot.reference is not None and slot.source != slot.reference else "same"


def as_latex(found: Sequence[Case], caption: str) -> str:
    """One paragraph for each text; colour through xcolor, the signs in any case."""
    lines = [
        r"\begin{table*}[t]",
        rf"  \caption{{{latex(caption)} {latex(LEGEND)}.}}",
        r"  \begin{tabular}{@{}p{\textwidth}@{}}",
        r"    \toprule",
    ]
    for case in found:
        texts = (
            ("Reference", " ".join(latex(s.reference) for s in case.slots if s.reference)),
            ("Source", " ".join(_latex_word(s, s.source) for s in case.slots)),
            (case.method, " ".join(_latex_word(s, s.adapted) for s in case.slots)),
        )
        lines += [rf"    \textbf{{{latex(name)}:}} {' '.join(text.split())} \\" for name, text in texts]
        lines.append(r"    \midrule")
    return "\n".join([*lines[:-1], r"    \bottomrule", r"  \end{tabular}", r"\end{table*}"]) + "\n"


def _latex_word(slot: Slot, word: str | None) -> str:
    text = latex(sign(slot, word))
    return rf"\textcolor{{red}}{{{text}}}" if word != slot.reference else text
