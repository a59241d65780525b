"""A CTC model from a folder to transcripts and rows: the small one that scripts/train_ctc.py made."""

import importlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import ToyPolicy
from transformers import Wav2Vec2ForCTC

import sharpen
from sharpen.cli import main
from sharpen.errors import SharpenError, WeightsError
from sharpen.method.ctc import greedy
from sharpen.speech.audio import read_audio
from sharpen.speech.efforts import EFFORTS

FOLDER = Path(__file__).parent.parent / "models" / "small_ctc"
CLIP, SAID = FOLDER / "clip.wav", "four green left"
CTC = ("ctc-frame", "ctc-collapse")


@pytest.fixture(scope="module")
def model():
    return sharpen.load(FOLDER)


@pytest.fixture(scope="module")
def noisy():
    samples = read_audio(CLIP).samples
    return (samples + np.random.default_rng(0).normal(0, 0.02, len(samples))).astype(np.float32)


def run(*arguments):
    return main([*map(str, arguments), "--model", str(FOLDER), "-q", "--threads", "1"])


def test_what_it_hears(model):
    transcript = model.transcribe(CLIP)
    assert transcript.text == SAID
    (segment,) = transcript.segments
    assert len(segment.tokens) == len(segment.logprobs) == len(segment.entropies) == len(SAID)
    assert all(-1 < value <= 0 for value in segment.logprobs)
    assert transcript.adapted == []


def test_the_logits_of_transformers(model):
    """The folder is Hugging Face's layout; a waveform of mean 0 and variance 1 is what it asks for."""
    theirs = Wav2Vec2ForCTC.from_pretrained(FOLDER, dtype=torch.float32).eval()
    x = torch.from_numpy(read_audio(CLIP).samples)
    with torch.no_grad():
        logits = theirs(((x - x.mean()) / (x.var(correction=0) + 1e-7).sqrt())[None]).logits
    (found,) = model.speech.listen([x.numpy()], ["x"], None)
    assert found.source.tokens == greedy(logits, [logits.shape[1]], 0)[0]
    assert found.source.avg_logprob == pytest.approx(logits[0].log_softmax(-1).max(-1).values.mean().item(), abs=1e-4)


@pytest.mark.parametrize("method", CTC)
def test_adapting_lowers_the_entropy_and_is_forgotten(model, noisy, method):
    before = model.transcribe(noisy).text
    adapt = sharpen.Adaptation(method=method, steps=6, lr=3e-3, samples=8)
    transcript = model.transcribe(noisy, adapt=adapt)
    ((start, how),) = transcript.adapted
    entropies = [step.H_tok for step in how.trace.steps]
    assert (start, len(entropies), how.source.text) == (0.0, 6, before)
    assert entropies[-1] < entropies[0]
    assert model.transcribe(noisy).text == before
    again = model.transcribe(noisy, adapt=adapt).adapted[0][1]
    assert [step.loss for step in again.trace.steps] == [step.loss for step in how.trace.steps]


def test_a_refused_text_is_the_sources(model, noisy, monkeypatch):
    monkeypatch.setattr("sharpen.method.guard.check", lambda source, adapted: "broken")
    adapt = sharpen.Adaptation(method="ctc-frame", steps=3, lr=0.1)
    transcript = model.transcribe(noisy, adapt=adapt)
    ((_, how),) = transcript.adapted
    assert (how.refused, transcript.text) == ("broken", how.source.text)


def test_very_short_and_long_audio(model, monkeypatch):
    clip = read_audio(CLIP).samples
    assert model.transcribe(clip[:50]).text == ""
    monkeypatch.setattr(model.speech, "seconds", 2.2)  # a window is cut at a quiet place
    transcript = model.transcribe(np.tile(clip, 4))
    assert transcript.text == " ".join([SAID] * 4)
    assert len(list(transcript.segments)) > 1


