"""ONNX models as transformers.js uses them: an encoder file and a decoder file, float or quantised to 8 bits.

An ONNX file is a protobuf message: fields of a tag (field number and wire type) and a value, a message being bytes that
hold fields again. Only the weights are read, and the nodes that say which module a matrix belongs to: exporters name
the input of a product "onnx::MatMul_123", and the product itself after its module.
"""

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.protobuf import fields, messages, text, varints
from sharpen.models.weights.quantised import Scaled
from sharpen.models.weights.stored import FLOATS, ITEM_SIZE, MOST_AXES, Content, Stored, open_content

if TYPE_CHECKING:
    from torch import Tensor

_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16", 16: "bfloat16"}  # by code; others hold no weights
_DEEPEST = 8  # graphs inside of graphs; a merged decoder has 2
_SUFFIXES = ("", "_fp16", "_int8", "_quantized", "_uint8")  # of file names, the most exact first
_UNREAD = {"MatMulNBits": "4 bits", "MatMulBnb4": "4 bits", "QLinearMatMul": "8-bit activations as well"}
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+")  # a name that an exporter kept: "layers.0.fc1.bias"
_ENDING = re.compile(r"(_merged_\d+)?(_quantized)?$")  # what merging decoders and quantising append to it


@dataclass(frozen=True)
class Turned(Stored):
    """A float matrix that is stored with rows and columns exchanged."""

    def tensor(self) -> "Tensor":
        return Stored(self.dtype, self.shape[::-1], self.data).tensor().T


@dataclass(frozen=True)
class Node:
    op: str
    name: str
    inputs: tuple[str, ...]


@dataclass
class Graph:
    """The weights and the nodes of a file, those of inner graphs included."""

    where: str
    tensors: dict[str, Stored] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes; -1 for an axis of any length


def find(folder: Path) -> tuple[Path, ...]:
    """The encoder and the decoder file of a directory, the most exact ones; empty where it has no ONNX files."""
    places = [folder, folder / "onnx"]
    for suffix in _SUFFIXES:
        for place in places:
            for decoder in ("decoder_model_merged", "decoder_model"):
                pair = place / f"encoder_model{suffix}.onnx", place / f"{decoder}{suffix}.onnx"
                if all(path.is_file() for path in pair):
                    return pair
    others = sorted(path.name for place in places for path in place.glob("*.onnx"))
    if others:
        raise WeightsError(
            f"{folder}: ONNX files ({', '.join(others[:5])}), but no encoder_model and decoder_model_merged of one "
            f"kind; read are float32 and those that end in {', '.join(_SUFFIXES[1:])}, not 4-bit ones"
        )
    return ()


def graphs(content: Content, files: tuple[Path, ...]) -> list[Graph]:
    """The files of a checkpoint, which are the parts of its content."""
    return [parse(part, str(path)) for part, path in zip(content.parts, files, strict=True)]


def open_graphs(files: tuple[Path, ...]) -> list[Graph]:
    """The same, straight from the files."""
    return graphs(open_content(files), files)


def parse(data: memoryview, where: str) -> Graph:
    graph = Graph(where)
    found = list(messages(data, (7,), where))
    if len(found) != 1:
        raise WeightsError(f"{where}: not an ONNX model: {len(found)} graphs, expected one; {GET_AGAIN}")
    _read_graph(found[0], graph, 0)
    return graph


def weights(graph: Graph, prefix: str) -> dict[str, Stored]:
    """Every weight under the name of its module: `prefix`, unless the names in the file begin with "model."."""
    found: dict[str, Stored] = {}

    def put(name: str, stored: Stored) -> None:
        name = name if name.startswith("model.") else prefix + name
        if name in found and found[name].data is not stored.data:  # both branches of a decoder share their weights
            raise WeightsError(f"{graph.where}: two tensors for {name}; {GET_AGAIN}")
        if isinstance(stored, Scaled) and not {len(stored.scale), len(stored.zero)} <= {1, *stored.shape[:1]}:
            raise WeightsError(
                f"{graph.where}: {name} of shape {stored.shape} has {len(stored.scale)} scales and {len(stored.zero)} "
                f"zeros, expected one, or one for each row; {GET_AGAIN}"
            )
        found[name] = stored

    for name in graph.tensors:
        plain = _ENDING.sub("", name)
        if _MODULE.fullmatch(plain) and not plain.endswith(("_scale", "_zero_point")):
            put(plain, _numbers(graph, name))
    for node in graph.nodes:
        if node.op in _UNREAD:
            raise WeightsError(
                f"{graph.where}: {node.op}, a product with {_UNREAD[node.op]}, is not read; use the float32, fp16 or "
                "quantized (8-bit) files of this model"
            )
        of_weight = node.op in ("MatMul", "MatMulInteger") and len(node.inputs) > 1 and node.inputs[1] in graph.tensors
        if of_weight and len(graph.tensors[node.inputs[1]].shape) == 2:
            module = node.name.strip("/").removesuffix("_quant").removesuffix("/MatMul").replace("/", ".")
            put(f"{module}.weight", _turned(_numbers(graph, node.inputs[1])))
    return found


