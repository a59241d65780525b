"""The Hugging Face hub: first its local cache, then the network, with only the files that are needed."""

import re
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from sharpen.errors import WeightsError

TIMEOUT = 5.0  # seconds to wait for the hub's first answer
_FILES = [
    *("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"),
    *("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
    "model.bin",  # CTranslate2
    *("tokenizer_config.json", "chat_template.jinja"),  # language models
]


_KNOWN = re.compile("whisper|moonshine")  # in the id of a repository


class HubUnreachableError(WeightsError):
    """The hub did not answer, or offline mode forbids asking it."""


class _NoBar(tqdm):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"disable": True}))


def repositories(name: str, size: str | None) -> tuple[str, ...]:
    """Where a model is on the hub: OpenAI's repository, then faster-whisper's; or the id itself."""
    if size is None:
        return (name,)
    if size.startswith("moonshine"):
        return (f"UsefulSensors/{size}",)
    owner = "mobiuslabsgmbh" if size == "large-v3-turbo" else "Systran"
    return f"openai/whisper-{'large' if size == 'large-v1' else size}", f"{owner}/faster-whisper-{size}"


def find_local(repository: str) -> Path | None:
    """The snapshot in the hub's cache, without a network call."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(repository, local_files_only=True, allow_patterns=_FILES))
    except (OSError, HFValidationError):  # not there; or not a name the hub can have
        return None


def download(repository: str, progress: bool = True) -> Path:
    """Download a model into the hub's cache."""
    from huggingface_hub import is_offline_mode, snapshot_download

    if is_offline_mode():
        raise HubUnreachableError(f"{repository} is not in the Hugging Face cache, and HF_HUB_OFFLINE is set")
    _ask(repository)
    bar = None if progress else _NoBar
    try:
        return Path(snapshot_download(repository, allow_patterns=_FILES, etag_timeout=TIMEOUT, tqdm_class=bar))
    except Exception as error:  # also those of whichever HTTP library the hub's client is built on
        raise WeightsError(f"{repository}: the download failed ({_first_line(error)}); try again") from error


def _ask(repository: str) -> None:
    """Raises unless the hub has the model: `snapshot_download` waits forever for a hub that does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        HfApi().repo_info(repository, timeout=TIMEOUT)
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"{repository}: the Hugging Face hub has no such model, or it is private (then log in with `hf auth login`)"
        ) from error
    except HFValidationError as error:
        raise WeightsError(
            f"{repository!r} is neither an existing path nor a model id ({_first_line(error)})"
        ) from error
    except Exception as error:  # those of whichever HTTP library the hub's client is built on
        raise HubUnreachableError(f"the Hugging Face hub cannot be reached ({_first_line(error)})") from error


def cached_repositories() -> list[tuple[str, Path]]:
    """Speech models in the hub's cache: id and newest snapshot."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    cached = []
    for repository in sorted(repositories, key=lambda entry: entry.repo_id):
        if repository.repo_type == "model" and _KNOWN.search(repository.repo_id.lower()) and repository.revisions:
            newest = max(repository.revisions, key=lambda revision: revision.last_modified)
            cached.append((repository.repo_id, Path(newest.snapshot_path)))
    return cached


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