def test_the_command(tmp_path, capsys):
    assert run("transcribe", CLIP) == 0
    assert capsys.readouterr().out.strip() == SAID
    for method in CTC:
        assert run("transcribe", CLIP, "--method", method, "--steps", 2, "-o", tmp_path, "-f", "json") == 0
        assert capsys.readouterr().out.strip() == SAID
        written = json.loads((tmp_path / "clip.json").read_text())
        assert (written["text"].strip(), written["adaptation"]["method"]) == (SAID, method)
        assert written["adaptation"]["windows"][0]["steps"] == 2
    assert run("transcribe", CLIP, "--effort", "plain") == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "em-tok-b"], "is a CTC model, and the method em-tok-b is for models that write token by token"),
        (["--method", "beam"], "method beam is for models that write token by token"),
        *((["--effort", name], f"--effort {name} is not for CTC models") for name in EFFORTS if name != "plain"),
        (["--decode", "greedy"], "--decode: .* is decoded without a search"),
        (["--beam-size", "3"], "--beam-size"),
        (["--resume", "--output-format", "txt"], "--resume is not for CTC models"),
        (["--word-timestamps"], "cannot say when a word was spoken"),
        (["--confidence"], "confidence: not with"),
        (["--budget", "2x", "--method", "ctc-frame"], "budget: not with"),
        (["--task", "translate"], "which cannot translate"),
        (["--initial-prompt", "digits"], "does not continue a text"),
        (["--method", "ctc-frame", "--adapt-norms", "encoder"], "norms cannot be set for a CTC model"),
        (["--method", "ctc-frame", "--explain"], "explain cannot be set for a CTC model"),
        (["--method", "ctc-frame", "--stop", "certain"], "stop cannot be set for a CTC model"),
    ],
)
def test_what_a_ctc_model_cannot_do_is_refused_by_name(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("transcribe", CLIP, *flags) != 0
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("method", CTC)
def test_a_whisper_model_refuses_the_methods_by_name(method, capsys):
    assert main(["transcribe", str(CLIP), "--model", "tiny.en", "--method", method, "-q"]) != 0
    assert f"the method {method} is for CTC models, and tiny.en writes token by token" in capsys.readouterr().err


def test_a_search_refuses_them_too(model):
    policy = ToyPolicy()
    with pytest.raises(SharpenError, match="ctc-frame and ctc-collapse are for CTC models"):
        sharpen.adapt(policy, policy.inputs, sharpen.Adaptation(method="ctc-frame", steps=1))
    with pytest.raises(SharpenError, match="has no hypothesis tree"):
        _ = model.policy


def test_evaluating(tmp_path, capsys):
    manifest = tmp_path / "words.jsonl"
    manifest.write_text(json.dumps({"audio": str(CLIP), "text": SAID, "id": "a"}) + "\n")
    common = ["evaluate", manifest, "--out", tmp_path / "run", "--steps", "1,2"]
    assert run(*common, "--methods", "source,ctc-frame,ctc-collapse") == 0
    printed = capsys.readouterr().out
    assert all(f"{method}" in printed for method in ("source", *CTC))
    rows = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    assert sorted((row["method"], row["steps"]) for row in rows) == sorted(
        [("source", 0), *((method, k) for method in CTC for k in (1, 2))]
    )
    assert {row["text"] for row in rows} == {SAID}
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "ctc-collapse" in capsys.readouterr().out
    assert run(*common, "--methods", "em-tok") != 0
    assert "the method em-tok is for models that write token by token" in capsys.readouterr().err


def test_damaged_folders(tmp_path):
    for file in FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": 99}))
    with pytest.raises(WeightsError, match="pad_token_id is 99"):
        sharpen.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.json").write_text(json.dumps({"en": {"a": 1}}))
    with pytest.raises(WeightsError, match="several languages"):
        sharpen.load(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(WeightsError, match=r"there is no vocab\.json"):
        sharpen.load(tmp_path)


@pytest.mark.skipif(
    not (shutil.which("flite") and shutil.which("espeak-ng")), reason="flite and espeak-ng are not both installed"
)
def test_the_script_still_makes_the_clip(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent.parent / "scripts")
    train_ctc = importlib.import_module("train_ctc")
    train_ctc.write_clip(tmp_path / "clip.wav")
    assert (tmp_path / "clip.wav").read_bytes() == CLIP.read_bytes()
    waves, texts = train_ctc.batch(0)
    assert (len(waves), {len(text.split()) for text in texts}) == (train_ctc.BATCH, {1, 2, 3})
    assert " ".join(train_ctc.CLIP) == SAID
