"""Word and character errors between a reference and a hypothesis.

The error rate of a corpus is that of the summed counts: all errors over the length of all references.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import kaldialign

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.normalisers import Normaliser, normaliser

GAP = " "  # "no word" in an alignment; no word can be a space


@dataclass(frozen=True)
class ErrorCounts:
    """The edits of one best alignment. Add utterances up with +, or with sum(counts, ErrorCounts())."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference: int = 0  # length of the reference, in words or characters

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per word or character of the reference.

        An empty reference is divided by one, so its rate is the number of insertions. In the sum over a corpus it adds
        its insertions to the errors and nothing to the length.
        """
        return self.errors / max(1, self.reference)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.reference + other.reference,
        )


@dataclass(frozen=True)
class Edit:
    """One step of a word alignment."""

    kind: Literal["equal", "substitute", "delete", "insert"]
    reference: str | None  # None for an insertion
    hypothesis: str | None  # None for a deletion


def labelled(label: str) -> Normaliser:
    """The normaliser with this label, such as whisper-en/1. An error if this sharpen has another version of it."""
    name, _, version = label.partition("/")
    current = normaliser(name)
    if version != str(current.version):
        raise SharpenError(
            f"the result was scored with {label!r}, but this sharpen has {current.label}: "
            "use the sharpen version that wrote it, or evaluate again"
        )
    return current


@lru_cache(maxsize=1 << 16)
def recount(reference: str, hypothesis: str, label: str) -> tuple[ErrorCounts, ErrorCounts]:
    """The word errors and the character errors of one utterance, with the normaliser of this label."""
    ref, hyp = _normalised(reference, label), _normalised(hypothesis, label)
    return word_errors(ref, hyp), character_errors(ref, hyp)


@lru_cache(maxsize=1 << 16)  # each reference is compared with the hypotheses of every method
def _normalised(text: str, label: str) -> str:
    return labelled(label)(text)


def word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the words, split at white space. The texts must be normalised already."""
    return _errors(reference.split(), hypothesis.split())


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the characters; a run of white space is one. The texts must be normalised already."""
    return _errors(list(" ".join(reference.split())), list(" ".join(hypothesis.split())))


def align(reference: str, hypothesis: str) -> tuple[Edit, ...]:
    """A best alignment of the words, for display. It has the edits that `word_errors` counts."""
    pairs = kaldialign.align(reference.split(), hypothesis.split(), GAP)
    return tuple(_edit(r, h) for r, h in pairs)


def _edit(reference: str, hypothesis: str) -> Edit:
    if reference == GAP:
        return Edit("insert", None, hypothesis)
    if hypothesis == GAP:
        return Edit("delete", reference, None)
    return Edit("equal" if reference == hypothesis else "substitute", reference, hypothesis)


def _errors(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    counts = kaldialign.edit_distance(reference, hypothesis)
    return ErrorCounts(int(counts["sub"]), int(counts["del"]), int(counts["ins"]), len(reference))
