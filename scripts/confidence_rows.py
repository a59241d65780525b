"""What the scripts about confidence share: rows of answers, which words of them are right, and how well numbers tell
right words from wrong ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import kaldialign
import numpy as np

from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.score import word_errors
from sharpen.method.guard import compression_ratio
from sharpen.method.trace import Trace
from sharpen.method.tree import Hypothesis
from sharpen.models.speech import TokenText
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.speech.answers import Adapted, Decoded
from sharpen.speech.evidence import Evidence, WindowEvidence, evidence
from sharpen.speech.longform import Segment, segments

MODES = ("greedy", "beam", "adapted")
MULTILINGUAL, ENGLISH = 51865, 51864  # tokens of the two vocabularies
CORPORA = {"speechocean762": "Chinese accent", "speechocean762-b": "Chinese accent"}
CORPORA |= {"commonvoice-multilingual": "seven languages"}
GAP = " "


@dataclass(frozen=True)
class Judged:
    """One answer of a row: what is known about its words, and which of them are right."""

    row: dict[str, Any]
    mode: str
    decoded: Decoded
    segments: tuple[Segment, ...]
    known: WindowEvidence
    right: tuple[bool | None, ...]  # of each word; None where normalising leaves nothing of it
    errors: int  # of the whole text
    words: int  # of the reference

    @property
    def evidence(self) -> list[Evidence]:
        return [e for some in self.known.words for e in some]

    @property
    def deleted(self) -> int:
        """Errors that no word of the answer shows."""
        return max(0, self.errors - sum(right is False for right in self.right))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judged(rows: Sequence[dict[str, Any]]) -> Iterator[Judged]:
    """Every answer of every row that is speech."""
    for row in rows:
        tokenizer = tokenizer_of(row)
        for mode, decoded in answers(row, tokenizer).items():
            made = segments(tokenizer, decoded, 0.0, row["audio"])
            if not decoded.is_speech or not made:
                continue
            known = evidence(tokenizer, made, decoded, row["audio"], spaced=True)
            normalise = normaliser_for(row["language"])
            reference = normalise(row["reference"])
            counts = word_errors(reference, normalise(decoded.text))
            said = [normalise(e.word).split() for some in known.words for e in some]
            right = tuple(marks(reference.split(), said))
            yield Judged(row, mode, decoded, tuple(made), known, right, counts.errors, len(reference.split()))


def tokenizer_of(row: dict[str, Any]) -> WhisperTokenizer:
    return _tokenizer(ENGLISH if row["model"].endswith(".en") else MULTILINGUAL)


@cache
def _tokenizer(size: int) -> WhisperTokenizer:
    return WhisperTokenizer.of_kind(size)


def condition(row: dict[str, Any]) -> str:
    """What a line of a table is about: a noise, or a corpus of another kind of speech."""
    return CORPORA.get(row["set"], row["condition"])


def answers(row: dict[str, Any], tokenizer: TokenText) -> dict[str, Decoded]:
    """The answers that a row holds; the adapted one knows the source's."""
    language = row["language"]
    found = {mode: unpacked(row[mode], language, tokenizer) for mode in MODES if row[mode] is not None}
    if "adapted" in found:
        how = Adapted(found["beam"], found["adapted"], Trace(), row["refused"])
        found["adapted"] = replace(found["beam"] if row["refused"] else found["adapted"], adaptation=how)
    return found


def unpacked(answer: dict[str, Any], language: str, tokenizer: TokenText) -> Decoded:
    tokens = tuple(answer["tokens"])
    text = tokenizer.decode(tokens).strip()
    return Decoded(
        tokens=tokens,
        logprobs=tuple(answer["logprobs"]),
        entropies=tuple(answer["entropies"]),
        text=text,
        language=language,
        temperature=answer["temperature"],
        avg_logprob=answer["avg_logprob"],
        no_speech_prob=answer["no_speech"],
        compression_ratio=compression_ratio(text),
        finished=answer["finished"],
        is_speech=answer["speech"],
        beams=tuple(Hypothesis(tuple(some), (), (total,), False, total) for total, some in answer["beams"]),
    )


def marks(reference: list[str], said: list[list[str]]) -> Iterator[bool | None]:
    """Whether each word is right: all that normalising makes of it stands in the reference at its place."""
    flat = [token for some in said for token in some]
    pairs = kaldialign.align(reference, flat, GAP)
    right = iter([theirs == ours for ours, theirs in pairs if theirs != GAP])
    for some in said:
        each = [next(right) for _ in some]
        yield all(each) if each else None


def rivals(e: Evidence) -> dict[str, float]:
    """What else could be taken for the confidence of a word."""
    return {
        "token probability": math.exp(e.logprob),
        "Whisper's word probability": e.probability,
        "entropy": math.exp(-e.entropy),
    }


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error over bins of equal width."""
    at = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(confidence[at == k].mean() - right[at == k].mean()) * (at == k).mean() for k in np.unique(at)]
    return math.fsum(gaps)


def area_under_roc(score: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a positive has a higher score than a negative; ties count half."""
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n = positive.sum()
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(score) - n)))


def average_precision(score: np.ndarray, positive: np.ndarray) -> float:
    """The area under the precision-recall curve; equal scores are one point of it."""
    values, inverse = np.unique(-score, return_inverse=True)
    hits, all_of = np.bincount(inverse, positive, len(values)), np.bincount(inverse, minlength=len(values))
    precision = np.cumsum(hits) / np.cumsum(all_of)
    return float((precision * hits).sum() / positive.sum())
