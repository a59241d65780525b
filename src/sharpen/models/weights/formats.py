"""Which of the formats a path holds, and its content. A checkpoint loads whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sharpen.errors import WeightsError
from sharpen.models.weights import ctranslate2, ggml, huggingface, onnx, openai
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions
from sharpen.models.weights.stored import Content, Parsed, Reader, open_content

EXPECTED = (
    "expected a Hugging Face directory (config.json, model.safetensors), a CTranslate2 directory (model.bin), an "
    "OpenAI .pt file, a ggml .bin file, or ONNX files (encoder_model.onnx, decoder_model_merged.onnx, config.json)"
)


@dataclass(frozen=True)
class Source:
    format: str  # "safetensors" | "openai" | "ctranslate2" | "ggml" | "onnx"
    weights: tuple[Path, ...]  # one file; the shards of safetensors; the two of ONNX; or the parts of one file
    folder: Path  # where the format's other files are: configuration, tokeniser

    @property
    def label(self) -> str:
        return str(self.weights[0] if len(self.weights) == 1 else self.folder)


def identify(path: Path) -> Source:
    """The checkpoint at a path, recognised by its content and not by its name."""
    if path.is_dir():
        return _identify_directory(path)
    if not path.is_file():
        raise WeightsError(f"{path}: no such file or directory")
    with path.open("rb") as file:
        start = file.read(len(ctranslate2.MAGIC))
    if not start:
        raise WeightsError(f"{path}: the file is empty; {GET_AGAIN}")
    if start.startswith(ggml.MAGIC):
        return Source("ggml", (path,), path.parent)
    if start.startswith(openai.MAGIC):
        return Source("openai", (path,), path.parent)
    if path.suffix == ".onnx":
        return _identify_onnx(path)
    if path.suffix == ".safetensors":
        files = huggingface.weight_files(path.parent)
        if path not in files:
            known = ", ".join(file.name for file in files) or "model.safetensors"
            raise WeightsError(
                f"{path}: the weights of this directory are {known}; copy the file as model.safetensors, with its "
                "config.json, into another directory"
            )
        return Source("safetensors", files, path.parent)
    # Any CTranslate2 model begins with a small version number and the length of a short name, whatever the model.
    if int.from_bytes(start[:4], "little") < 16 and 0 < int.from_bytes(start[4:6], "little") < 64:
        return Source("ctranslate2", (path,), path.parent)
    if start.startswith((b"GGUF", b"ggjt")):
        raise WeightsError(f"{path}: a GGUF file; use whisper.cpp's ggml .bin file of this model instead")
    if start.startswith(b"\x80"):
        raise WeightsError(f"{path}: a bare pickle, which can run code when opened; {EXPECTED}")
    raise WeightsError(f"{path}: not a Whisper checkpoint: it begins with {start[:8]!r}; {EXPECTED}")


@dataclass(frozen=True)
class Opened:
    """The weights of a checkpoint, mapped and verified, not parsed yet."""

    content: Content | None  # None for safetensors, whose library opens the files itself
    sha256: str | None  # of the weights; None for safetensors, none of which are known


def open_weights(source: Source, sha256: str | None = None) -> Opened:
    """Maps the weights and computes their checksum; with `sha256`, weights of another checksum are refused."""
    if source.format == "safetensors":
        return Opened(None, None)
    content = open_content(source.weights)
    digest = content.sha256()
    if sha256 is not None and digest != sha256:
        raise WeightsError(
            f"{source.label}: wrong checksum: SHA-256 is {digest}, expected {sha256}; the file is damaged or was "
            f"changed; {GET_AGAIN}"
        )
    return Opened(content, digest)


def read(source: Source, opened: Opened) -> Parsed:
    """The checkpoint's tensors and settings."""
    if opened.content is None:
        return huggingface.read(source.folder)
    if source.format == "ctranslate2":
        return ctranslate2.read(opened.content, source.label, source.folder)
    if source.format == "ggml":
        return ggml.read(opened.content, source.label)
    if source.format == "onnx":
        return _read_onnx(source, opened.content)
    return openai.read(source.weights[0])


def dimensions(source: Source) -> Dimensions:
    """The sizes of a checkpoint from its header alone: no tensor is read, and torch is not imported."""
    if source.format in ("safetensors", "onnx"):
        return huggingface.dimensions(source.folder)
    if source.format == "openai":
        return openai.dimensions(source.weights[0])
    content = open_content(source.weights)
    if source.format == "ctranslate2":
        return ctranslate2.dimensions(ctranslate2.parse(content, source.label))
    return ggml.header(Reader(content, source.label))


def _identify_directory(folder: Path) -> Source:
    files = huggingface.weight_files(folder)
    if files:
        return Source("safetensors", files, folder)
    model = folder / "model.bin"
    pair = () if model.is_file() else onnx.find(folder)
    if pair:
        return Source("onnx", pair, folder)
    candidates: Sequence[Path] = [model] if model.is_file() else sorted([*folder.glob("*.bin"), *folder.glob("*.pt")])
    if [path.name for path in candidates] == ["pytorch_model.bin"]:
        raise WeightsError(
            f"{folder}: only pytorch_model.bin, a pickle; save the model again with save_pretrained, which writes "
            "model.safetensors, and give that directory"
        )
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates[:5])
        raise WeightsError(f"{folder}: several checkpoints ({names}); give the path of one of them")
    if not candidates:
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        raise WeightsError(f"{folder}: no weights in this directory, it holds {names}; {EXPECTED}")
    return identify(candidates[0])


def _identify_onnx(path: Path) -> Source:
    """One of the two files of a model stands for both; its configuration may be a directory higher."""
    folder = path.parent
    pair = onnx.find(folder)
    if path not in pair:
        raise WeightsError(
            f"{path}: the weights of this directory are {' and '.join(p.name for p in pair)}; give those"
        )
    higher = folder.name == "onnx" and not (folder / "config.json").is_file()
    return Source("onnx", pair, folder.parent if higher else folder)


def _read_onnx(source: Source, content: Content) -> Parsed:
    encoder, decoder = onnx.graphs(content, source.weights)
    tensors = onnx.weights(encoder, "model.encoder.") | onnx.weights(decoder, "model.decoder.")
    for head in ("model.decoder.proj_out.weight", "model.decoder.lm_head.weight"):
        tensors.pop(head, None)  # the token embedding once more
    return huggingface.parsed(source.folder, tensors)
