"""Corpora from the Hugging Face hub: `hf:ID[:config[:split]]`, through the `datasets` package.

That package fetches and stores; it never decodes a sound here, since its decoder needs a library that many machines
lack. The columns are told by their names, which differ from one dataset to the next.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.layouts import Entry, Skip, value
from sharpen.models.languages import language_code

PREFIX = "hf:"

_TEXTS = ("text", "transcript", "transcription", "sentence", "normalized_text")
_IDS = ("id", "utterance_id")
_FILES = ("file", "path")
_SPEAKERS = ("speaker", "speaker_id", "client_id")
_LANGUAGES = ("language", "lang", "locale")
_DOMAINS = ("domain", "accent", "accents", "noise")
_DURATIONS = ("duration", "audio_duration")


@dataclass(frozen=True, eq=False, repr=False)
class StoredAudio:
    """The sound of one row, encoded as it was uploaded; read from disk whenever it is wanted."""

    dataset: Any
    row: int
    column: str

    def __str__(self) -> str:
        return f"{self.column} of row {self.row}"

    def read(self) -> bytes:
        sound = self.dataset[self.row][self.column]
        if sound is None:
            raise SharpenError(f"{self} is empty")
        content = sound["bytes"] if sound["bytes"] is not None else Path(sound["path"]).read_bytes()
        return bytes(content)


def hub_name(where: str) -> str:
    """What the corpus is called: the dataset's own name, its configuration, and any split but `test`."""
    name, config, split = _parts(where)
    return "-".join(part for part in (Path(name).name, config, split if split != "test" else "") if part)


def read_hub(where: str) -> Iterator[Entry | Skip]:
    """All rows of a dataset's split, `test` unless another is named."""
    name, config, split = _parts(where)
    dataset, column = _encoded(where, _load(where, name, config, split or "test"))
    text = _first(dataset.features, _TEXTS)
    if text is None:
        raise SharpenError(
            f"{where} has the columns {', '.join(dataset.features)}, and none of {', '.join(_TEXTS)} that could hold "
            "the transcripts; choose another dataset, or write a manifest"
        )
    seen: Counter[str] = Counter()
    for number, row in enumerate(dataset.select_columns([c for c in dataset.features if c != column])):
        place = f"{where} row {number}"
        if not isinstance(row[text], str):
            yield Skip(f"{place}: no {text}, which an error rate needs as its reference")
            continue
        # A path is another one in every machine's cache; the name of the file is not.
        own = value(row, *_IDS) or Path(value(row, *_FILES)).stem or str(number)
        seen[own] += 1
        yield Entry(
            id=own if seen[own] == 1 else f"{own}#{seen[own]}",  # whoever takes a dataset from the hub cannot mend it
            audio=StoredAudio(dataset, number, column),
            text=row[text],
            place=place,
            language=value(row, *_LANGUAGES) or _as_language(config),
            speaker=value(row, *_SPEAKERS),
            domain=value(row, *_DOMAINS),
            duration=_number(value(row, *_DURATIONS)),
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # the recording's own header tells
        return None


def _parts(where: str) -> tuple[str, str, str]:
    name, config, split, *more = [*where.removeprefix(PREFIX).split(":"), "", ""]
    if not name or any(more):
        raise SharpenError(f"{where!r} names no dataset; expected hf:ID, hf:ID:config or hf:ID:config:split")
    return name, config, split


def _load(where: str, name: str, config: str, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise SharpenError(
            f"{where} needs the datasets package, which is not here: pip install 'sharpen[hub]'"
        ) from error
    try:
        return datasets.load_dataset(name, config or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # a RuntimeError: it comes with a script, and none is run
        raise SharpenError(f"{where} cannot be loaded by datasets {datasets.__version__}: {error}") from error


def _encoded(where: str, dataset: Any) -> tuple[Any, str]:
    """The dataset with its sounds left as they are, and the column that holds them."""
    audio = importlib.import_module("datasets").Audio
    typed = [name for name, feature in dataset.features.items() if isinstance(feature, audio)]
    column = typed[0] if typed else "audio"
    if column not in dataset.features:
        raise SharpenError(f"{where} has the columns {', '.join(dataset.features)}, and none of them is of type Audio")
    return dataset.cast_column(column, audio(decode=False)), column


def _as_language(config: str) -> str:
    """A configuration is often a language (`polish`); otherwise it says nothing about it."""
    try:
        return language_code(config)
    except SharpenError:
        return ""


def _first(columns: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)
