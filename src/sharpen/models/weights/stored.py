"""Weights as they lie in a file: dimensions, named tensors as bytes, and a bounds-checked reader. No torch here."""

import json
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import MelSettings

ITEM_SIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int16": 2, "int32": 4}  # bytes
FLOATS = ("float32", "float16", "bfloat16")
MOST_AXES = 8  # of a tensor; Whisper has at most 3
GET_AGAIN = "get the file again (`sharpen models fetch NAME` does for the known ones)"


@dataclass(frozen=True)
class Dimensions:
    vocab_size: int
    n_mels: int
    audio_ctx: int  # encoder positions, 1500 for 30 s
    text_ctx: int  # decoder positions, 448
    state: int  # d_model of both encoder and decoder
    audio_heads: int
    audio_layers: int
    audio_ffn: int
    text_heads: int
    text_layers: int
    text_ffn: int

    def check(self, where: str) -> None:
        """Refuse sizes no Whisper has, before anything is allocated."""
        for name, value in vars(self).items():
            if not 0 < value <= (256 if name.endswith("layers") else 2**20):
                raise WeightsError(f"{where}: {name} = {value} is not a size of a Whisper model; {GET_AGAIN}")
        for heads in (self.audio_heads, self.text_heads):
            if self.state % heads:
                raise WeightsError(f"{where}: {self.state} features do not divide into {heads} heads; {GET_AGAIN}")

    @property
    def parameters(self) -> int:
        """Numbers in the model; the output projection is the token embedding and counts once."""
        d = self.state
        norm = 2 * d
        attention = 4 * d * d + 3 * d  # the key projection has no bias
        audio_layer = attention + 2 * d * self.audio_ffn + self.audio_ffn + d + 2 * norm
        text_layer = 2 * attention + 2 * d * self.text_ffn + self.text_ffn + d + 3 * norm
        convolutions = 3 * d * self.n_mels + d + 3 * d * d + d
        embeddings = (self.audio_ctx + self.text_ctx + self.vocab_size) * d
        layers = self.audio_layers * audio_layer + self.text_layers * text_layer
        return convolutions + embeddings + layers + 2 * norm


@dataclass(frozen=True)
class Stored:
    """One tensor as bytes, row-major, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview = field(repr=False)

    def rows(self, start: int, stop: int) -> "Stored":
        """A slice along the first axis, without a copy."""
        row = len(self.data) // max(1, self.shape[0])
        return Stored(self.dtype, (stop - start, *self.shape[1:]), self.data[start * row : stop * row])


@dataclass(frozen=True)
class Parsed:
    """A checkpoint read from one format: tensors under Hugging Face names, and what came along with them."""

    dimensions: Dimensions
    tensors: Mapping[str, Stored]
    tokenizer_json: Path | None = None
    mel: MelSettings | None = None
    suppress: tuple[int, ...] | None = None  # None: the format has no list
    suppress_first: tuple[int, ...] | None = None


class Reader:
    """Reads little-endian values one after the other; running off the end is a WeightsError, never a crash."""

    def __init__(self, buffer: memoryview, name: str) -> None:
        self.buffer, self.name, self.offset = buffer, name, 0

    @property
    def remaining(self) -> int:
        return len(self.buffer) - self.offset

    def take(self, count: int, what: str) -> memoryview:
        if not 0 <= count <= self.remaining:
            raise WeightsError(
                f"{self.name}: truncated or damaged: {what} at byte {self.offset} needs {count} bytes and "
                f"{self.remaining} are left; {GET_AGAIN}"
            )
        self.offset += count
        return self.buffer[self.offset - count : self.offset]

    def numbers(self, layout: str, what: str) -> tuple[int, ...]:
        layout = "<" + layout
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def text(self, count: int, what: str) -> str:
        raw = bytes(self.take(count, what))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self.name}: damaged: {what} is {raw[:20]!r}, not text; {GET_AGAIN}") from error

    def tensor(self, dtype: str, shape: Sequence[int], what: str) -> Stored:
        if len(shape) > MOST_AXES:
            raise WeightsError(f"{self.name}: damaged: {what} has {len(shape)} axes; {GET_AGAIN}")
        return Stored(dtype, tuple(shape), self.take(math.prod(shape) * ITEM_SIZE[dtype], what))


def open_bytes(paths: Sequence[Path]) -> memoryview:
    """The bytes of a file, or of the parts of one: a single file is mapped, parts are joined in memory."""
    for path in paths:
        if not path.is_file():
            raise WeightsError(f"{path}: a part of the weights is missing; {GET_AGAIN}")
        if path.stat().st_size == 0:
            raise WeightsError(f"{path}: the file is empty; {GET_AGAIN}")
    if len(paths) > 1:
        joined = bytearray(sum(path.stat().st_size for path in paths))
        view, start = memoryview(joined), 0
        for path in paths:
            with path.open("rb") as file:
                start += file.readinto(view[start:])
        return view
    with paths[0].open("rb") as file:
        # A private mapping: writable for torch's sake, and what is written would never reach the file.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that came with a checkpoint."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: not valid JSON ({error}); {GET_AGAIN}") from error
    if not isinstance(tree, dict):
        raise WeightsError(f"{path}: expected a JSON object, found {type(tree).__name__}; {GET_AGAIN}")
    return tree


def token_list(tree: Mapping[str, Any], key: str, vocab_size: int, path: Path) -> tuple[int, ...] | None:
    """A list of token ids, or None where the file leaves the choice to the kind of model (absent, null, or a -1)."""
    value = tree.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(token, int) for token in value):
        raise WeightsError(f"{path}: {key} should be a list of token ids, found {str(value)[:60]}")
    if any(token >= vocab_size for token in value):
        raise WeightsError(f"{path}: {key} names token {max(value)}, but the model has {vocab_size} tokens")
    return None if any(token < 0 for token in value) else tuple(value)


def neighbour(folder: Path, name: str) -> Path | None:
    path = folder / name
    return path if path.is_file() else None


def mel_settings(folder: Path, n_mels: int) -> MelSettings | None:
    """The feature settings of a `preprocessor_config.json`, if there is one."""
    path = neighbour(folder, "preprocessor_config.json")
    if path is None:
        return None
    tree = read_json(path)
    fields = {"n_mels": "feature_size", "n_fft": "n_fft", "hop_length": "hop_length"}
    fields |= {"sampling_rate": "sampling_rate", "seconds": "chunk_length"}
    values = {ours: tree[theirs] for ours, theirs in fields.items() if theirs in tree}
    if not all(isinstance(value, int) and value > 0 for value in values.values()):
        raise WeightsError(f"{path}: feature settings should be positive integers, found {values}")
    settings = MelSettings(**({"n_mels": n_mels} | values))
    if settings.n_mels != n_mels:
        raise WeightsError(f"{path}: {settings.n_mels} mel bins, but the model takes {n_mels}; the files do not match")
    return settings
