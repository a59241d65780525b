import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models.weights.packages import RAISES, split_package
from models.weights.writers import ctranslate2_variables, write_ctranslate2, write_openai

from sharpen.errors import WeightsError
from sharpen.models.weights import catalog, hub
from sharpen.models.weights.load import find_ahead, load_checkpoint


@pytest.fixture
def installed(model, tmp_path, monkeypatch):
    """A weights package in two parts on the import path, and nothing else known; importing it fails."""
    row, members = split_package(model, tmp_path)
    site = tmp_path / "site"
    for member, content in members.items():
        path = site / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in ("sharpen_test_part1", "sharpen_test_part2"):
        (site / name / "__init__.py").write_bytes(RAISES)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(catalog, "PACKAGED", (row,))
    monkeypatch.setattr(catalog, "KNOWN_SHA256", frozenset({row.sha256}))
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path / "cache"))
    return site


def put_in_hub_cache(cache: Path, repository: str, model) -> Path:
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    model.save_pretrained(folder / "snapshots" / ("0" * 40))
    return folder / "snapshots" / ("0" * 40)


@pytest.mark.parametrize(("name", "parameters"), [("base", 72_593_920), ("tiny.en", 37_760_256)])
def test_installed_packages_load_verified_and_without_a_network(package_files, no_network, name, parameters):
    package_files(name)
    loaded = load_checkpoint(name)
    assert loaded.verified
    assert loaded.format == "ctranslate2"
    assert "==" in loaded.source
    assert loaded.dimensions.parameters == parameters
    assert loaded.tokenizer.multilingual == (name == "base")
    assert loaded.suppress == loaded.tokenizer.suppressed()
    assert loaded.suppress_first == (220, loaded.tokenizer.eot)


def test_the_hub_id_of_a_standard_size_is_answered_by_a_local_package(installed, no_network):
    assert load_checkpoint("openai/whisper-tiny").format == "ctranslate2"


def test_a_package_in_parts_is_joined_and_not_imported(model, installed, no_network):
    loaded = load_checkpoint("tiny")
    assert loaded.verified
    assert loaded.source == "sharpen-test-part1==1.0.0 and sharpen-test-part2==1.0.0"
    assert 7 in loaded.suppress
    assert torch.equal(loaded.weights.decoder.tokens.float(), model.proj_out.weight)
    assert not {"sharpen_test_part1", "sharpen_test_part2"} & sys.modules.keys()


def test_a_missing_part_is_named(installed):
    (installed / "sharpen_test_part2" / "data" / "model.part2").unlink()
    with pytest.raises(WeightsError, match=r"2 parts and one is missing: sharpen-test-part2==1\.0\.0"):
        load_checkpoint("tiny")
    assert [entry.verified for entry in catalog.available()] == ["incomplete"]


def test_one_flipped_bit_is_a_wrong_checksum(installed):
    path = installed / "sharpen_test_part2" / "data" / "model.part2"
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1  # in the middle of a tensor: without the checksum nobody would see it
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="wrong checksum"):
        load_checkpoint("tiny")
    assert [entry.verified for entry in catalog.available()] == ["damaged"]


