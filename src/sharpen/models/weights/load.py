"""Find a checkpoint by path, size name or hub id, and load it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sharpen.errors import WeightsError
from sharpen.models.tokenizer import V3, WhisperTokenizer
from sharpen.models.weights import catalog, formats, hub, moonshine
from sharpen.models.weights.checkpoint import Checkpoint, MelSettings
from sharpen.models.weights.ctc import CTCCheckpoint, is_ctc, load_ctc
from sharpen.models.weights.formats import Source
from sharpen.models.weights.heads import usual_heads
from sharpen.models.weights.moonshine import MoonshineCheckpoint
from sharpen.models.weights.quantised import Quantised
from sharpen.models.weights.stored import Parsed, open_content

V3_MELS = 128


@dataclass(frozen=True)
class _Located:
    source: Source
    label: str  # where it is, for people
    sha256: str | None = None  # what the checksum of the weights must be, where it is known


class Found:
    """A checkpoint on this machine. A thread computes its checksum while the caller imports torch."""

    def __init__(self, name: str, located: _Located) -> None:
        self.name, self._located = name, located
        thread = ThreadPoolExecutor(1)
        self._opened = thread.submit(formats.open_weights, located.source, located.sha256)
        thread.shutdown(wait=False)  # it ends when the weights are verified

    def load(self) -> Checkpoint | MoonshineCheckpoint | CTCCheckpoint:
        """The checkpoint; WeightsError where a file is damaged or of another kind."""
        opened, source = self._opened.result(), self._located.source
        if moonshine.is_moonshine(source):
            verified = opened.sha256 in catalog.KNOWN_SHA256
            return moonshine.load(self.name, self._located.label, source, opened, verified)
        if is_ctc(source):
            return load_ctc(self.name, self._located.label, source)
        parsed = formats.read(source, opened)
        tokenizer = _tokenizer(parsed, source.label)
        mel = parsed.mel or MelSettings(n_mels=parsed.dimensions.n_mels)
        positions = mel.seconds * mel.sampling_rate // mel.hop_length // 2  # a convolution halves the frames
        if parsed.dimensions.audio_ctx < positions:
            raise WeightsError(
                f"{source.label}: an encoder of {parsed.dimensions.audio_ctx} positions, and a window of {mel.seconds} "
                f"s has {positions}: only a Hugging Face directory can name shorter windows, in its "
                "preprocessor_config.json"
            )

        from sharpen.models.weights.assemble import assemble  # here, because it imports torch

        return Checkpoint(
            name=self.name,
            source=self._located.label,
            format=source.format,
            verified=opened.sha256 in catalog.KNOWN_SHA256,
            dimensions=parsed.dimensions,
            weights=assemble(parsed.dimensions, parsed.tensors, source.label),
            tokenizer=tokenizer,
            mel=mel,
            suppress=_suppress(parsed, tokenizer),
            suppress_first=tokenizer.suppressed_first() if parsed.suppress_first is None else parsed.suppress_first,
            alignment_heads=parsed.alignment_heads or usual_heads(parsed.dimensions, tokenizer.multilingual, self.name),
            bits=min((t.bits for t in parsed.tensors.values() if isinstance(t, Quantised)), default=None),
        )


def find_checkpoint(name: str | Path, *, cache_dir: str | Path | None = None, local_files_only: bool = False) -> Found:
    """Find a speech model without importing torch; downloads it if that is the only way.

    `name` is a path (directory or file), a size such as "base" or "large-v3-turbo", or a Hugging Face id. A path comes
    first, then an installed weights package, then the cache of `sharpen models fetch`, then the hub's own cache; only
    then the network, and never with `local_files_only` or HF_HUB_OFFLINE.
    """
    return Found(str(name), _locate(str(name), isinstance(name, Path), cache_dir, local_files_only))


def find_ahead(name: str) -> Found | str:
    """The checkpoint if it is on this machine; else the name, for `load_speech` to download or refuse."""
    try:
        return find_checkpoint(name, local_files_only=True)
    except WeightsError:
        return name


def load_checkpoint(
    name: str | Path, *, cache_dir: str | Path | None = None, local_files_only: bool = False
) -> Checkpoint:
    """Find a Whisper model as `find_checkpoint` does, and load it."""
    checkpoint = find_checkpoint(name, cache_dir=cache_dir, local_files_only=local_files_only).load()
    if not isinstance(checkpoint, Checkpoint):
        kind = "Moonshine" if isinstance(checkpoint, MoonshineCheckpoint) else "CTC"
        raise WeightsError(f"{name}: a {kind} model, expected Whisper here")
    return checkpoint


def locate(name: str) -> str:
    """Where `load_checkpoint` finds it, for people; downloads it if that is the only way."""
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
            f"{where}: {vocab_size} tokens are large-v3's vocabulary, but large-v3 has {V3_MELS} mel bands and this "
            f"model {n_mels}: it must have another vocabulary; put its tokenizer.json next to its weights"
        )
    return WhisperTokenizer.of_kind(vocab_size, where)


def _suppress(parsed: Parsed, tokenizer: WhisperTokenizer) -> tuple[int, ...]:
    """The checkpoint's list, or OpenAI's for its kind; always with the specials of the prompt."""
    if parsed.suppress is None:
        return tokenizer.suppressed()
    return tuple(sorted(tokenizer.prompt_specials.union(parsed.suppress)))


def _locate(name: str, is_path: bool, cache_dir: str | Path | None, local_files_only: bool) -> _Located:
    size = None if is_path else catalog.standard_name(name)
    path = Path(name).expanduser()
    # A directory that only happens to be called "base" must not hide the model.
    if path.exists() and (size is None or _holds_checkpoint(path)):
        return _Located(formats.identify(path), str(path))
    if is_path or _looks_like_path(name):
        nearest = next(parent for parent in [*path.absolute().parents] if parent.exists())
        raise WeightsError(
            f"{name}: no such file or directory ({nearest} exists); give the path of a checkpoint, a size such as "
            "base, or a Hugging Face id"
        )
    if size is not None:
        local = _local_package(size, cache_dir)
        if local:
            return local
    elif name in catalog.TEXT:
        raise WeightsError(f"{name} is a language model, not a Whisper model; `sharpen generate` takes it")
    elif "/" not in name:
        raise WeightsError(
            f"unknown model {name!r}: no such file or directory, and not one of {', '.join(catalog.NAMES)}; "
            "a Hugging Face id has the form owner/name"
        )
    return _from_hub(name, size, local_files_only)


def _local_package(size: str, cache_dir: str | Path | None) -> _Located | None:
    for package in catalog.packages_of(size):
        source = catalog.installed(package)
        if source:
            return _Located(source, " and ".join(package.packages), package.sha256)
    fetched = catalog.fetched(size, cache_dir)
    if fetched:
        source, sha256 = fetched
        return _Located(source, str(source.folder), sha256)
    return None


def _from_hub(name: str, size: str | None, local_files_only: bool) -> _Located:
    repositories = hub.repositories(name, size)
    for repository in repositories:
        folder = hub.find_local(repository)
        if folder and _holds_checkpoint(folder):
            return _Located(formats.identify(folder), f"{repository} (Hugging Face cache)")
    try:
        if local_files_only:
            raise hub.HubUnreachableError(f"{name} is not on this machine, and local_files_only forbids the network")
        folder = hub.download(repositories[0])
    except hub.HubUnreachableError as error:
        raise WeightsError(f"cannot load {name!r}: {error}. {_advice(name, size)}") from error
    return _Located(formats.identify(folder), f"{repositories[0]} (Hugging Face hub)")


def _advice(name: str, size: str | None) -> str:
    ways = ["give the path of a checkpoint on disk"]
    if size and catalog.packages_of(size):
        ways.insert(0, f"run `sharpen models fetch {size}`, which can also take it from a package index")
        if size in ("base", "tiny.en"):
            ways.insert(1, f"pip install 'sharpen[{size.replace('.', '-')}]'")
    else:
        ways.insert(0, f"run `sharpen models fetch {name}` where there is a network")
        ways.append("use base or tiny.en, which `sharpen models fetch` and pip install 'sharpen[weights]' provide")
    return "Try one of: " + "; ".join(ways) + "."


def _holds_checkpoint(path: Path) -> bool:
    try:
        formats.identify(path)
    except WeightsError:
        return False
    return True


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".pt", ".bin", ".safetensors"))
