"""One row for each (utterance, method, setting) of a run: a line of a JSONL file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.score import ErrorCounts


@dataclass(frozen=True)
class Row:
    """Everything needed to recompute a table: the reference, the answer, and how it was computed."""

    corpus: str  # its name, such as librispeech-test-other
    domain: str  # what a table's column is: a noise (GS), an accent, a language, or "clean"
    id: str  # of the utterance, unique in its corpus
    speaker: str  # empty where unknown
    language: str
    duration: float  # seconds of audio
    reference: str
    model: str
    method: str
    samples: int  # G; 1 for greedy search, the width for beam search, 0 where nothing is searched
    steps: int  # updates; 0 where nothing adapts
    seed: int
    options: Mapping[str, Any]  # all other settings, such as lr, guard, preset, noise, threads; see runs/settings.py
    versions: Mapping[str, str]  # of sharpen, torch, python
    text: str = ""  # the answer
    source_text: str = ""  # the source model's answer
    adapted_text: str = ""  # the adapted model's answer, also where the guard refused it
    refused: str = ""  # why the guard refused it
    normaliser: str = ""  # its label, such as whisper-en/1; nothing that is read where there is a scorer
    errors: ErrorCounts = field(default_factory=ErrorCounts)  # of `text`, in words
    seconds: float = 0.0  # of wall time: the utterance's share of its batch
    trace: Mapping[str, Any] = field(default_factory=dict)  # per step: H_tok, H_seq, nodes …; why it stopped
    failed: str = ""  # why there is no answer
    audio: str = ""  # a fingerprint of the audio
    weights: str = ""  # a fingerprint of the model's weights

    @property
    def key(self) -> str:
        """Identifies the row: a run never computes a key twice."""
        what = (self.corpus, self.domain, self.id, self.setting)
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

    @property
    def setting(self) -> str:
        """Method, model and every option as one line; rows with the same line belong to the same table cell."""
        named = {"model": self.model, "samples": self.samples, "steps": self.steps, "seed": self.seed, **self.options}
        return f"{self.method} " + json.dumps(named, sort_keys=True)

    @property
    def scorer(self) -> str:
        """What judged the answer of a language model (`sharpen evaluate-text`); empty for speech."""
        return str(self.options.get("scorer", ""))

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def parse(line: str) -> Row:
    """The row that a line of JSON holds."""
    try:
        values = json.loads(line)
        unknown = set(values) - {f.name for f in fields(Row)}
        if unknown:
            raise SharpenError(f"a result row has unknown fields: {', '.join(sorted(unknown))}")
        return Row(**{**values, "errors": ErrorCounts(**values["errors"])})
    except (json.JSONDecodeError, TypeError, KeyError) as error:
        raise SharpenError(f"not a result row ({error}): {line[:80]!r}") from error
