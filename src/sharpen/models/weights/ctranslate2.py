"""CTranslate2's `model.bin`, which faster-whisper uses: float16, bfloat16, float32, or matrices of int8 or int16.

Binary version 6: u32 version, text spec name, u32 spec revision, u32 count, then the variables (text name, u8 rank,
u32 x rank shape, u8 dtype, u32 bytes, data), then u32 count aliases (text alias, text name). A text is a u16 length and
bytes that end with a zero. A matrix of whole numbers has a variable beside it, with `_scale` after its name: a float32
for each row (int8) or for all (int16), by which the numbers were multiplied before they were rounded.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions
from sharpen.models.weights.heads import stored_heads
from sharpen.models.weights.quantised import Scaled
from sharpen.models.weights.stored import (
    FLOATS,
    ITEM_SIZE,
    Content,
    Parsed,
    Reader,
    Stored,
    mel_settings,
    neighbour,
    read_json,
    token_list,
)

VERSION = 6
_SCALE = "_scale"
_QUANTISED = ("int8", "int16")
MAGIC = b"\x06\x00\x00\x00\x0c\x00WhisperSpec\x00"
_DTYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")  # by code
_FLAGS = {"pre_norm": 1, "scale_embeddings": 0, "alibi": 0, "start_from_zero_embedding": 0, "activation": 3}  # 3: GELU
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d+)/(self_attention|attention|ffn)/(layer_norm|linear_\d)/(\w+)")
_FIXED = {
    "encoder/conv1/weight": "model.encoder.conv1.weight",
    "encoder/conv1/bias": "model.encoder.conv1.bias",
    "encoder/conv2/weight": "model.encoder.conv2.weight",
    "encoder/conv2/bias": "model.encoder.conv2.bias",
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "encoder/layer_norm/gamma": "model.encoder.layer_norm.weight",
    "encoder/layer_norm/beta": "model.encoder.layer_norm.bias",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/layer_norm/gamma": "model.decoder.layer_norm.weight",
    "decoder/layer_norm/beta": "model.decoder.layer_norm.bias",
}
_ATTENTION = {"self_attention": "self_attn", "attention": "encoder_attn"}
_FUSED = {  # which projections one matrix holds, one below the other
    ("self_attention", "linear_0"): ("q_proj", "k_proj", "v_proj"),
    ("self_attention", "linear_1"): ("out_proj",),
    ("attention", "linear_0"): ("q_proj",),
    ("attention", "linear_1"): ("k_proj", "v_proj"),
    ("attention", "linear_2"): ("out_proj",),
}


@dataclass(frozen=True)
class Variables:
    """The content of a model.bin under its own names."""

    where: str
    values: dict[str, Stored]

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        if name not in self.values:
            raise WeightsError(f"{self.where}: {name} is missing, so this is not a complete Whisper model; {GET_AGAIN}")
        shape = self.values[name].shape
        if len(shape) != rank:
            raise WeightsError(f"{self.where}: {name} has shape {shape}, expected {rank} axes; {GET_AGAIN}")
        return shape

    def scalar(self, name: str, default: int) -> int:
        stored = self.values.get(name)
        if stored is None:
            return default
        if stored.shape:
            raise WeightsError(f"{self.where}: {name} has shape {stored.shape}, expected one number; {GET_AGAIN}")
        return int.from_bytes(stored.data, "little", signed=True)

    def layers(self, side: str) -> int:
        numbers = {int(match[2]) for match in map(_LAYER.fullmatch, self.values) if match and match[1] == side}
        return max(numbers, default=-1) + 1


def parse(content: Content, where: str) -> Variables:
    reader = Reader(content, where)
    (version,) = reader.numbers("I", "the version")
    if version != VERSION:
        raise WeightsError(
            f"{where}: CTranslate2 binary version {version}, expected {VERSION}; convert the model again with a "
            "current ct2-transformers-converter, or use its safetensors"
        )
    spec = _text(reader, "the spec name")
    if spec != "WhisperSpec":
        raise WeightsError(f"{where}: a CTranslate2 model of type {spec!r}, expected WhisperSpec: not a Whisper model")
    reader.numbers("I", "the spec revision")
    (count,) = reader.numbers("I", "the number of variables")
    values = dict(_variable(reader) for _ in range(count))
    (aliases,) = reader.numbers("I", "the number of aliases")
    for _ in range(aliases):
        alias, name = _text(reader, "an alias"), _text(reader, "an alias")
        if name not in values:
            raise WeightsError(f"{where}: {alias} is an alias of {name}, which is missing; {GET_AGAIN}")
        values[alias] = values[name]
    if reader.remaining:
        raise WeightsError(f"{where}: {reader.remaining} bytes too many after the last variable; {GET_AGAIN}")
    return Variables(where, values)


def dimensions(variables: Variables) -> Dimensions:
    state, n_mels, _ = variables.shape("encoder/conv1/weight", 3)
    dims = Dimensions(
        vocab_size=variables.shape("decoder/embeddings/weight", 2)[0],
        n_mels=n_mels,
        audio_ctx=variables.shape("encoder/position_encodings/encodings", 2)[0],
        text_ctx=variables.shape("decoder/position_encodings/encodings", 2)[0],
        state=state,
        audio_heads=variables.scalar("encoder/num_heads", state // 64),  # every released Whisper has heads of 64
        audio_layers=variables.layers("encoder"),
        audio_ffn=variables.shape("encoder/layer_0/ffn/linear_0/weight", 2)[0],
        text_heads=variables.scalar("decoder/num_heads", state // 64),
        text_layers=variables.layers("decoder"),
        text_ffn=variables.shape("decoder/layer_0/ffn/linear_0/weight", 2)[0],
    )
    dims.check(variables.where)
    return dims


def read(content: Content, where: str, folder: Path) -> Parsed:
    """The model in `content`; its suppression lists and tokeniser from the files in `folder`."""
    variables = parse(content, where)
    _check_types(variables)
    variables = _dequantised(variables)
    dims = dimensions(variables)
    suppress = suppress_first = heads = None
    config = neighbour(folder, "config.json")
    if config is not None:
        tree = read_json(config)
        suppress = token_list(tree, "suppress_ids", dims.vocab_size, config)
        suppress_first = token_list(tree, "suppress_ids_begin", dims.vocab_size, config)
        heads = stored_heads(tree.get("alignment_heads"), dims)
    return Parsed(
        dims,
        dict(_tensors(variables)),
        tokenizer_json=neighbour(folder, "tokenizer.json"),
        mel=mel_settings(folder, dims.n_mels),
        suppress=suppress,
        suppress_first=suppress_first,
        alignment_heads=heads,
    )


def _text(reader: Reader, what: str) -> str:
    (length,) = reader.numbers("H", what)
    return reader.text(length, what).rstrip("\0")


def _variable(reader: Reader) -> tuple[str, Stored]:
    name = _text(reader, "a variable's name")
    (rank,) = reader.numbers("B", name)
    shape = reader.numbers(f"{rank}I", name)
    code, size = reader.numbers("BI", name)
    if code >= len(_DTYPES):
        raise WeightsError(f"{reader.name}: damaged: {name} has the unknown type {code}; {GET_AGAIN}")
    stored = reader.tensor(_DTYPES[code], shape, name)
    if len(stored.data) != size:
        raise WeightsError(
            f"{reader.name}: damaged: {name} of shape {shape} should take {len(stored.data)} bytes, not {size}; "
            f"{GET_AGAIN}"
        )
    return name, stored


def _check_types(variables: Variables) -> None:
    for flag, expected in _FLAGS.items():
        if variables.scalar(f"decoder/{flag}", expected) != expected:
            raise WeightsError(f"{variables.where}: decoder/{flag} is not {expected}: not the architecture of Whisper")
    for name in variables.values:
        if name.endswith(("_zero", "_zero_point", "qweight")):
            raise WeightsError(
                f"{variables.where}: {name} belongs to another quantisation than CTranslate2's own, such as AWQ; use "
                "the int8, int8_float16 or float16 conversion"
            )


def _dequantised(variables: Variables) -> Variables:
    """The same variables, with the matrices of whole numbers and their scales as one."""
    values: dict[str, Stored] = {}
    made: dict[int, Scaled] = {}  # an alias stays an alias
    for name, stored in variables.values.items():
        if name.endswith(_SCALE):
            continue
        if stored.shape and stored.dtype not in FLOATS and not name.endswith("alignment_heads"):
            if id(stored) not in made:
                made[id(stored)] = _scaled(variables, name, stored)
            stored = made[id(stored)]
        values[name] = stored
    return Variables(variables.where, values)


def _scaled(variables: Variables, name: str, stored: Stored) -> Scaled:
    scale = variables.values.get(name + _SCALE)
    if stored.dtype not in _QUANTISED or scale is None or scale.dtype != "float32":
        raise WeightsError(
            f"{variables.where}: {name} is {stored.dtype}, and only int8 and int16 with a float32 scale beside it are "
            f"read; {GET_AGAIN}"
        )
    by_row = np.frombuffer(scale.data, "<f4")
    if len(by_row) not in (1, stored.shape[0]) or not (by_row > 0).all() or not np.isfinite(by_row).all():
        raise WeightsError(
            f"{variables.where}: damaged: {name} of shape {stored.shape} has scales of shape {scale.shape}, or not all "
            f"of them are positive; {GET_AGAIN}"
        )
    return Scaled(stored.dtype, stored.shape, stored.data, scale=1 / by_row)


def _tensors(variables: Variables) -> Iterator[tuple[str, Stored]]:
    for name, stored in variables.values.items():
        if name in _FIXED:
            yield _FIXED[name], stored
        elif match := _LAYER.fullmatch(name):
            yield from _layer_tensors(variables, match, stored)
        elif stored.shape and name != "decoder/projection/weight" and not name.endswith("alignment_heads"):
            raise WeightsError(f"{variables.where}: {name} is not part of a Whisper model")
    projection = variables.values.get("decoder/projection/weight")
    embedding = variables.values["decoder/embeddings/weight"]
    if projection is not None and projection is not embedding and projection.data != embedding.data:
        raise WeightsError(f"{variables.where}: the output projection is not the token embedding, as it is in Whisper")


def _layer_tensors(variables: Variables, match: re.Match[str], stored: Stored) -> Iterator[tuple[str, Stored]]:
    side, index, block, part, leaf = match.groups()
    layer = f"model.{side}.layers.{index}"
    leaf = {"gamma": "weight", "beta": "bias"}.get(leaf, leaf)
    if block == "ffn":
        yield f"{layer}.{ {'linear_0': 'fc1', 'linear_1': 'fc2'}.get(part, 'final_layer_norm') }.{leaf}", stored
        return
    attention = f"{layer}.{_ATTENTION[block]}"
    if part == "layer_norm":
        yield f"{attention}_layer_norm.{leaf}", stored
        return
    projections = _FUSED.get((block, part), ())
    if not projections or not stored.shape or stored.shape[0] % len(projections):
        raise WeightsError(f"{variables.where}: {match[0]} of shape {stored.shape} is not part of a Whisper model")
    height = stored.shape[0] // len(projections)
    for i, projection in enumerate(projections):
        tensor = stored.rows(i * height, (i + 1) * height)
        if (projection, leaf) != ("k_proj", "bias"):
            yield f"{attention}.{projection}.{leaf}", tensor
        # Whisper's keys have no bias: the converter fills its place with zeros.
        elif np.frombuffer(tensor.data, f"u{ITEM_SIZE[tensor.dtype]}").any():
            raise WeightsError(f"{variables.where}: {match[0]} gives the keys a bias, which Whisper does not have")
