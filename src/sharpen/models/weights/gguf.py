"""llama.cpp's GGUF files: metadata and tensors.

u32 magic and version, u64 counts of tensors and of metadata; the metadata (name, u32 type, value); for each tensor its
name, u32 rank, u64 x rank shape with the fastest axis first, u32 type, u64 offset; then, aligned, the data. What the
names mean is said in `gguf_families`, the tokeniser in `gguf_tokens`, quantised blocks in `blocks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.weights.blocks import BY_CODE, FLOAT_CODES, FORMATS, Blocks, read_blocks, type_name
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.stored import Content, Reader

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"GGUF"
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9  # the other types of metadata
_MOST = 1 << 24  # entries of a list, bytes of a text


class GGUF:
    """A parsed file; quantised tensors stay as they lie in it."""

    def __init__(self, content: Content, where: str) -> None:
        self._reader = reader = Reader(content, where)
        if bytes(reader.take(4, "the magic number")) != MAGIC:
            raise WeightsError(f"{where}: not a GGUF file; {GET_AGAIN}")
        version, tensors, entries = reader.numbers("IQQ", "the header")
        if version not in (2, 3):
            raise WeightsError(f"{where}: GGUF version {version}, expected 2 or 3")
        self.metadata = {self._text(): self._value() for _ in range(entries)}
        self._tensors = dict(self._info() for _ in range(tensors))
        alignment = self.metadata.get("general.alignment", 32)
        self._start = -(-reader.offset // alignment) * alignment
        self.where = where

    @property
    def names(self) -> tuple[str, ...]:
        """Of its tensors."""
        return tuple(self._tensors)

    @property
    def quantised(self) -> str:
        """The types of its quantised tensors, such as "Q4_1 and Q8_0"; nothing for float16 and float32."""
        *most, last = sorted({BY_CODE[kind].upper() for _, kind, _ in self._tensors.values() if kind in BY_CODE}) or [
            ""
        ]
        return f"{', '.join(most)} and {last}" if most else last

    def tensor(self, name: str) -> Tensor | Blocks:
        shape, kind, offset = self._tensors[name]
        self._reader.offset = self._start + offset
        if kind in FLOAT_CODES:
            return self._reader.tensor(FLOAT_CODES[kind], shape, name).tensor()
        if kind not in BY_CODE:
            known = ", ".join(["F32", "F16", *(dtype.upper() for dtype in FORMATS)])
            raise WeightsError(
                f"{self.where}: {name} is stored as {type_name(kind).upper()}, which is not read; read are {known}: "
                "use another file of this model"
            )
        return read_blocks(self._reader, BY_CODE[kind], shape, name)

    def _info(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name = self._text()
        (rank,) = self._reader.numbers("I", name)
        if not 0 < rank <= 4:
            raise WeightsError(f"{self._reader.name}: damaged: {name} has {rank} axes; {GET_AGAIN}")
        shape = self._reader.numbers(f"{rank}Q", name)[::-1]
        kind, offset = self._reader.numbers("IQ", name)
        return name, (shape, kind, offset)

    def _text(self) -> str:
        (length,) = self._reader.numbers("Q", "a text")
        return self._reader.text(length, "a text")

    def _value(self, kind: int | None = None) -> Any:
        if kind is None:
            (kind,) = self._reader.numbers("I", "a type")
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._reader.numbers("IQ", "a list")
            if count > _MOST:
                raise WeightsError(f"{self._reader.name}: damaged: a list of {count} entries; {GET_AGAIN}")
            if inner in _NUMBERS:  # a vocabulary has hundreds of thousands
                return list(self._reader.numbers(f"{count}{_NUMBERS[inner]}", "a list"))
            return [self._value(inner) for _ in range(count)]
        if kind not in _NUMBERS:
            raise WeightsError(f"{self._reader.name}: damaged: metadata of type {kind}; {GET_AGAIN}")
        return self._reader.numbers(_NUMBERS[kind], "a number")[0]
