"""Find a language model by path, name or hub id, and load it: configuration, tensors and tokeniser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharpen.errors import WeightsError
from sharpen.models.weights import catalog, gguf, gguf_families, gguf_tokens, hub, huggingface, llama2c
from sharpen.models.weights.checkpoint import GET_AGAIN
from sharpen.models.weights.formats import Source, open_weights
from sharpen.models.weights.stored import neighbour, open_content, read_json

if TYPE_CHECKING:
    from sharpen.models.weights.tensors import Weight

EXPECTED = (
    "expected a Hugging Face directory (config.json, model.safetensors, tokenizer.json), a GGUF or a llama2.c file"
)

SPEECH = ("whisper", "moonshine", "wav2vec2", "hubert")  # in a config.json


@dataclass(frozen=True, eq=False)
class TextCheckpoint:
    """A loaded language model, as its files have it."""

    name: str  # as asked for
    source: str  # where it was found, for people
    format: str  # "safetensors" | "gguf" | "llama2.c"
    verified: bool  # its checksum is a known one
    config: Mapping[str, Any]  # as a config.json of Hugging Face
    tensors: Mapping[str, Weight]  # under Hugging Face's names
    tokenizer: Any  # a tokenizers.Tokenizer
    ends: tuple[int, ...]  # tokens that end an output
    chat_template: str = ""  # in Jinja; empty where the model has none
    generation: Mapping[str, Any] | None = None  # generation_config.json, where there is one
    words: Mapping[str, str] | None = None  # what a template may name: bos_token, eos_token …
    quantised: str = ""  # how its weights were quantised before they were read


def find_text(name: str | Path, *, cache_dir: str | Path | None = None) -> tuple[Source, str, str | None]:
    """Where a language model is, for programs and for people, and its checksum where it is known.

    `name` is a path, a name of the catalogue such as "stories15M", or a Hugging Face id. Only a hub id that is not in
    the hub's own cache uses the network.
    """
    text, path = str(name), Path(name).expanduser()
    if text in catalog.TEXT and not isinstance(name, Path):
        for package in catalog.packages_of(text):
            source = catalog.installed(package)
            if source:
                return source, " and ".join(package.packages), package.sha256
        fetched = catalog.fetched(text, cache_dir)
        if fetched is None:
            raise WeightsError(f"{text} is not on this machine; run `sharpen models fetch {text}`")
        return fetched[0], str(fetched[0].folder), fetched[1]
    if path.exists():
        return identify(path), str(path), None
    if catalog.standard_name(text):
        raise _speech(text)
    if isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise WeightsError(
            f"{text}: no such file or directory, and not one of {', '.join(catalog.TEXT)}; a Hugging Face id has the "
            "form owner/name"
        )
    folder = hub.find_local(text)
    where = "Hugging Face cache"
    if folder is None or not huggingface.weight_files(folder):
        folder, where = hub.download(text), "Hugging Face hub"
    return identify(folder), f"{text} ({where})", None


def identify(path: Path) -> Source:
    """The language model at a path, recognised by its content."""
    if path.is_dir():
        files = huggingface.weight_files(path)
        if files:
            return Source("safetensors", files, path)
        found = sorted([*path.glob("*.gguf"), *path.glob("*.data"), *path.glob("*.bin")])
        found = [file for file in found if file.name != "tokenizer.bin"]
        if len(found) != 1:
            names = ", ".join(file.name for file in found[:5]) or "no weights"
            raise WeightsError(f"{path}: this directory holds {names}; {EXPECTED}")
        return identify(found[0])
    with path.open("rb") as file:
        start = file.read(4)
    if start == gguf.MAGIC:
        return Source("gguf", (path,), path.parent)
    if path.suffix == ".safetensors":
        return Source("safetensors", huggingface.weight_files(path.parent), path.parent)
    if start and llama2c.plausible(open_content([path])):
        return Source("llama2.c", (path,), path.parent)
    raise WeightsError(f"{path}: not a language model: it begins with {start!r}; {EXPECTED}")


def load_text_checkpoint(name: str | Path, *, cache_dir: str | Path | None = None) -> TextCheckpoint:
    """Finds a language model as `find_text` does, and loads it; WeightsError where a file is damaged."""
    source, label, sha256 = find_text(name, cache_dir=cache_dir)
    opened = open_weights(source, sha256)
    verified = opened.sha256 in catalog.KNOWN_SHA256
    if source.format == "safetensors":
        return _hugging_face(str(name), label, source.folder)
    assert opened.content is not None
    if source.format == "gguf":
        file = gguf.GGUF(opened.content, source.label)
        meta = file.metadata
        return TextCheckpoint(
            *(str(name), label, source.format, verified, gguf_families.config(file), gguf_families.tensors(file)),
            gguf_tokens.tokenizer(meta, source.label),
            ends=gguf_tokens.ends(meta, source.label),
            chat_template=meta.get("tokenizer.chat_template", ""),
            words=gguf_tokens.words(meta),
            quantised=file.quantised,
        )
    config, tensors, reader = llama2c.read(opened.content, source.label)
    tok = llama2c.tokenizer(reader, config["vocab_size"], source.folder / "tokenizer.bin")
    # Its training texts are separated by BOS: that is what a story ends with.
    ends = (llama2c.BOS, llama2c.EOS)
    return TextCheckpoint(str(name), label, source.format, verified, config, tensors, tok, ends)


def fingerprint_text(name: str) -> str:
    """Twelve digits of the checksum of the weights that `name` stands for."""
    return open_content(find_text(name)[0].weights).sha256()[:12]


def _hugging_face(name: str, label: str, folder: Path) -> TextCheckpoint:
    from tokenizers import Tokenizer

    path, tokens = folder / "config.json", folder / "tokenizer.json"
    if path.is_file() and read_json(path).get("model_type") in SPEECH:
        raise _speech(name)
    for needed in (path, tokens):
        if not needed.is_file():
            raise WeightsError(f"{folder}: there is no {needed.name}; {EXPECTED}")
    config = read_json(path)
    try:
        tok = Tokenizer.from_file(str(tokens))
    except Exception as error:  # the library raises nothing narrower
        raise WeightsError(f"{tokens}: not a tokeniser ({error}); {GET_AGAIN}") from error
    tok.no_truncation()  # some files ask for it, and a prompt would be cut without a word
    tok.no_padding()
    settings = {}
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        own = neighbour(folder, file)
        settings[file] = read_json(own) if own else {}
    words = _words(settings["tokenizer_config.json"])
    ends = settings["generation_config.json"].get("eos_token_id", config.get("eos_token_id"))
    if ends is None and "eos_token" in words:
        ends = tok.token_to_id(words["eos_token"])
    ends = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
    if not ends:
        raise WeightsError(f"{folder}: neither generation_config.json nor config.json names an eos_token_id")
    files = [huggingface.stored_tensors(file) for file in huggingface.weight_files(folder)]
    tensors = {key: stored.tensor() for stored_in_file in files for key, stored in stored_in_file.items()}
    jinja = neighbour(folder, "chat_template.jinja")
    template = jinja.read_text(encoding="utf-8") if jinja else settings["tokenizer_config.json"].get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), "")
    return TextCheckpoint(
        *(name, label, "safetensors", False, config, tensors, tok, ends),
        chat_template=template or "",
        generation=settings["generation_config.json"],
        words=words,
    )


def _speech(name: str) -> WeightsError:
    return WeightsError(
        f"{name} is a speech model; use `sharpen transcribe --model {name}`, or a language model such as "
        f"{' or '.join(catalog.TEXT)}"
    )


def _words(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a template may name: a text, or an object with its content."""
    words = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            words[key] = value
    return words
