"""The errors that another text of a row would have: in words for speech, one for a wrong answer to a task."""

from __future__ import annotations

from collections.abc import Iterable

from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts, recount
from sharpen.evaluation.text.scorers import SCORERS


def errors_in(row: Row, text: str) -> ErrorCounts | None:
    """The errors of a text as the row's answer; None where only a scorer of one's own could say.

    A report does not run a file that a row names: rows may be another person's.
    """
    if not row.scorer:
        return recount(row.reference, text, row.normaliser)[0]
    if row.scorer in SCORERS:
        return ErrorCounts(substitutions=int(not SCORERS[row.scorer](text, row.reference)), reference=1)
    return row.errors if text == row.text else None


def total(counts: Iterable[ErrorCounts | None]) -> ErrorCounts | None:
    """The sum; None if one of them is unknown."""
    known = ErrorCounts()
    for one in counts:
        if one is None:
            return None
        known += one
    return known
