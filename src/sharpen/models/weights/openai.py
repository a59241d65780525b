"""OpenAI's own files: `.pt`, a pickle of dimensions and tensors in a zip; and their tensor names, which ggml shares."""

import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions
from sharpen.models.weights.stored import Parsed, Stored

MAGIC = b"PK\x03\x04"
_SIZES = {
    "vocab_size": "n_vocab",
    "n_mels": "n_mels",
    "audio_ctx": "n_audio_ctx",
    "text_ctx": "n_text_ctx",
    "state": "n_audio_state",
    "audio_heads": "n_audio_head",
    "audio_layers": "n_audio_layer",
    "text_heads": "n_text_head",
    "text_layers": "n_text_layer",
}
_ENDINGS = [  # of a name inside a block, the longer ones first
    (r"cross_attn_ln\.", "encoder_attn_layer_norm."),
    (r"cross_attn\.", "encoder_attn."),
    (r"attn_ln\.", "self_attn_layer_norm."),
    (r"attn\.", "self_attn."),
    (r"mlp_ln\.", "final_layer_norm."),
    (r"mlp\.0\.", "fc1."),
    (r"mlp\.2\.", "fc2."),
]
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
_FIXED = {
    "encoder.positional_embedding": "model.encoder.embed_positions.weight",
    "encoder.ln_post.weight": "model.encoder.layer_norm.weight",
    "encoder.ln_post.bias": "model.encoder.layer_norm.bias",
    "decoder.positional_embedding": "model.decoder.embed_positions.weight",
    "decoder.token_embedding.weight": "model.decoder.embed_tokens.weight",
    "decoder.ln.weight": "model.decoder.layer_norm.weight",
    "decoder.ln.bias": "model.decoder.layer_norm.bias",
}


def hugging_face_name(name: str) -> str:
    """OpenAI's name of a tensor -> its name in `WhisperForConditionalGeneration`."""
    if name in _FIXED:
        return _FIXED[name]
    match = re.fullmatch(r"(encoder|decoder)\.blocks\.(\d+)\.(.+)", name)
    if match is None:
        return f"model.{name}"
    rest = match[3]
    for pattern, replacement in _ENDINGS:
        rest, replaced = re.subn("^" + pattern, replacement, rest)
        if replaced:
            break
    rest = re.sub(r"\.(query|key|value|out)\.", lambda match: f".{_PROJECTIONS[match[1]]}.", rest)
    return f"model.{match[1]}.layers.{match[2]}.{rest}"


def dimensions_of(sizes: Mapping[str, object], where: str) -> Dimensions:
    """Dimensions from OpenAI's names for them. The text side must be as wide as the audio side."""
    values = {ours: sizes.get(theirs) for ours, theirs in _SIZES.items()}
    state = values["state"]
    if not all(isinstance(value, int) for value in values.values()) or sizes.get("n_text_state") != state:
        raise WeightsError(f"{where}: its dimensions are {dict(sizes)}, not those of a Whisper model; {GET_AGAIN}")
    dims = Dimensions(audio_ffn=4 * state, text_ffn=4 * state, **values)  # type: ignore[operator,arg-type]
    dims.check(where)
    return dims


def dimensions(path: Path) -> Dimensions:
    """The dimensions inside a `.pt` file, read from its pickle without running it."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            script = archive.read(name)
        sizes: dict[str, object] = {}
        key = ""
        for opcode, argument, _ in pickletools.genops(script):
            if isinstance(argument, str):
                key = argument
            elif key.startswith("n_") and opcode.name.startswith("BININT"):
                sizes[key] = argument
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise WeightsError(f"{path}: not a whole PyTorch file ({error}); {GET_AGAIN}") from error
    return dimensions_of(sizes, str(path))


def read(path: Path) -> Parsed:
    """A `.pt` file, read with torch's restricted unpickler: no code in it can run."""
    import torch

    _check_end(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises half a dozen kinds for a damaged file
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise WeightsError(
            f"{path}: refused: torch cannot read it as plain weights ({lines[0][:160]}). It is damaged, or a pickle "
            f"that holds more than tensors, and code inside a checkpoint is never run; {GET_AGAIN}"
        ) from error
    if not isinstance(content, dict) or not {"dims", "model_state_dict"} <= content.keys():
        contents = sorted(map(str, content))[:5] if isinstance(content, dict) else type(content).__name__
        raise WeightsError(
            f"{path}: a PyTorch file, but not OpenAI's Whisper: it holds {contents}, expected dims and "
            "model_state_dict; for a Hugging Face model give the directory with its config.json and model.safetensors"
        )
    dims, state = content["dims"], content["model_state_dict"]
    if not isinstance(dims, dict) or not isinstance(state, dict):
        raise WeightsError(f"{path}: dims and model_state_dict should be dictionaries; {GET_AGAIN}")
    tensors = {}
    for name, tensor in state.items():
        dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).removeprefix("torch.")
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.ndim == 0:
            raise WeightsError(f"{path}: {name} is {dtype}, expected a tensor of floating point numbers")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise WeightsError(f"{path}: {name} is {tensor.layout} on {tensor.device}, expected plain numbers")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise WeightsError(f"{path}: {name} claims {tuple(tensor.shape)} numbers and stores fewer; {GET_AGAIN}")
        tensors[hugging_face_name(str(name))] = Stored.of(tensor)
    return Parsed(dimensions_of(dims, str(path)), tensors)


def _check_end(path: Path) -> None:
    """The zip's directory must end the file: zip readers search for it and would accept what follows."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 22))
        end = file.read()
    if end[:4] != b"PK\x05\x06":
        raise WeightsError(f"{path}: truncated, or followed by bytes that do not belong to it; {GET_AGAIN}")