def test_a_path_comes_before_a_package(model, installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert load_checkpoint("tiny").source.startswith("sharpen-test")  # an unrelated directory does not hide it
    write_openai(model, tmp_path / "tiny" / "mine.pt")
    loaded = load_checkpoint("tiny")
    assert (loaded.format, loaded.source, loaded.verified) == ("openai", "tiny", False)


def test_the_hugging_face_cache_answers_without_a_network(model, hub_cache, no_network):
    snapshot = put_in_hub_cache(hub_cache, "openai/whisper-small.en", model)
    for name in ("small.en", "openai/whisper-small.en"):
        loaded = load_checkpoint(name)
        assert loaded.format == "safetensors"
        assert loaded.source == "openai/whisper-small.en (Hugging Face cache)"
    (entry,) = [entry for entry in catalog.available() if "small.en" in entry.name]
    assert (entry.source, entry.verified, entry.languages) == (str(snapshot), "unknown", "en")
    assert entry.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_what_faster_whisper_left_in_the_cache_is_found(model, hub_cache, no_network):
    folder = put_in_hub_cache(hub_cache, "Systran/faster-whisper-medium", model)
    for file in folder.iterdir():
        file.unlink()
    write_ctranslate2(ctranslate2_variables(model), folder / "model.bin")
    assert load_checkpoint("medium").format == "ctranslate2"
    assert load_checkpoint("Systran/faster-whisper-medium").format == "ctranslate2"


def test_out_of_reach_gives_one_error_that_helps(hub_cache, tmp_path, no_network):
    for name, advice in [("tiny", "sharpen models fetch tiny"), ("large", "sharpen models fetch large")]:
        with pytest.raises(WeightsError, match=f"hub cannot be reached.*{advice}.*path of a checkpoint"):
            load_checkpoint(name, cache_dir=tmp_path)
    with pytest.raises(WeightsError, match="local_files_only forbids the network"):
        load_checkpoint("somebody/whisper-thing", local_files_only=True)


def test_offline_mode_is_honoured(hub_cache, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        load_checkpoint("small", cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["./models/mine", "/nowhere/model.bin", "mine.pt", "a/b/c", "~/no-such-model"])
def test_a_path_that_is_not_there_is_called_a_path(name):
    with pytest.raises(WeightsError, match="no such file or directory"):
        load_checkpoint(name)
    with pytest.raises(WeightsError, match="no such file or directory"):
        load_checkpoint(Path(name))


def test_finding_ahead_leaves_errors_and_downloads_to_loading(hub_cache, tmp_path, monkeypatch, no_network):
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "download", lambda *_: pytest.fail("it was downloaded"))
    assert find_ahead("huge") == "huge"
    assert find_ahead("large-v3") == "large-v3"


def test_a_damaged_checkpoint_is_found_and_refused_when_it_is_loaded(installed):
    (installed / "sharpen_test_part2" / "data" / "model.part2").write_bytes(b"x")
    found = find_ahead("tiny")
    with pytest.raises(WeightsError, match="wrong checksum"):
        found.load()


def test_unknown_names():
    with pytest.raises(WeightsError, match=r"unknown model 'huge'.*large-v3-turbo.*owner/name"):
        load_checkpoint("huge")
    with pytest.raises(WeightsError, match="neither an existing path nor a model id"):
        load_checkpoint("some body/thing")


def test_names_of_sizes():
    assert catalog.standard_name("turbo") == "large-v3-turbo"
    assert catalog.standard_name("large") == "large-v3"
    assert catalog.standard_name("openai/whisper-base.en") == "base.en"
    assert catalog.standard_name("openai/whisper-large") == "large-v1"  # the hub's name for the first of them
    assert hub.repositories("large-v1", "large-v1")[0] == "openai/whisper-large"
    assert hub.repositories("turbo", "large-v3-turbo")[1] == "mobiuslabsgmbh/faster-whisper-large-v3-turbo"
    assert catalog.standard_name("distil-whisper/distil-small.en") is None
    assert catalog.standard_name("UsefulSensors/moonshine-tiny") == "moonshine-tiny"
    assert hub.repositories("moonshine-base", "moonshine-base") == ("UsefulSensors/moonshine-base",)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("SHARPEN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.cache_folder() == tmp_path / ".cache" / "sharpen" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert catalog.cache_folder() == tmp_path / "x" / "sharpen" / "models"
    monkeypatch.setenv("SHARPEN_CACHE", str(tmp_path / "y"))
    assert catalog.cache_folder() == tmp_path / "y" / "models"
    assert catalog.cache_folder(tmp_path / "z") == tmp_path / "z" / "models"


def test_listing_fetching_and_finding_do_not_import_torch():
    script = (
        "import sys, sharpen.models.weights.fetch, sharpen.models.weights.catalog as c; c.available(); "
        "from sharpen.models.weights.load import find_checkpoint; find_checkpoint('tiny.en'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
