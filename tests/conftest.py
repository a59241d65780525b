"""Real models and, where it is present, real speech. Tests that cannot have them skip and say why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in processes that tests start: two workers share two cores


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Sums then have the same order on every machine; what is about threads sets its own."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base():
    from sharpen.models.weights.load import load_checkpoint

    return load_checkpoint("base")


@pytest.fixture(scope="session")
def tiny_en():
    from sharpen.models.weights.load import load_checkpoint

    return load_checkpoint("tiny.en")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real speech, from SHARPEN_DATA or beside the repository."""
    folder = Path(os.environ.get("SHARPEN_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "librispeech-test-other" / "manifest.jsonl").is_file():
        pytest.skip("real speech is not here: set SHARPEN_DATA to a folder with librispeech-test-other/manifest.jsonl")
    return folder
