"""Moonshine's checkpoints: a Hugging Face directory, or the ONNX files that its JavaScript package has.

The names are those of `MoonshineForConditionalGeneration`; ONNX files of the first release call some modules otherwise.
Torch is imported late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.moonshine_tokens import MoonshineTokenizer
from sharpen.models.weights import huggingface, onnx
from sharpen.models.weights.checkpoint import GET_AGAIN, quantised_note
from sharpen.models.weights.formats import Opened, Source
from sharpen.models.weights.quantised import Quantised
from sharpen.models.weights.stored import Stored, neighbour, read_json

if TYPE_CHECKING:
    from sharpen.models.weights.moonshine_tensors import MoonshineWeights

_SIZES = {
    "vocab_size": "vocab_size",
    "state": "hidden_size",
    "ffn": "intermediate_size",
    "audio_layers": "encoder_num_hidden_layers",
    "text_layers": "decoder_num_hidden_layers",
    "audio_heads": "encoder_num_attention_heads",
    "text_heads": "decoder_num_attention_heads",
    "text_ctx": "max_position_embeddings",
}
_FIXED = {
    "attention_bias": False,
    "encoder_hidden_act": "gelu",
    "decoder_hidden_act": "silu",
    "tie_word_embeddings": True,
}
_OLD_NAMES = {".dense.": ".o_proj.", ".mlp.up_proj.": ".mlp.fc1.", ".mlp.down_proj.": ".mlp.fc2."}
_TEXT_CTX = 512  # positions of the released decoders, which their ONNX files do not mention


@dataclass(frozen=True)
class MoonshineDimensions:
    vocab_size: int
    state: int  # features d of both encoder and decoder
    ffn: int
    audio_layers: int
    text_layers: int
    audio_heads: int
    text_heads: int
    text_ctx: int
    rotated: int  # features of a head that rotate with the position; an even number
    theta: float = 10000.0  # of the rotation

    def check(self, where: str) -> None:
        """Refuse sizes that no Moonshine has, before anything is allocated."""
        for name in _SIZES:
            value = getattr(self, name)
            if not 0 < value <= (256 if name.endswith("layers") else 2**20):
                raise WeightsError(f"{where}: {name} = {value} is not a size of a Moonshine model; {GET_AGAIN}")
        if self.state % self.audio_heads or self.state % self.text_heads or self.audio_heads != self.text_heads:
            raise WeightsError(
                f"{where}: {self.state} features in {self.audio_heads} and {self.text_heads} heads; expected a "
                "number of heads that divides them, the same in the encoder and the decoder"
            )
        if not 0 < self.rotated <= self.state // self.text_heads or self.rotated % 2:
            raise WeightsError(f"{where}: {self.rotated} features rotate in heads of {self.state // self.text_heads}")

    @property
    def parameters(self) -> int:
        """How many numbers the model has; the output projection is the token embedding and counts once."""
        d, ffn = self.state, self.ffn
        stem = 127 * d + 2 * d + (7 * d * 2 * d + 2 * d) + (3 * 2 * d * d + d)
        audio_layer = 4 * d * d + 2 * d * ffn + ffn + d + 2 * d
        text_layer = 8 * d * d + 2 * d * ffn + 2 * ffn + ffn * d + d + 3 * d
        return stem + self.audio_layers * audio_layer + self.text_layers * text_layer + 2 * d + self.vocab_size * d


@dataclass(frozen=True, eq=False)
class MoonshineCheckpoint:
    name: str  # as asked for, "moonshine-tiny"
    source: str  # where it was found, for people
    format: str  # "safetensors" | "onnx"
    verified: bool  # its checksum is a known one
    dimensions: MoonshineDimensions
    weights: MoonshineWeights
    tokenizer: MoonshineTokenizer
    bits: int | None = None  # of a number in its matrices, where they are quantised
    sampling_rate: int = 16000  # Hz

    @property
    def note(self) -> str:
        return quantised_note(self.bits)


def is_moonshine(source: Source) -> bool:
    """By its configuration or, for ONNX files without one, by what the encoder takes."""
    if source.format not in ("safetensors", "onnx"):
        return False
    config = neighbour(source.folder, "config.json")
    if config is not None:
        return read_json(config).get("model_type") == "moonshine"
    return source.format == "onnx" and "input_values" in onnx.open_graphs(source.weights)[0].inputs


def dimensions(source: Source) -> MoonshineDimensions:
    """The sizes of a checkpoint; no number of it is converted."""
    path = neighbour(source.folder, "config.json")
    if path is not None:
        return _configured(read_json(path), path)
    return _measured(onnx.open_graphs(source.weights), source.label)


def load(name: str, label: str, source: Source, opened: Opened, verified: bool) -> MoonshineCheckpoint:
    if opened.content is None:
        tensors = huggingface.tensors_of(source.folder)
        dims = dimensions(source)
    else:
        graphs = onnx.graphs(opened.content, source.weights)
        tensors = _onnx_tensors(graphs)
        config = neighbour(source.folder, "config.json")
        dims = _configured(read_json(config), config) if config else _measured(graphs, source.label)
    tensors.pop("proj_out.weight", None)  # the token embedding once more
    path = neighbour(source.folder, "tokenizer.json")
    if path is None:
        raise WeightsError(f"{source.folder}: no tokenizer.json beside the weights; {GET_AGAIN}")
    from sharpen.models.weights.moonshine_tensors import assemble  # here, because it imports torch

    return MoonshineCheckpoint(
        name=name,
        source=label,
        format=source.format,
        verified=verified,
        dimensions=dims,
        weights=assemble(dims, tensors, source.label),
        tokenizer=MoonshineTokenizer.from_json(path, dims.vocab_size),
        bits=min((t.bits for t in tensors.values() if isinstance(t, Quantised)), default=None),
    )


def _configured(config: Mapping[str, Any], path: Path) -> MoonshineDimensions:
    sizes = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
    absent = [_SIZES[ours] for ours, value in sizes.items() if not isinstance(value, int)]
    if absent:
        raise WeightsError(f"{path}: no number for {', '.join(absent)}; {GET_AGAIN}")
    for side, heads in (("encoder", sizes["audio_heads"]), ("decoder", sizes["text_heads"])):
        if config.get(f"{side}_num_key_value_heads") not in (None, heads):
            raise WeightsError(f"{path}: the {side}'s heads share keys and values, which is not supported")
    for key, expected in _FIXED.items():
        if config.get(key, expected) != expected:
            raise WeightsError(f"{path}: {key} is {config[key]!r}, and only {expected!r} is supported")
    # transformers 5 keeps the rotation in rope_parameters, earlier ones beside the other settings.
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotation.get("rope_type", rotation.get("type", "default"))
    if kind != "default":
        raise WeightsError(f"{path}: positions of type {kind!r}, and only 'default' is supported")
    part = rotation.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.9))
    theta = rotation.get("rope_theta", config.get("rope_theta", 10000.0))
    if not isinstance(part, int | float) or not isinstance(theta, int | float):
        raise WeightsError(
            f"{path}: partial_rotary_factor and rope_theta should be numbers, not {part!r} and {theta!r}"
        )
    return _checked(sizes, float(part), float(theta), str(path))


def _measured(graphs: list[onnx.Graph], where: str) -> MoonshineDimensions:
    """From the shapes of the tensors; the heads from the shape of the decoder's cache."""
    tensors = _onnx_tensors(graphs)
    heads = [shape[1] for name, shape in graphs[1].inputs.items() if name.startswith("past_") and len(shape) == 4]
    first = [tensors.get(n) for n in ("model.decoder.embed_tokens.weight", "model.encoder.layers.0.mlp.fc1.weight")]
    if not heads or any(tensor is None or len(tensor.shape) != 2 for tensor in first):
        raise WeightsError(
            f"{where}: not a Moonshine model: its embedding, first layer or cache is missing; {GET_AGAIN}"
        )
    (vocab_size, state), (ffn, _) = (tensor.shape for tensor in first if tensor is not None)
    layers = {
        side: 1 + max(int(n.split(".")[3]) for n in tensors if n.startswith(f"model.{side}.layers."))
        for side in ("encoder", "decoder")
        if any(n.startswith(f"model.{side}.layers.") for n in tensors)
    }
    sizes = {
        "vocab_size": vocab_size,
        "state": state,
        "ffn": ffn,
        "text_ctx": _TEXT_CTX,
        "audio_layers": layers.get("encoder", 0),
        "text_layers": layers.get("decoder", 0),
        "audio_heads": heads[0],
        "text_heads": heads[0],
    }
    return _checked(sizes, 0.9, 10000.0, where)


def _checked(sizes: Mapping[str, Any], part: float, theta: float, where: str) -> MoonshineDimensions:
    head = sizes["state"] // max(1, sizes["text_heads"])
    dims = MoonshineDimensions(**sizes, rotated=int(head * part), theta=theta)
    dims.check(where)
    return dims


def _onnx_tensors(graphs: list[onnx.Graph]) -> dict[str, Stored]:
    """The tensors of both files under Hugging Face names."""
    encoder, decoder = graphs
    found = onnx.weights(encoder, "model.encoder.") | onnx.weights(decoder, "model.decoder.")
    for node in encoder.nodes:  # a norm is taken apart into a product and a sum
        kind = {"/groupnorm/Mul": "weight", "/groupnorm/Add": "bias"}.get(node.name)
        if kind and len(node.inputs) == 2 and node.inputs[1] in encoder.tensors:
            stored = encoder.tensors[node.inputs[1]]
            found[f"model.encoder.groupnorm.{kind}"] = Stored(stored.dtype, stored.shape[:1], stored.data)
    for old, new in _OLD_NAMES.items():
        found = {name.replace(old, new): stored for name, stored in found.items()}
    return found
