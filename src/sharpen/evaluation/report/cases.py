"""Single utterances, word by word: where adapting helped most and where it hurt most.

Three aligned rows: the reference, the source's transcript and the adapted transcript. A wrong word carries a sign, so
that nothing depends on colour: ≠ substituted, + inserted, – missing.
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

SUBSTITUTED, INSERTED, MISSING = "≠", "+", "–"
LEGEND = f"{SUBSTITUTED} substituted, {INSERTED} inserted, {MISSING} missing"
LINE_WIDTH = 96  # characters of a line in plain text


@dataclass(frozen=True)
class Slot:
    """One position of the aligned texts; None where a text has no word there."""

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
    guard: str  # why the guard refused the text, or would have; empty if it did not

    @property
    def title(self) -> str:
        return f"{self.id} ({self.domain}): {self.before} → {self.after} errors in {self.words} words"


def most_changed(line: Line, source: Line | None, count: int = 5) -> tuple[list[Case], list[Case]]:
    """The most helped and the most hurt utterances of the line's first seed, at most `count` each; ties by id."""
    others = {(column, row.id): row.text for column, rows in (source.cells if source else {}).items() for row in rows}
    changes = []
    for column, rows in line.cells.items():
        for row in rows:
            if row.seed == line.seeds[0]:
                text = others.get((column, row.id), row.source_text)
                changes.append((_errors(row, row.text) - _errors(row, text), row.id, (row, column.key, text)))
    changes.sort(key=lambda change: (-abs(change[0]), change[1]))
    helped = [_case(*texts) for change, _, texts in changes if change < 0]
    hurt = [_case(*texts) for change, _, texts in changes if change > 0]
    return helped[:count], hurt[:count]


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
        slots=align_texts(clean(row.reference), clean(source), clean(row.text)),
        guard=_guard(row),
    )


def _guard(row: Row) -> str:
    if not row.refused:
        return ""
    return (
        f"guard: {row.refused}"
        if row.options.get("guard")
        else f"the guard was off; it would have refused: {row.refused}"
    )


def align_texts(reference: str, source: str, adapted: str) -> tuple[Slot, ...]:
    """Both texts aligned with the reference, and so with each other."""
    first, second = _by_place(reference, source), _by_place(reference, adapted)
    slots: list[Slot] = []
    for place, word in enumerate([*reference.split(), None]):
        slots += [Slot(None, a, b) for a, b in zip_longest(first[place][0], second[place][0])]
        if word is not None:
            slots.append(Slot(word, first[place][1], second[place][1]))
    return tuple(slots)


def _by_place(reference: str, text: str) -> list[tuple[list[str], str | None]]:
    """For each reference word, and for the end: the words inserted before it, and the word aligned with it."""
    places: list[tuple[list[str], str | None]] = []
    inserted: list[str] = []
    for edit in align(reference, text):
        if edit.reference is None:
            inserted.append(edit.hypothesis or "")
        else:
            places.append((inserted, edit.hypothesis))
            inserted = []
    return [*places, (inserted, None)]


def marked(slot: Slot, word: str | None) -> str:
    """The word of one text, with the sign of its error."""
    if word == slot.reference:
        return word or ""
    if word is None:
        return MISSING
    return (SUBSTITUTED if slot.reference is not None else INSERTED) + word


def as_text(case: Case) -> str:
    """Three rows for a fixed-width font, folded at LINE_WIDTH."""
    names = ("reference", "source", case.method)
    indent = max(map(len, names)) + 2
    lines = [case.title + (f"; {case.guard}" if case.guard else "")]
    block, used = ["", "", ""], 0

    def flush() -> None:
        lines.extend((name.ljust(indent) + words).rstrip() for name, words in zip(names, block, strict=True))

    for slot in case.slots:
        words = (slot.reference or "", marked(slot, slot.source), marked(slot, slot.adapted))
        wide = max(map(width_of, words)) + 1
        if used and used + wide > LINE_WIDTH - indent:
            flush()
            lines.append("")
            block, used = ["", "", ""], 0
        block = [row + word + " " * (wide - width_of(word)) for row, word in zip(block, words, strict=True)]
        used += wide
    flush()
    return "\n".join(lines)


def as_html(case: Case) -> str:
    """Slots side by side, which wrap like words."""
    places = []
    for slot in case.slots:
        cells = "".join(
            f"<span class='{_class(slot, word)}'>{escape(marked(slot, word)) or '&nbsp;'}</span>"
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


def as_latex(cases: Sequence[Case], caption: str) -> str:
    """One paragraph for each text, with colour through xcolor besides the signs."""
    lines = [
        r"\begin{table*}[t]",
        rf"  \caption{{{latex(caption)} {latex(LEGEND)}.}}",
        r"  \begin{tabular}{@{}p{\textwidth}@{}}",
        r"    \toprule",
    ]
    for case in cases:
        texts = (
            ("Reference", " ".join(latex(s.reference) for s in case.slots if s.reference)),
            ("Source", " ".join(_latex_word(s, s.source) for s in case.slots)),
            (case.method, " ".join(_latex_word(s, s.adapted) for s in case.slots)),
        )
        lines += [rf"    \textbf{{{latex(name)}:}} {' '.join(text.split())} \\" for name, text in texts]
        lines.append(r"    \midrule")
    return "\n".join([*lines[:-1], r"    \bottomrule", r"  \end{tabular}", r"\end{table*}"]) + "\n"


def _latex_word(slot: Slot, word: str | None) -> str:
    text = latex(marked(slot, word))
    return rf"\textcolor{{red}}{{{text}}}" if word != slot.reference else text
