"""Word and character error rates over a corpus: the errors of all utterances over the length of all references."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import kaldialign

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.normalisers import Normaliser, normaliser

GAP = " "  # stands for "no word" in an alignment; a word holds no space


@dataclass(frozen=True)
class ErrorCounts:
    """The edits of a best alignment; they add up over utterances with +, or sum(counts, ErrorCounts())."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference: int = 0  # length of the reference, in words or characters

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per unit of reference.

        An empty reference counts as one unit: its rate is the number of insertions. In a corpus those are errors as any
        other, and its length adds nothing.
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


@dataclass(frozen=True)
class Score:
    """A corpus compared with its references."""

    normaliser: str  # its label, such as whisper-en/1
    utterances: tuple[ErrorCounts, ...]  # words, one by one in the order given
    words: ErrorCounts  # over the corpus
    characters: ErrorCounts  # over the corpus

    @property
    def wer(self) -> float:
        return self.words.rate

    @property
    def cer(self) -> float:
        return self.characters.rate


def score(references: Iterable[str], hypotheses: Iterable[str], normaliser: Normaliser) -> Score:
    """Normalise both sides, then count the errors of each pair."""
    refs, hyps = [normaliser(t) for t in references], [normaliser(t) for t in hypotheses]
    if len(refs) != len(hyps):
        raise SharpenError(f"{len(refs)} references and {len(hyps)} hypotheses: expected one hypothesis per reference")
    utterances = tuple(word_errors(r, h) for r, h in zip(refs, hyps, strict=True))
    characters = sum((character_errors(r, h) for r, h in zip(refs, hyps, strict=True)), ErrorCounts())
    return Score(normaliser.label, utterances, sum(utterances, ErrorCounts()), characters)


def labelled(label: str) -> Normaliser:
    """The normaliser that a result names, such as whisper-en/1; another version of it would give other numbers."""
    name, _, version = label.partition("/")
    found = normaliser(name)
    if version != str(found.version):
        raise SharpenError(
            f"the result was scored with {label!r}, but this sharpen has {found.label}: "
            "use the version that made it, or evaluate again"
        )
    return found


@lru_cache(maxsize=1 << 16)
def recount(reference: str, hypothesis: str, label: str) -> tuple[ErrorCounts, ErrorCounts]:
    """The errors of one utterance in words and in characters, under the normaliser of that label."""
    ref, hyp = _normalised(reference, label), _normalised(hypothesis, label)
    return word_errors(ref, hyp), character_errors(ref, hyp)


@lru_cache(maxsize=1 << 16)  # a reference meets as many hypotheses as there are methods
def _normalised(text: str, label: str) -> str:
    return labelled(label)(text)


def word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the words, as white space divides them; normalise before."""
    return _errors(reference.split(), hypothesis.split())


def character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Edits between the characters, where white space of any length is one character; normalise before."""
    return _errors(list(" ".join(reference.split())), list(" ".join(hypothesis.split())))


def align(reference: str, hypothesis: str) -> tuple[Edit, ...]:
    """A best alignment of the words, for display; its edits are as many as `word_errors` counts."""
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
