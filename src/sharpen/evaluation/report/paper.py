"""The paper's numbers, from `assets/paper.json`, which says of each where it stands in the paper.

A number is found by what was measured: method, corpus, domain, model and setting. It stands beside one of ours only
where all of these are the paper's, so a run with another G or on another corpus has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from sharpen.models.languages import LANGUAGES
from sharpen.models.weights import catalog

ALIASES = {"mandarin": "chinese"}  # what others call a domain of the paper's


@dataclass(frozen=True)
class Setting:
    """How a number of ours was made, as far as the paper fixes it."""

    method: str
    model: str
    samples: int
    steps: int
    lr: float | None  # None, as below, where a result does not say
    norms: str | None
    normalise: str | None = None
    weight_decay: float | None = None
    snr_rule: str | None = None


@dataclass(frozen=True)
class Number:
    """A WER in %, and where the paper has it."""

    value: float
    table: str  # its label, such as tab:ls-results


@lru_cache(maxsize=1)
def data() -> dict[str, Any]:
    """Everything that the paper's tables and figures say in numbers or words."""
    found: dict[str, Any] = json.loads(
        files("sharpen.evaluation.report").joinpath("assets", "paper.json").read_text(encoding="utf-8")
    )
    return found


def table(name: str) -> dict[str, Any]:
    """A table by its name, such as table-noise."""
    return next(t for t in data()["tables"] if t["name"] == name)


def wer(corpus: str, domain: str, snr: float | None, setting: Setting) -> Number | None:
    """The paper's WER of that domain, where it has one for exactly this."""
    kind = _kind(corpus)
    where = _domain(kind, domain, snr, corpus)
    size = _size(setting.model)
    if where is None or size is None or not _papers_own(setting):
        return None
    if size != data()["settings"]["model"]:
        models = table("table-models")
        value = models["rows"].get(setting.method, {}).get(size.capitalize()) if where == models["domain"] else None
        return None if value is None else Number(value, models["label"])
    for found in data()["tables"]:
        if found["kind"] == kind:
            value = found["rows"].get(setting.method, {}).get(where.split("-")[1])
        elif found["kind"] == "mixed":
            value = found["rows"].get(setting.method, {}).get(where)
        else:
            value = None
        if value is not None:
            return Number(value, found["label"])
    return None


def average(corpus: str, domains: Collection[tuple[str, float | None]], setting: Setting) -> Number | None:
    """The paper's average over the domains of a table, where ours are exactly these."""
    kind, size = _kind(corpus), _size(setting.model)
    if size != data()["settings"]["model"] or not _papers_own(setting):
        return None
    for found in data()["tables"]:
        if found["kind"] == kind and "average" in found and setting.method in found["average"]:
            ours = {_domain(kind, domain, snr, corpus) for domain, snr in domains}
            if ours == {_key(kind, c) for c in found["columns"]}:
                return Number(found["average"][setting.method], found["label"])
    return None


def _papers_own(setting: Setting) -> bool:
    """Whether the setting is the one of the paper's tables; what a method does not use is not asked for."""
    fixed = data()["settings"]
    if setting.snr_rule not in (None, "true"):
        return False
    if setting.method == "source":
        return True
    if setting.method == "beam":
        return bool(setting.samples == fixed["beam size"])
    return bool(
        (setting.samples == fixed["samples"] or setting.method == "greedy-em")
        and setting.steps == fixed["steps"]
        and setting.lr in (None, fixed["lr"])
        and setting.norms in (None, fixed["norms"])
        and setting.normalise in (None, "tokens")
        and setting.weight_decay in (None, 0.0)  # the paper names none
    )


def _kind(corpus: str) -> str | None:
    """Which of the paper's corpora a name means; None for others."""
    plain = re.sub(r"[^a-z0-9]+", "", corpus.lower())
    if "l2arctic" in plain:
        return "l2-arctic"
    if plain.startswith("mls") or "multilinguallibrispeech" in plain:
        return "mls"
    if "librispeech" in plain and "other" in plain:
        others = ("clean", "dev", "validation", "train")  # the paper uses test-other
        return None if any(part in plain for part in others) else "ls-c"
    return "ls-c" if plain.startswith("lsc") else None


def _ratio(name: str) -> float | None:
    """The signal-to-noise ratio that the name of a corpus or domain ends with, as in ls-c-10 or LS-GS-10."""
    found = re.search(r"(?<=[-_])(\d+)(?:\s*db)?$", name.lower())
    return float(found[1]) if found else None


def _domain(kind: str | None, domain: str, snr: float | None, corpus: str) -> str | None:
    """The domain under the name that the paper's tables give it, such as LS-GS-10 or MLS-Polish.

    What it does not say of its noise, the corpus may.
    """
    if kind == "ls-c":
        snr = next((ratio for ratio in (snr, _ratio(domain), _ratio(corpus)) if ratio is not None), None)
        code = re.sub(r"^ls-|-\d+$", "", domain.lower()).upper()
        known = table("table-noise")
        return _key(kind, code) if code in known["columns"] and snr == known["snr"] else None
    if snr is not None:  # the paper adds noise to LibriSpeech alone
        return None
    if kind == "l2-arctic":
        name = ALIASES.get(domain.lower(), domain.lower()).capitalize()
        return _key(kind, name) if name in table("table-accent")["columns"] else None
    if kind == "mls":
        name = LANGUAGES.get(domain.lower(), domain.lower()).capitalize()
        return _key(kind, name) if name in table("table-languages")["columns"] else None
    return None


def _key(kind: str | None, name: str) -> str:
    return f"LS-{name}-10" if kind == "ls-c" else f"{'L2' if kind == 'l2-arctic' else 'MLS'}-{name}"


def _size(model: str) -> str | None:
    """The paper's size that a model's name means; None for those that it does not have, and for what only sounds so.

    The paper does not say which "Large" it has; here it is what Whisper itself calls large now, large-v3.
    """
    size = catalog.standard_name(model)
    return {"large-v3": "large"}.get(size, size) if size else None
