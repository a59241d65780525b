"""Writes ONNX files as transformers.js has them: protobuf by hand, the layout from the ONNX message definitions."""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from models.weights.quantisers import asymmetric

TYPES = {
    np.dtype("float32"): 1,
    np.dtype("uint8"): 2,
    np.dtype("int8"): 3,
    np.dtype("int64"): 7,
    np.dtype("float16"): 10,
}


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def tensor(name: str, array: np.ndarray) -> bytes:
    """A scalar as an exporter stores it, in the field of its kind; anything else as raw bytes."""
    head = b"".join(field(1, size) for size in array.shape) + field(2, TYPES[array.dtype])
    if array.shape == () and array.dtype == np.float32:
        return head + field(4, struct.pack("<f", array)) + field(8, name)
    if array.shape == () and array.dtype in (np.uint8, np.int8):
        return head + field(5, varint(int(array) & (1 << 64) - 1)) + field(8, name)
    return head + field(8, name) + field(9, array.tobytes())


def node(op: str, name: str, inputs: Iterable[str], attributes: bytes = b"") -> bytes:
    return (
        b"".join(field(1, x) for x in inputs) + field(2, f"{name}_output") + field(3, name) + field(4, op) + attributes
    )


def graph(nodes: Iterable[bytes], tensors: Mapping[str, np.ndarray], inputs: Iterable[bytes] = ()) -> bytes:
    parts = [field(1, one) for one in nodes] + [field(5, tensor(name, array)) for name, array in tensors.items()]
    return b"".join([*parts, *(field(11, one) for one in inputs)])


def graph_input(name: str, shape: Iterable[int | str]) -> bytes:
    axes = b"".join(field(1, field(1, size) if isinstance(size, int) else field(2, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, axes)))


def model(inner: bytes) -> bytes:
    return field(1, 8) + field(2, "test") + field(7, inner)


def exported(state: Mapping[str, torch.Tensor], end: str, quantise: str) -> tuple[list[bytes], dict[str, np.ndarray]]:
    """The nodes and tensors of one side: matrices turned and without a name, all else under its own name.

    `quantise`: "", "tensor" for one scale a matrix, or "channel" for one for each output.
    """
    nodes: list[bytes] = []
    tensors: dict[str, np.ndarray] = {f"/Constant_output_0{end}": np.array([3], np.int64)}

    def put(name: str, array: np.ndarray, axis: int) -> str:
        if not quantise:
            tensors[f"{name}{end}"] = array
            return f"{name}{end}"
        q, scale, zero = asymmetric(array, axis if quantise == "channel" and "embed" not in name else None)
        tensors[f"{name}{end}_scale"], tensors[f"{name}{end}_zero_point"] = scale, zero
        tensors[f"{name}{end}_quantized"] = q
        return f"{name}{end}_quantized"

    for number, (name, value) in enumerate(state.items()):
        array = value.numpy()
        module = name.removesuffix(".weight").replace(".", "/")
        if array.ndim == 2 and "embed" not in name:
            stored = put(f"onnx::MatMul_{number}", np.ascontiguousarray(array.T), 1)
            op, last = ("MatMulInteger", "MatMul_quant") if quantise else ("MatMul", "MatMul")
            nodes.append(node(op, f"/{module}/{last}", ["x", stored]))
        elif array.ndim > 1 and "positions" not in name:
            put(name, array, 0)
        else:
            tensors[f"{name}{end}"] = array
    return nodes, tensors


def write_onnx(whisper, folder: Path, quantise: str = "", suffix: str = "") -> Path:
    """An encoder, a merged decoder with its two branches, and the configuration, of a transformers Whisper."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value for name, value in whisper.state_dict().items() if name != "proj_out.weight"}
    encoder = {n.removeprefix("model.encoder."): v for n, v in state.items() if n.startswith("model.encoder.")}
    nodes, tensors = exported(encoder, "", quantise)
    (folder / f"encoder_model{suffix}.onnx").write_bytes(
        model(graph(nodes, tensors, [graph_input("input_features", ["batch", 80, 3000])]))
    )
    decoder = {name: value for name, value in state.items() if name.startswith("model.decoder.")}
    nodes, tensors = exported(decoder, "_merged_0", quantise)
    branches = b"".join(
        field(5, field(1, name) + field(6, graph(nodes, {}))) for name in ("then_branch", "else_branch")
    )
    heads, d = whisper.config.decoder_attention_heads, whisper.config.d_model
    shape = ["batch", heads, "past", d // heads]
    (folder / f"decoder_model_merged{suffix}.onnx").write_bytes(
        model(
            graph(
                [node("If", "optimum::if", ["use_cache_branch"], branches)],
                tensors,
                [graph_input("past_key_values.0.decoder.key", shape)],
            )
        )
    )
    (folder / "config.json").write_text(json.dumps(whisper.config.to_dict() | {"model_type": "whisper"}))
    return folder
