"""What happens to a recording, told by the batch as it happens, and how a stream of server-sent events tells it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharpen.explain.drawing import level
from sharpen.method.trace import Step
from sharpen.method.tree import HypothesisTree
from sharpen.models.speech import TokenText
from sharpen.serving.errors import ApiError
from sharpen.speech.answers import Decoded
from sharpen.speech.confidence import WindowReadings
from sharpen.speech.longform import Segment
from sharpen.speech.writers import number


@dataclass(frozen=True)
class WindowReport:
    """What was done with one window."""

    start: float  # seconds from the start of the recording
    seconds: float
    answer: str  # adapted, source or silence: whose text it is
    steps: int
    stopped: str  # why adapting ended early, or was left out; empty where it took all its steps
    guard: str  # why the adapted text was refused; empty where it was not


@dataclass(frozen=True)
class SourceTold:
    """The source model has transcribed a window."""

    start: float
    seconds: float
    decoded: Decoded
    tree: HypothesisTree | None = None  # the hypotheses of its search, without timestamps


@dataclass(frozen=True)
class StepTold:
    """A window has been adapted to by one more step."""

    start: float
    index: int  # from 1
    most: int
    step: Step


@dataclass(frozen=True)
class WindowTold:
    """A window is done."""

    report: WindowReport
    segments: tuple[Segment, ...]
    source: str  # the source's text
    adapted: str  # the adapted model's text, also where the guard refused it; empty where nothing adapted
    tree: HypothesisTree | None = None  # the hypotheses of the adapted model's search, without timestamps


@dataclass(frozen=True)
class Finished:
    """A recording is done."""

    segments: tuple[Segment, ...]
    language: str
    duration: float  # seconds
    windows: tuple[WindowReport, ...]
    transcribed: float  # seconds; less than the duration where a deadline cut the rest off
    readings: tuple[WindowReadings, ...] = ()  # where they were asked for: the best texts of each window

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def steps(self) -> int:
        return sum(window.steps for window in self.windows)


@dataclass(frozen=True)
class Failed:
    """A recording could not be transcribed."""

    error: ApiError


Told = SourceTold | StepTold | WindowTold | Finished | Failed


def sse(data: Any) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def explained(event: Told, tokenizer: TokenText) -> dict[str, Any] | None:
    """An event that is not OpenAI's, for a page that shows how a transcript comes about; None for the others."""
    if isinstance(event, SourceTold):
        return {
            "type": "sharpen.source",
            "start": event.start,
            "seconds": event.seconds,
            "text": event.decoded.text,
            "speech": event.decoded.is_speech,
            "tokens": _tokens(event.decoded, tokenizer),
        }
    if isinstance(event, StepTold):
        step = event.step
        return {
            "type": "sharpen.step",
            "start": event.start,
            "step": event.index,
            "of": event.most,
            "H_tok": number(step.H_tok),
            "H_seq": number(step.H_seq),
            "loss": number(step.loss),
            "best_probability": number(step.best_probability),
            "hypotheses": step.hypotheses,
            "distinct_texts": step.distinct_texts,
            "seconds": number(sum(step.seconds.values()), 4),
            "tree": None if step.tree is None else tree_data(step.tree, tokenizer),
        }
    if isinstance(event, WindowTold):
        return {"type": "sharpen.answer", **as_data(event.report), "source": event.source, "adapted": event.adapted}
    return None


def as_data(report: WindowReport) -> dict[str, Any]:
    return {
        "start": report.start,
        "seconds": report.seconds,
        "answer": report.answer,
        "steps": report.steps,
        "stopped": report.stopped,
        "guard": report.guard,
    }


def tree_data(tree: HypothesisTree, tokenizer: TokenText) -> dict[str, Any]:
    """The tree as lists: of each node its text, its parent and its entropy, and of each hypothesis its path."""
    tree = tree.pruned()
    return {
        "texts": ["" if token < 0 else _token_text(token, tokenizer) for token in tree.tokens],
        "parents": list(tree.parents),
        "entropies": [number(x, 4) for x in tree.entropies],
        "hypotheses": [
            {
                "nodes": list(y.nodes),
                "last": _token_text(y.tokens[-1], tokenizer),
                "text": tokenizer.decode(y.content).strip(),
                "logprob": number(y.logprob, 4),
                "finished": y.finished,
            }
            for y in tree.hypotheses
        ],
    }


def _tokens(decoded: Decoded, tokenizer: TokenText) -> list[dict[str, Any]]:
    rows = zip(decoded.tokens, decoded.logprobs, decoded.entropies, strict=True)
    return [
        {
            "text": _token_text(token, tokenizer),
            "logprob": number(logprob),
            "entropy": number(entropy),
            "level": level(entropy),
        }
        for token, logprob, entropy in rows
        if tokenizer.is_text(token)
    ]


def _token_text(token: int, tokenizer: TokenText) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace") if tokenizer.is_text(token) else ""


def logprobs(segments: Sequence[Segment], tokenizer: TokenText) -> list[dict[str, Any]]:
    """OpenAI's log-probabilities: of each token its text, its bytes and log pi."""
    found = []
    for segment in segments:
        for token, value in zip(segment.tokens, segment.logprobs, strict=True):
            raw = tokenizer.token_bytes(token)
            found.append({"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": number(value)})
    return found


class Deltas:
    """Cuts a transcript into pieces as its segments come; the pieces joined are the text of the whole."""

    def __init__(self) -> None:
        self._begun, self._space = False, ""

    def add(self, segments: Sequence[Segment]) -> str:
        """The next piece. White space at its end waits for the next one: the whole has none at its ends."""
        text = "".join(segment.text for segment in segments)
        text = self._space + text if self._begun else text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :] if kept or self._begun else ""
        self._begun = self._begun or bool(kept)
        return kept
