"""Rows of a run, made by hand: a reference, a transcript, and all other fields as a run would write them."""

from __future__ import annotations

from sharpen.evaluation.runs.normalisers import normaliser
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import word_errors

OPTIONS = {"batch_size": 1, "threads": 1, "device": "cpu", "preset": "exact"}
ADAPTING = {"lr": 1e-3, "norms": "encoder+decoder", "guard": True}
VERSIONS = {"sharpen": "0.1.0", "torch": "2.13.0"}


def answer(method: str = "source", id: str = "a", text: str = "one two three four", **others) -> Row:
    """A row for the reference "one two three four" of 4 seconds, unless `others` say otherwise."""
    adapts = method not in ("source", "beam")
    values = {
        "corpus": "corpus",
        "domain": "clean",
        "speaker": "",
        "language": "en",
        "duration": 4.0,
        "reference": "one two three four",
        "model": "base",
        "samples": {"source": 0, "greedy-em": 1}.get(method, 16),
        "steps": 10 if adapts else 0,
        "seed": 0,
        "versions": VERSIONS,
        "source_text": text if method == "source" else "",
        "adapted_text": text if adapts else "",
        "seconds": 2.0,
        "normaliser": "none/1",
    } | others
    options = OPTIONS | (ADAPTING if adapts else {}) | others.get("options", {})
    clean = normaliser(values["normaliser"].split("/")[0])
    values.setdefault("errors", word_errors(clean(values["reference"]), clean(text)))
    return Row(**{**values, "method": method, "id": id, "text": text, "options": options})