def _numbers(graph: Graph, name: str) -> Stored:
    """A tensor with its scale and zero point, where it has them."""
    stored = graph.tensors[name]
    if stored.dtype in FLOATS:
        return stored
    base = name.removesuffix("_quantized")
    scale, zero = graph.tensors.get(f"{base}_scale"), graph.tensors.get(f"{base}_zero_point")
    if scale is None or scale.dtype != "float32" or (zero is not None and zero.dtype != stored.dtype):
        raise WeightsError(f"{graph.where}: {name} is {stored.dtype} and has no float32 {base}_scale; {GET_AGAIN}")
    scales = np.frombuffer(scale.data, "<f4")
    zeros = np.zeros(1, np.float32) if zero is None else np.frombuffer(zero.data, zero.dtype)
    if not np.isfinite(scales).all():
        raise WeightsError(f"{graph.where}: damaged: {base}_scale is not finite; {GET_AGAIN}")
    return Scaled(stored.dtype, stored.shape, stored.data, scales, zeros)


def _turned(stored: Stored) -> Stored:
    shape = stored.shape[::-1]
    if isinstance(stored, Scaled):
        return replace(stored, shape=shape, turned=True)
    return Turned(stored.dtype, shape, stored.data)


def _read_graph(data: memoryview, graph: Graph, depth: int) -> None:
    if depth > _DEEPEST:
        raise WeightsError(f"{graph.where}: damaged: graphs inside of graphs, more than {_DEEPEST} deep; {GET_AGAIN}")
    for number, value in fields(data, graph.where):
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            _read_node(value, graph, depth)
        elif number == 5:
            _read_tensor(value, graph)
        elif number == 11 and depth == 0:
            name, shape = _read_input(value, graph.where)
            graph.inputs[name] = shape


def _read_node(data: memoryview, graph: Graph, depth: int) -> None:
    inputs: list[str] = []
    texts, attributes = {3: "", 4: ""}, []
    for number, value in fields(data, graph.where):
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            inputs.append(text(value, graph.where))
        elif number in texts:
            texts[number] = text(value, graph.where)
        elif number == 5:
            attributes.append(value)
    name, op = texts[3], texts[4]
    graph.nodes.append(Node(op, name, tuple(inputs)))
    if op == "If":
        for attribute in attributes:
            for inner in messages(attribute, (6,), graph.where):
                _read_graph(inner, graph, depth + 1)


def _read_tensor(data: memoryview, graph: Graph) -> None:
    """Adds an initialiser; those of types that no weight has are left out."""
    shape: list[int] = []
    code, name, raw, elsewhere = 0, "", memoryview(b""), False
    for number, value in fields(data, graph.where):
        if number == 1:
            shape += [value] if isinstance(value, int) else varints(value, graph.where)
        elif number == 2 and isinstance(value, int):
            code = value
        elif number == 14 and value == 1:
            elsewhere = True
        elif isinstance(value, memoryview):
            if number == 8:
                name = text(value, graph.where)
            elif number in (4, 9):  # float32 numbers, or bytes of any type
                raw = value
            elif number == 5 and code in (2, 3):  # small numbers, such as zero points
                small = [number & 0xFF for number in varints(value, graph.where)]
                raw = memoryview(bytes(small))
    if code not in _DTYPES:
        return
    dtype = _DTYPES[code]
    if elsewhere:
        raise WeightsError(f"{graph.where}: {name} is in another file (external data), which is not read")
    if len(shape) > MOST_AXES or math.prod(shape) * ITEM_SIZE[dtype] != len(raw):
        raise WeightsError(
            f"{graph.where}: damaged: {name} of shape {shape[:MOST_AXES]} as {dtype} has {len(raw)} bytes; {GET_AGAIN}"
        )
    if name in graph.tensors:
        raise WeightsError(f"{graph.where}: damaged: {name} appears twice; {GET_AGAIN}")
    graph.tensors[name] = Stored(dtype, tuple(shape), raw)


def _read_input(data: memoryview, where: str) -> tuple[str, tuple[int, ...]]:
    """The name and the shape of a graph's input: name, type { tensor { shape { dimensions } } }."""
    name, shape = "", []
    for number, value in fields(data, where):
        if number == 1 and isinstance(value, memoryview):
            name = text(value, where)
    for dimension in messages(data, (2, 1, 2, 1), where):
        sizes = [size for number, size in fields(dimension, where) if number == 1 and isinstance(size, int)]
        shape.append(sizes[0] if sizes else -1)
    return name, tuple(shape)
