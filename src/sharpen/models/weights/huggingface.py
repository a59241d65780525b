"""A Hugging Face directory: config.json, model.safetensors (or its shards), and the decoding settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharpen.errors import WeightsError
from sharpen.models.weights.checkpoint import GET_AGAIN, Dimensions
from sharpen.models.weights.heads import Heads, stored_heads
from sharpen.models.weights.stored import Parsed, Stored, mel_settings, neighbour, read_json, token_list

INDEX = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16")  # as safetensors names them
_SIZES = {
    "vocab_size": "vocab_size",
    "n_mels": "num_mel_bins",
    "audio_ctx": "max_source_positions",
    "text_ctx": "max_target_positions",
    "state": "d_model",
    "audio_heads": "encoder_attention_heads",
    "audio_layers": "encoder_layers",
    "audio_ffn": "encoder_ffn_dim",
    "text_heads": "decoder_attention_heads",
    "text_layers": "decoder_layers",
    "text_ffn": "decoder_ffn_dim",
}


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a directory, all shards; empty where there are none."""
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        return (single,)
    if not index.is_file():
        return ()
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise WeightsError(f"{index}: it should map every tensor to a file in weight_map; {GET_AGAIN}")
    files = tuple(folder / name for name in sorted(set(names.values())))
    if any(path.parent != folder for path in files):
        raise WeightsError(f"{index}: it names files outside its directory; {GET_AGAIN}")
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise WeightsError(f"{folder}: a part of the weights is missing: {', '.join(missing)}; {GET_AGAIN}")
    return files


def dimensions(folder: Path) -> Dimensions:
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{folder}: weights but no config.json; {GET_AGAIN}")
    config = read_json(path)
    if config.get("model_type") != "whisper":
        raise WeightsError(
            f"{path}: model_type is {config.get('model_type')!r}, expected 'whisper': this is another kind of model"
        )
    sizes = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
    absent = [_SIZES[ours] for ours, value in sizes.items() if not isinstance(value, int)]
    if absent:
        raise WeightsError(f"{path}: no number for {', '.join(absent)}; {GET_AGAIN}")
    dims = Dimensions(**sizes)  # type: ignore[arg-type]
    dims.check(str(path))
    for key, expected in (("activation_function", "gelu"), ("scale_embedding", False), ("tie_word_embeddings", True)):
        if config.get(key, expected) != expected:
            raise WeightsError(f"{path}: {key} is {config[key]!r}, and only {expected!r} is supported, as in Whisper")
    return dims


def read(folder: Path) -> Parsed:
    dimensions(folder)  # of another kind of model nothing is read
    tensors = tensors_of(folder)
    _drop_tied_projection(tensors, folder)
    return parsed(folder, tensors)


def tensors_of(folder: Path) -> dict[str, Stored]:
    """All tensors of a directory, whatever the model."""
    tensors: dict[str, Stored] = {}
    for path in weight_files(folder):
        for name, stored in stored_tensors(path).items():
            if name in tensors:
                raise WeightsError(f"{path}: {name} is in another file as well; {GET_AGAIN}")
            tensors[name] = stored
    return tensors


def parsed(folder: Path, tensors: Mapping[str, Stored]) -> Parsed:
    """Tensors with the configuration and the decoding settings of a directory."""
    dims = dimensions(folder)
    suppress, suppress_first = _suppression(folder, dims.vocab_size)
    return Parsed(
        dims,
        tensors,
        tokenizer_json=neighbour(folder, "tokenizer.json"),
        mel=mel_settings(folder, dims.n_mels),
        suppress=suppress,
        suppress_first=suppress_first,
        alignment_heads=_alignment_heads(folder, dims),
    )


def stored_tensors(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file, which the library maps and checks."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                dtype = file.get_slice(name).get_dtype()
                if dtype not in _DTYPES:
                    raise WeightsError(
                        f"{path}: {name} is stored as {dtype}, expected one of {', '.join(_DTYPES)}: quantised weights "
                        "cannot be adapted; use the float16 or float32 checkpoint"
                    )
            return {name: Stored.of(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: not a whole safetensors file ({error}); {GET_AGAIN}") from error


def _drop_tied_projection(tensors: dict[str, Stored], folder: Path) -> None:
    """Some files hold the output projection a second time; it is the token embedding."""
    projection, embedding = tensors.pop("proj_out.weight", None), tensors.get("model.decoder.embed_tokens.weight")
    if projection is not None and embedding is not None and projection.data != embedding.data:
        raise WeightsError(f"{folder}: the output projection is not the token embedding, as it is in Whisper")


def _suppression(folder: Path, vocab_size: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The lists of generation_config.json; older checkpoints keep them in config.json."""
    lists: dict[str, tuple[int, ...] | None] = {}
    for key in ("suppress_tokens", "begin_suppress_tokens"):
        for file in ("generation_config.json", "config.json"):
            path = neighbour(folder, file)
            tree: Mapping[str, Any] = read_json(path) if path else {}
            if path and tree.get(key) is not None:
                lists[key] = token_list(tree, key, vocab_size, path)
                break
    return lists.get("suppress_tokens"), lists.get("begin_suppress_tokens")


def _alignment_heads(folder: Path, dims: Dimensions) -> Heads | None:
    path = neighbour(folder, "generation_config.json")
    return stored_heads(read_json(path).get("alignment_heads"), dims) if path else None
