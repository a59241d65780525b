import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sharpen.speech.audio import read_audio

EXAMPLES = Path(__file__).parents[1] / "examples"
ROWS = [json.loads(line) for line in (EXAMPLES / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
IDS = [row["id"] for row in ROWS]

synthesisers = pytest.mark.skipif(
    not (shutil.which("flite") and shutil.which("espeak-ng")), reason="flite and espeak-ng are not both installed"
)


def script(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make():
    return script("make")


def test_there_are_enough_clips_of_every_kind():
    assert len(ROWS) >= 6
    assert len(set(IDS)) == len(ROWS)
    assert len({row["noise"] for row in ROWS}) >= 5
    assert {"flite:slt", "flite:rms", "flite:awb", "flite:kal"} <= {row["speaker"] for row in ROWS}
    assert any(row["speaker"].startswith("espeak-ng:") for row in ROWS)


def test_they_are_small():
    files = [p for p in EXAMPLES.iterdir() if p.suffix in (".flac", ".ogg", ".mp3", ".m4a", ".jsonl")]
    assert {p.name for p in files} == {row["audio_filepath"] for row in ROWS} | {"manifest.jsonl"}
    assert sum(p.stat().st_size for p in files) < 400_000


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_manifest_tells_the_truth_about_a_file(row):
    audio = read_audio(EXAMPLES / row["audio_filepath"])
    lossy = not row["audio_filepath"].endswith(".flac")
    assert audio.name == row["id"]
    assert audio.skipped == 0
    assert audio.duration == pytest.approx(row["duration"], abs=0.07 if lossy else 1e-3)  # codecs pad to whole frames
    assert not audio.is_silent
    assert np.abs(audio.samples).max() < 1.0
    assert row["text"]
    assert row["language"] == "en"


@synthesisers
@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_snr_is_that_of_the_written_samples(row, make):
    clip = next(c for c in make.CLIPS if c.file == row["audio_filepath"])
    speech, mixture = make.mix(clip)
    assert row["snr"] == pytest.approx(clip.snr, abs=0.05)
    noise = mixture.astype(np.float64) - speech
    power = np.mean(speech.astype(np.float64) ** 2) / np.mean(noise**2)
    assert 10 * np.log10(power) == pytest.approx(row["snr"], abs=0.01)
    written = read_audio(EXAMPLES / clip.file).samples
    if clip.file.endswith(".flac"):
        assert np.array_equal(written * 32768, mixture)
    else:
        overlap = min(len(written), len(mixture))
        shape = np.abs(np.fft.rfft(mixture[:overlap])), np.abs(np.fft.rfft(written[:overlap]))
        assert np.corrcoef(*shape)[0, 1] > 0.8


@synthesisers
def test_the_script_makes_the_same_manifest(tmp_path, make):
    make.make(tmp_path)
    assert (tmp_path / "manifest.jsonl").read_bytes() == (EXAMPLES / "manifest.jsonl").read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {row["audio_filepath"] for row in ROWS} | {"manifest.jsonl"}


def test_a_missing_synthesiser_is_named(tmp_path):
    script = [sys.executable, str(EXAMPLES / "make.py"), "--output", str(tmp_path / "out")]
    run = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert run.returncode == 1
    assert "flite is not installed" in run.stderr
    assert "apt-get install flite" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_demo_prints_its_tables(capsys):
    assert script("demo").main(["--model", "tiny.en", "--clips", "1"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    header = next(line for line in lines if line.startswith("clip"))
    methods = ["greedy", "plain", "sharpen"]
    assert header.split()[-3:] == methods
    assert [line.split()[0] for line in lines if line.split()[:1] and line.split()[0] in methods] == methods
    assert any(line.startswith(IDS[0]) for line in lines)
    words = "".join(lines)
    assert all(word in words for word in ROWS[0]["text"].split())  # the reference, wrapped
    assert "Try next:" in lines
    assert "transcribe" in lines[-2]
    assert "models" in lines[-1]
    assert "3/3 clips" in printed.err
