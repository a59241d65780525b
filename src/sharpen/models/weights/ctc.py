"""CTC checkpoints in Hugging Face's layout: config.json, safetensors, vocab.json and, if there is one,
preprocessor_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.weights import huggingface
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.formats import Source
from sharpen.models.weights.stored import neighbour, read_json

if TYPE_CHECKING:
    from torch import Tensor

DELIMITER = "|"  # between words, unless tokenizer_config.json names another


@dataclass(frozen=True, eq=False)
class CTCCheckpoint:
    """A loaded checkpoint, as its files have it."""

    name: str  # as asked for
    source: str  # where it was found, for people
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    vocabulary: Mapping[str, int]
    blank: int
    delimiter: str
    sampling_rate: int
    normalise: bool  # whether it takes waveforms of mean 0 and variance 1
    note: str = ""


def is_ctc(source: Source) -> bool:
    """By the name of the class that its configuration says it was saved from."""
    config = neighbour(source.folder, "config.json") if source.format == "safetensors" else None
    kinds = read_json(config).get("architectures") if config is not None else None
    return isinstance(kinds, list) and any(str(kind).endswith("ForCTC") for kind in kinds)


def load_ctc(name: str, label: str, source: Source) -> CTCCheckpoint:
    """WeightsError where a file is missing or says something that cannot be followed."""
    vocab = neighbour(source.folder, "vocab.json")
    if vocab is None:
        raise WeightsError(f"{source.folder}: there is no vocab.json, the symbols of a CTC model; {GET_AGAIN}")
    config, vocabulary = read_json(source.folder / "config.json"), read_json(vocab)
    if not all(isinstance(number, int) for number in vocabulary.values()):
        raise WeightsError(f"{vocab}: several languages in one file, which are not supported; expected symbols")
    size, blank = config.get("vocab_size"), config.get("pad_token_id", 0)
    if not isinstance(blank, int) or not isinstance(size, int) or not 0 <= blank < size:
        raise WeightsError(f"pad_token_id is {blank!r}, the blank symbol: expected one of the {size} symbols")
    settings = {}
    for file in ("preprocessor_config.json", "tokenizer_config.json"):
        own = neighbour(source.folder, file)
        settings[file] = read_json(own) if own else {}
    sound, words = settings.values()
    stored = huggingface.tensors_of(source.folder)
    return CTCCheckpoint(
        name=name,
        source=label,
        config=config,
        tensors={key: one.tensor() for key, one in stored.items()},
        vocabulary=vocabulary,
        blank=blank,
        delimiter=words.get("word_delimiter_token", DELIMITER),
        sampling_rate=sound.get("sampling_rate", 16000),
        normalise=sound.get("do_normalize", True),
    )
