"""Corpora from the Hugging Face hub: `hf:ID[:config[:split]]`, through the `datasets` package.

The package downloads and stores. It never decodes audio here, because its decoder needs a library that many machines
lack. Columns are recognised by their names, which differ between datasets.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.layouts import CorpusEntry, Skip, value
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
class HubAudio:
    """The audio of one row, encoded as it was uploaded; read from disk on each call of `read`."""

    dataset: Any
    row: int
    column: str

    def __str__(self) -> str:
        return f"{self.column} of row {self.row}"

    def read(self) -> bytes:
        audio = self.dataset[self.row][self.column]
        if audio is None:
            raise SharpenError(f"{self} is empty")
        content = audio["bytes"] if audio["bytes"] is not None else Path(audio["path"]).read_bytes()
        return bytes(content)


def hub_name(where: str) -> str:
    """The corpus's name: the dataset's name, its configuration, and the split unless it is `test`."""
    name, config, split = _parts(where)
    return "-".join(part for part in (Path(name).name, config, split if split != "test" else "") if part)


def read_hub(where: str) -> Iterator[CorpusEntry | Skip]:
    """All rows of a dataset's split, `test` unless another is named."""
    name, config, split = _parts(where)
    dataset, column = _encoded(where, _load(where, name, config, split or "test"))
    text = _first(dataset.features, _TEXTS)
    if text is None:
        raise SharpenError(
            f"{where} has the columns {', '.join(dataset.features)}; expected one of {', '.join(_TEXTS)} with the "
            "transcripts. Choose another dataset, or write a manifest"
        )
    seen: Counter[str] = Counter()
    for number, row in enumerate(dataset.select_columns([c for c in dataset.features if c != column])):
        place = f"{where} row {number}"
        if not isinstance(row[text], str):
            yield Skip(f"{place}: no {text}, which is needed as the reference")
            continue
        # The path depends on the machine's cache; the file name does not.
        own = value(row, *_IDS) or Path(value(row, *_FILES)).stem or str(number)
        seen[own] += 1
        yield CorpusEntry(
            id=own if seen[own] == 1 else f"{own}#{seen[own]}",  # users of the hub cannot repair duplicate ids
            audio=HubAudio(dataset, number, column),
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
    except ValueError:  # the audio header has it
        return None


def _parts(where: str) -> tuple[str, str, str]:
    name, config, split, *more = [*where.removeprefix(PREFIX).split(":"), "", ""]
    if not name or any(more):
        raise SharpenError(
            f"{where!r} is not the name of a dataset; expected hf:ID, hf:ID:config or hf:ID:config:split"
        )
    return name, config, split


def _load(where: str, name: str, config: str, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise SharpenError(
            f"{where} needs the datasets package, which is not installed: pip install 'sharpen[hub]'"
        ) from error
    try:
        return datasets.load_dataset(name, config or None, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the dataset has a loading script
        raise SharpenError(f"{where} cannot be loaded by datasets {datasets.__version__}: {error}") from error


def _encoded(where: str, dataset: Any) -> tuple[Any, str]:
    """The dataset with its audio left encoded, and the audio column."""
    audio = importlib.import_module("datasets").Audio
    typed = [name for name, feature in dataset.features.items() if isinstance(feature, audio)]
    column = typed[0] if typed else "audio"
    if column not in dataset.features:
        raise SharpenError(f"{where} has the columns {', '.join(dataset.features)}, none of which is of type Audio")
    return dataset.cast_column(column, audio(decode=False)), column


def _as_language(config: str) -> str:
    """The language that a configuration such as `polish` names; empty if it names none."""
    try:
        return language_code(config)
    except SharpenError:
        return ""


def _first(columns: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)
