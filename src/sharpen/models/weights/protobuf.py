"""Protobuf messages, read field by field with every length checked."""

from collections.abc import Iterator

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN


def fields(data: memoryview, where: str) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of a message: a number, or the bytes of anything longer."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position, where)
        wire = tag & 7
        if wire == 0:
            number, position = _varint(data, position, where)
            yield tag >> 3, number
            continue
        if wire == 2:
            length, position = _varint(data, position, where)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise WeightsError(f"{where}: damaged, or not an ONNX file: wire type {wire}; {GET_AGAIN}")
        if length > end - position:
            raise WeightsError(
                f"{where}: truncated or damaged: a field of {length} bytes where {end - position} are left; {GET_AGAIN}"
            )
        yield tag >> 3, data[position : position + length]
        position += length


def messages(data: memoryview, path: tuple[int, ...], where: str) -> Iterator[memoryview]:
    """The messages at the end of a path of field numbers."""
    for number, value in fields(data, where):
        if number == path[0] and isinstance(value, memoryview):
            if len(path) == 1:
                yield value
            else:
                yield from messages(value, path[1:], where)


def varints(data: memoryview, where: str) -> list[int]:
    """Numbers one behind the other, without tags."""
    numbers, position = [], 0
    while position < len(data):
        number, position = _varint(data, position, where)
        numbers.append(number)
    return numbers


def text(data: memoryview, where: str) -> str:
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WeightsError(f"{where}: damaged: {bytes(data[:20])!r} is not text; {GET_AGAIN}") from error


def _varint(data: memoryview, position: int, where: str) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; a byte over 127 has another behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise WeightsError(f"{where}: truncated or damaged: a number without its end; {GET_AGAIN}")
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
    raise WeightsError(f"{where}: damaged, or not an ONNX file: a number of more than ten bytes; {GET_AGAIN}")
