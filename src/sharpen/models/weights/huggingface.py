"""A Hugging Face directory: config.json, model.safetensors (or its shards), and the files about decoding."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharpen.errors import WeightsError
from sharpen.models.weights.stored import (
    GET_AGAIN,
    Dimensions,
    Parsed,
    Reader,
    Stored,
    mel_settings,
    neighbour,
    open_bytes,
    read_json,
    token_list,
)

INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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
    """The safetensors of a directory, every shard of them; empty where there are none."""
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
        raise WeightsError(f"{folder}: there are safetensors but no config.json beside them; {GET_AGAIN}")
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
    dims = dimensions(folder)
    tensors: dict[str, Stored] = {}
    for path in weight_files(folder):
        for name, stored in parse_safetensors(open_bytes((path,)), str(path)).items():
            if name in tensors:
                raise WeightsError(f"{path}: {name} is in another file as well; {GET_AGAIN}")
            tensors[name] = stored
    _drop_tied_projection(tensors, folder)
    suppress, suppress_first = _suppression(folder, dims.vocab_size)
    return Parsed(
        dims,
        tensors,
        tokenizer_json=neighbour(folder, "tokenizer.json"),
        mel=mel_settings(folder, dims.n_mels),
        suppress=suppress,
        suppress_first=suppress_first,
    )


def parse_safetensors(buffer: memoryview, where: str) -> dict[str, Stored]:
    """u64 length, a JSON header of that length, then the tensors without gaps between them."""
    reader = Reader(buffer, where)
    (length,) = reader.numbers("Q", "the length of the header")
    if length > 2**27:
        raise WeightsError(f"{where}: not a safetensors file: a header of {length} bytes; {GET_AGAIN}")
    try:
        header = json.loads(bytes(reader.take(length, "the header")))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{where}: not a safetensors file: its header is not JSON ({error}); {GET_AGAIN}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{where}: not a safetensors file: its header is no JSON object; {GET_AGAIN}")
    header.pop("__metadata__", None)
    entries = sorted(
        ((*_place(name, entry, where), name, entry) for name, entry in header.items()), key=lambda item: item[:3]
    )
    start = reader.offset
    tensors: dict[str, Stored] = {}
    for begin, end, name, entry in entries:
        if begin != reader.offset - start:
            raise WeightsError(f"{where}: damaged: {name} does not begin where the tensor before it ends; {GET_AGAIN}")
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise WeightsError(
                f"{where}: {name} is stored as {entry['dtype']}, expected one of {', '.join(_DTYPES)}: quantised "
                "weights cannot be adapted; take the float16 or float32 checkpoint"
            )
        stored = reader.tensor(dtype, entry["shape"], name)
        if len(stored.data) != end - begin:
            raise WeightsError(
                f"{where}: damaged: {name} takes {end - begin} bytes, not {len(stored.data)}; {GET_AGAIN}"
            )
        tensors[name] = stored
    if reader.remaining:
        raise WeightsError(f"{where}: {reader.remaining} bytes too many after the last tensor; {GET_AGAIN}")
    return tensors


def _place(name: str, entry: Any, where: str) -> tuple[int, int]:
    try:
        begin, end = entry["data_offsets"]
        numbers = [begin, end, *entry["shape"]]
        sound = all(type(number) is int and 0 <= number < 2**48 for number in numbers) and type(entry["dtype"]) is str
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise WeightsError(f"{where}: damaged: the entry of {name} in the header is {str(entry)[:80]}; {GET_AGAIN}")
    return begin, end


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
