"""Text normalisers by name, since an error rate means nothing without the one it was computed with.

`whisper-en` and `whisper-basic` are the two of the Whisper paper, as transformers has them; `none` changes nothing.
The spelling table (British to American) that `whisper-en` needs is not in transformers: `assets/spelling.json` is
`whisper/normalizers/english.json` of openai-whisper 20250625 (MIT), unchanged.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from sharpen.errors import SharpenError


@dataclass(frozen=True)
class Normaliser:
    """A function from text to text that knows its name: the label goes into every result."""

    name: str
    version: int  # raised whenever any text comes out differently; tests hold the texts of each version
    rules: Callable[[str], str]

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"

    def __call__(self, text: str) -> str:
        return self.rules(text)


def normaliser(name: str) -> Normaliser:
    """The normaliser called `name`: whisper-en, whisper-basic or none."""
    if name not in NORMALISERS:
        raise SharpenError(f"unknown normaliser {name!r}; choose from {', '.join(NORMALISERS)}")
    return NORMALISERS[name]


def normaliser_for(language: str | None) -> Normaliser:
    """`whisper-en` for English, whose words it rewrites; `whisper-basic` for other languages, and for unknown ones."""
    english = language is not None and language.lower().replace("_", "-").split("-")[0] in ("en", "english")
    return normaliser("whisper-en" if english else "whisper-basic")


@lru_cache
def _english() -> Callable[[str], str]:
    # Imported at first use: it takes a second, and most of what scores text never gets here.
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    table = files("sharpen.evaluation.runs").joinpath("assets", "spelling.json").read_text(encoding="utf-8")
    rules: Callable[[str], str] = EnglishTextNormalizer(json.loads(table))  # type: ignore[no-untyped-call]
    return rules


@lru_cache
def _basic() -> Callable[[str], str]:
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer

    rules: Callable[[str], str] = BasicTextNormalizer()
    return rules


NORMALISERS = {
    n.name: n
    for n in (
        Normaliser("whisper-en", 1, lambda text: _english()(text).strip()),
        Normaliser("whisper-basic", 1, lambda text: _basic()(text).strip()),
        Normaliser("none", 1, lambda text: text),
    )
}
