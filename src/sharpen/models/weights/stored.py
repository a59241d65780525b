"""Weights as they lie in a file: mapped bytes, a bounds-checked reader, named tensors. Torch is imported late."""

import hashlib
import json
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions, MelSettings

if TYPE_CHECKING:
    from torch import Tensor

ITEM_SIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int16": 2, "int32": 4}  # bytes
FLOATS = ("float32", "float16", "bfloat16")
MOST_AXES = 8  # of a tensor; Whisper has at most 3


@dataclass(frozen=True)
class Stored:
    """One tensor as bytes, row-major, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview = field(repr=False)

    @classmethod
    def of(cls, tensor: "Tensor") -> "Stored":
        """A tensor that another library read, without a copy."""
        import torch

        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)

    def rows(self, start: int, stop: int) -> "Stored":
        """A slice along the first axis, without a copy."""
        row = len(self.data) // max(1, self.shape[0])
        return replace(self, shape=(stop - start, *self.shape[1:]), data=self.data[start * row : stop * row])

    def tensor(self) -> "Tensor":
        """The same bytes as a tensor, without a copy."""
        import torch

        flat = torch.frombuffer(self.data, dtype=getattr(torch, self.dtype), count=math.prod(self.shape))
        return flat.reshape(self.shape)


@dataclass(frozen=True)
class Parsed:
    """A checkpoint read from one format: tensors under Hugging Face names, and the settings stored beside them."""

    dimensions: Dimensions
    tensors: Mapping[str, Stored]
    tokenizer_json: Path | None = None
    mel: MelSettings | None = None
    suppress: tuple[int, ...] | None = None  # None: the format has no list
    suppress_first: tuple[int, ...] | None = None
    alignment_heads: tuple[tuple[int, int], ...] | None = None


class Content:
    """The bytes of a file that may be split into parts. The parts are mapped: a page is read when it is used.

    A mapping follows its file. Replacing the file by renaming another over it is safe; writing into it is not.
    """

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self.parts = parts
        self.starts = [*accumulate((len(part) for part in parts), initial=0)]

    def __len__(self) -> int:
        return self.starts[-1]

    def view(self, start: int, stop: int) -> memoryview:
        """The bytes of a range; copied only where the range crosses from one part into the next."""
        if len(self.parts) == 1:
            return self.parts[0][start:stop]
        pieces = [
            part[max(0, start - first) : stop - first]
            for part, first in zip(self.parts, self.starts, strict=False)
            if first < stop and start < first + len(part)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return memoryview(bytearray().join(pieces))

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(part)
        return digest.hexdigest()


class Reader:
    """Reads little-endian values one after the other; running off the end is a WeightsError, never a crash."""

    def __init__(self, content: Content, name: str) -> None:
        self.content, self.name, self.offset = content, name, 0

    @property
    def remaining(self) -> int:
        return len(self.content) - self.offset

    def take(self, count: int, what: str) -> memoryview:
        if not 0 <= count <= self.remaining:
            raise WeightsError(
                f"{self.name}: truncated or damaged: {what} at byte {self.offset} needs {count} bytes and "
                f"{self.remaining} are left; {GET_AGAIN}"
            )
        self.offset += count
        return self.content.view(self.offset - count, self.offset)

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


def open_content(paths: Sequence[Path]) -> Content:
    """Maps a file, or the parts of one in their order."""
    parts = []
    for path in paths:
        if not path.is_file():
            raise WeightsError(f"{path}: a part of the weights is missing; {GET_AGAIN}")
        if path.stat().st_size == 0:
            raise WeightsError(f"{path}: the file is empty; {GET_AGAIN}")
        with path.open("rb") as file:
            # A private mapping: torch asks for a writable buffer, and a write would never reach the file.
            parts.append(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)))
    return Content(parts)


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
    """A list of token ids, or None where the file asks for the default of its kind of model (absent, null, or a -1)."""
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
