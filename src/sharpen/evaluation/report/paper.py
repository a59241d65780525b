"""The paper's numbers, from `assets/paper.json`, which names the place of each in the paper.

A number is looked up by method, corpus, domain, model and setting. It is given only where all of these are the paper's:
a run with another G or on another corpus has none.
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

ALIASES = {"mandarin": "chinese"}  # other names of the paper's domains


@dataclass(frozen=True)
class PaperSetting:
    """How one of our numbers was made, as far as the paper fixes it."""

    method: str
    model: str
    samples: int
    steps: int
    lr: float | None  # None here and below where a row does not say
    norms: str | None
    normalise: str | None = None
    weight_decay: float | None = None
    snr_rule: str | None = None


@dataclass(frozen=True)
class PaperNumber:
    """A WER in %, and the table of the paper that has it."""

    value: float
    table: str  # its label, such as tab:ls-results


@lru_cache(maxsize=1)
def data() -> dict[str, Any]:
    """The contents of assets/paper.json: settings, tables and figures."""
    content: dict[str, Any] = json.loads(
        files("sharpen.evaluation.report").joinpath("assets", "paper.json").read_text(encoding="utf-8")
    )
    return content


def table(name: str) -> dict[str, Any]:
    """A table by its name, such as table-noise."""
    return next(t for t in data()["tables"] if t["name"] == name)


def wer(corpus: str, domain: str, snr: float | None, setting: PaperSetting) -> PaperNumber | None:
    """The paper's WER for that domain and setting; None where it has no such number."""
    kind = _kind(corpus)
    where = _domain(kind, domain, snr, corpus)
    size = _size(setting.model)
    if where is None or size is None or not _papers_own(setting):
        return None
    if size != data()["settings"]["model"]:
        models = table("table-models")
        value = models["rows"].get(setting.method, {}).get(size.capitalize()) if where == models["domain"] else None
        return None if value is None else PaperNumber(value, models["label"])
    for entry in data()["tables"]:
        if entry["kind"] == kind:
            value = entry["rows"].get(setting.method, {}).get(where.split("-")[1])
        elif entry["kind"] == "mixed":
            value = entry["rows"].get(setting.method, {}).get(where)
        else:
            value = None
        if value is not None:
            return PaperNumber(value, entry["label"])
    return None


def average(corpus: str, domains: Collection[tuple[str, float | None]], setting: PaperSetting) -> PaperNumber | None:
    """The paper's average over the domains of a table; None unless `domains` are exactly those of the table."""
    kind, size = _kind(corpus), _size(setting.model)
    if size != data()["settings"]["model"] or not _papers_own(setting):
        return None
    for entry in data()["tables"]:
        if entry["kind"] == kind and "average" in entry and setting.method in entry["average"]:
            ours = {_domain(kind, domain, snr, corpus) for domain, snr in domains}
            if ours == {_key(kind, c) for c in entry["columns"]}:
                return PaperNumber(entry["average"][setting.method], entry["label"])
    return None


def _papers_own(setting: PaperSetting) -> bool:
    """Whether the setting is that of the paper's tables; fields that the method does not use are ignored."""
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
    """Which of the paper's corpora has that name; None for others."""
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
    match = re.search(r"(?<=[-_])(\d+)(?:\s*db)?$", name.lower())
    return float(match[1]) if match else None


def _domain(kind: str | None, domain: str, snr: float | None, corpus: str) -> str | None:
    """The domain's name in the paper's tables, such as LS-GS-10 or MLS-Polish.

    The signal-to-noise ratio may also be part of the domain's or the corpus's name.
    """
    if kind == "ls-c":
        snr = next((ratio for ratio in (snr, _ratio(domain), _ratio(corpus)) if ratio is not None), None)
        code = re.sub(r"^ls-|-\d+$", "", domain.lower()).upper()
        known = table("table-noise")
        return _key(kind, code) if code in known["columns"] and snr == known["snr"] else None
    if snr is not None:  # the paper adds noise to LibriSpeech only
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
    """The size of a Whisper model as the paper names it; None for models that the paper does not have.

    The paper does not say which version its "Large" is; we take large-v3, which Whisper calls large now.
    """
    size = catalog.standard_name(model)
    return {"large-v3": "large"}.get(size, size) if size else None
