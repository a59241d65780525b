"""Text normalisers by name. An error rate is comparable only with rates under the same normaliser.

`whisper-en` and `whisper-basic` are the two of the Whisper paper (see whisper_rules.py); `none` changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sharpen.errors import SharpenError
from sharpen.evaluation.runs import whisper_rules


@dataclass(frozen=True)
class Normaliser:
    """A function from text to text with a name and a version, which together are the label in every result."""

    name: str
    version: int  # raised whenever the output for any text changes
    rules: Callable[[str], str]

    @property
    def label(self) -> str:
        return f"{self.name}/{self.version}"

    def __call__(self, text: str) -> str:
        return self.rules(text)


def normaliser(name: str) -> Normaliser:
    """The normaliser of this name: whisper-en, whisper-basic or none."""
    if name not in NORMALISERS:
        raise SharpenError(f"unknown normaliser {name!r}; choose from {', '.join(NORMALISERS)}")
    return NORMALISERS[name]


def normaliser_for(language: str | None) -> Normaliser:
    """`whisper-en` for English, `whisper-basic` for any other language or an unknown one."""
    is_english = language is not None and language.lower().replace("_", "-").split("-")[0] in ("en", "english")
    return normaliser("whisper-en" if is_english else "whisper-basic")


def _unchanged(text: str) -> str:
    return text


NORMALISERS = {
    n.name: n
    for n in (
        Normaliser("whisper-en", 1, whisper_rules.english),
        Normaliser("whisper-basic", 1, whisper_rules.basic),
        Normaliser("none", 1, _unchanged),
    )
}
