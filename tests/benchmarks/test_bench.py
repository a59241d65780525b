"""The benchmark: both engines compute the same, and its figures follow from what was timed. No time is asserted."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models.moonshines import random_moonshine, write_directory
from models.small import small_checkpoint
from models.weights.writers import small_model, write_openai

from sharpen.benchmarks.bench import QUICK, BenchPlan, BenchResult, CaseResult, GrowthAxes, run
from sharpen.benchmarks.efforts import EffortTiming, compare, time_efforts
from sharpen.benchmarks.episodes import Bench, BenchCase, Clip, EpisodeTiming, read_clips
from sharpen.benchmarks.machine import STAGES, Machine, Work, limit
from sharpen.benchmarks.memory import peak
from sharpen.benchmarks.tables import as_text, plot
from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.speech.efforts import EFFORTS

CTC = Path(__file__).parent.parent / "models" / "small_ctc"
CLIPS = [Clip(f"clip {i}", np.random.default_rng(i).standard_normal(16000).astype(np.float32), cap=5) for i in range(4)]


@pytest.mark.parametrize(("method", "samples"), [("greedy-em", 1), ("em-tok", 5), ("em-tok-b", 4)])
def test_both_engines_have_the_same_loss_and_gradient(method, samples):
    bench = Bench(small_checkpoint())
    loss, gradient = bench.check_equal(CLIPS[0], method, samples)
    assert loss < 1e-5
    assert gradient < 1e-3
    with torch.no_grad():
        bench.reference.parameters[3].mul_(1.1)
    with pytest.raises(SharpenError, match="do not compute the same"):
        bench.check_equal(CLIPS[0], method, samples)


def test_the_reference_learns_and_forgets():
    bench = Bench(small_checkpoint())
    before = [p.detach().clone() for p in bench.reference.parameters]
    features = torch.randn(1, 80, 3000)
    first, second = bench.reference.episode(features, bench.prompt, "greedy-em", 1, 2, 8, seed=0)
    assert second.loss < first.loss
    assert set(second.seconds) == {"encode", "search", "score", "backward", "optimiser", "decode"}
    assert all(torch.equal(a, b) for a, b in zip(before, bench.reference.parameters, strict=True))
    with pytest.raises(SharpenError, match="the reference knows"):
        bench.reference.step(features, bench.prompt, "em-seq", 4, 8)


def test_the_reference_trains_its_norms_alone_and_holds_no_part_of_our_engine():
    bench = Bench(small_checkpoint())
    theirs = bench.reference.model
    assert "speech" not in vars(bench)
    trained = {name for name, p in theirs.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in theirs.named_parameters() if "layer_norm" in name}


def test_its_samples_are_as_many_as_asked_for_and_differ():
    bench = Bench(small_checkpoint())
    (step,) = bench.reference.episode(torch.randn(1, 80, 3000), bench.prompt, "em-tok", 6, 1, 12, seed=0)
    assert len(step.hypotheses) == 6
    assert len({tuple(y) for y in step.hypotheses}) > 1


def sharp_checkpoint(factor: float):
    """The small model, its logits multiplied: with a large factor it is sure of whatever it says."""
    checkpoint = small_checkpoint(d=16, layers=1)
    decoder = checkpoint.weights.decoder
    norm = replace(decoder.norm, weight=factor * decoder.norm.weight, bias=factor * decoder.norm.bias)
    return replace(checkpoint, weights=replace(checkpoint.weights, decoder=replace(decoder, norm=norm)))


@pytest.mark.parametrize(("factor", "n", "left_alone"), [(0.2, 2, [2, 0, 0, 0]), (1000.0, 1, [1, 1, 1, 0])])
def test_every_effort_on_each_clip_in_turn(factor, n, left_alone):
    """A model in doubt is adapted to every clip; one that is sure is left alone, but not by the paper's setting."""
    said: list[str] = []
    costs = time_efforts("sharp", Bench(sharp_checkpoint(factor)).speech, CLIPS[:n], said.append)
    assert [one.effort for one in costs] == ["plain", "normal", "high", "paper"]
    assert [one.left_alone for one in costs] == left_alone
    assert all(one.utterances == n and one.seconds > 0 for one in costs)
    order = [(i, one.effort) for i in range(1, n + 1) for one in costs]
    assert said[1:] == [f"sharp: effort {effort}, utterance {i} of {n}" for i, effort in order]


def test_efforts_are_compared_by_their_means():
    seconds = {"plain": (0.5, 1.5), "normal": (0.5, 4.7), "high": (8.0, 8.0), "paper": (20.0, 22.0)}
    adapted = {"plain": (False, False), "normal": (False, True), "high": (True, True), "paper": (True, True)}
    result = BenchResult(Machine(1e9, 1e9, 2), "made up", "base")
    assert "effort" not in as_text(result)
    result.efforts = compare(
        "base", {e: [EffortTiming(*one) for one in zip(seconds[e], adapted[e], strict=True)] for e in seconds}
    )
    rows = json.loads(json.dumps(result.as_json()))["efforts"]
    assert [(one["model"], one["effort"]) for one in rows] == [("base", effort) for effort in seconds]
    assert [one["utterances"] for one in rows] == [2, 2, 2, 2]
    assert [one["seconds"] for one in rows] == [1.0, 2.6, 8.0, 21.0]
    assert [one["times_plain"] for one in rows] == [1.0, 2.6, 8.0, 21.0]
    assert [one["faster_than_paper"] for one in rows] == pytest.approx([21.0, 21 / 2.6, 21 / 8, 1.0])
    assert [one["left_alone"] for one in rows] == [2, 1, 0, 0]
    lines = as_text(result).splitlines()
    assert lines[0] == (
        "base: the default effort takes 2.6 times a beam search of 5 (it left 1 of 2 utterances alone); the paper's "
        "setting 21 times."
    )
    table = [re.split(" {2,}", line) for line in lines[2:7]]
    assert table == [
        ["model", "effort", "n", "seconds", "times plain", "paper / it", "left alone"],
        ["base", "plain", "2", "1.00", "1.0", "21", "2"],
        ["base", "normal", "2", "2.60", "2.6", "8.1", "1"],
        ["base", "high", "2", "8.00", "8.0", "2.6", "0"],
        ["base", "paper", "2", "21.00", "21", "1.0", "0"],
    ]


def test_engines_differ_in_their_padding():
    bench, clip = Bench(small_checkpoint()), CLIPS[0]
    for engine, frames in (("exact", 1500), ("fast", 480), ("fastest", 180)):  # after a second of speech
        (timing,) = bench.time(BenchCase(engine, "greedy-em", 1), [clip], steps=1)
        assert timing.work.frames == frames


def test_an_episode_is_stem_ten_steps_and_decode():
    timing = EpisodeTiming(2, dict(zip(STAGES, [1.0, 4.0, 6.0, 2.0, 8.0, 0.0, 3.0], strict=True)))
    assert sum(timing.episode().values()) == pytest.approx(1 + 3 + 10 / 2 * (4 + 6 + 2 + 8))


def test_the_limit_is_its_arithmetic():
    """One layer each side, d = 4, f = 16, V = 10, S = 100, at 1 operation a second, memory for nothing."""
    sizes = {"state": 4, "audio_ffn": 16, "text_ffn": 16, "vocab_size": 10, "audio_layers": 1, "text_layers": 1}
    dims = replace(small_checkpoint().dimensions, **sizes)
    work = Work(frames=100, nodes=7, levels=3, searched=9, greedy_levels=2)
    least = limit(Machine(1.0, float("inf"), 1), dims, work)
    linear, attention, cross = 100 * 2 * (4 * 16 + 2 * 64), 4 * 100 * 100 * 4, 100 * 4 * 16
    assert least["encode"] == linear + attention + cross
    node = 2 * (6 * 16 + 2 * 64) + 4 * 100 * 4
    assert least["score"] == 7 * node
    assert least["backward"] == linear + cross + 2.5 * attention + 7 * (node + 1.5 * 4 * 100 * 4 + 2 * 10 * 4)
    assert least["search"] == 9 * (node + 2 * 10 * 4)
    streamed = limit(Machine(float("inf"), 1.0, 1), dims, work)
    assert streamed["search"] == 3 * (4 * (6 * 16 + 2 * 64 + 10 * 4) + 4 * 2 * 100 * 4)
    assert streamed["encode"] == 0
    shared = limit(Machine(float("inf"), 1.0, 1), dims, work, batch=4)  # the weights once for four, not the keys
    assert shared["search"] == 3 * ((6 * 16 + 2 * 64 + 10 * 4) + 4 * 2 * 100 * 4)


def test_ratios_are_of_the_lines_that_were_run():
    result = BenchResult(Machine(1e9, 1e9, 2), "made up", "base")
    for engine, method, G, batch, seconds in (
        ("reference", "em-tok", 16, 1, 120.0), ("exact", "em-tok", 16, 1, 20.0), ("exact", "em-tok", 16, 4, 15.0),
        ("fastest", "em-tok", 16, 1, 8.0), ("exact", "greedy-em", 1, 1, 16.0),
    ):  # fmt: skip
        stages = dict.fromkeys(STAGES, 0.0) | {"encode": seconds}
        limits = dict.fromkeys(STAGES, 0.0) | {"encode": 10.0} if engine == "exact" and batch == 1 else None
        result.cases.append(CaseResult("base", BenchCase(engine, method, G, batch), 8, 5.0, stages, limits))
    result.memory = {"exact": 100, "reference": "ended with -9: no message; out of memory?"}
    assert result.ratios() == {
        "exact_vs_reference": 6.0, "batch4_vs_reference": 8.0, "fastest_vs_reference": 15.0,
        "em_tok_vs_greedy_em": 1.25,
        "memory_vs_reference": None, "vs_limit": 2.0,
    }  # fmt: skip
    result.memory["reference"] = 800
    assert result.ratios()["memory_vs_reference"] == 0.125
    text = as_text(result)
    assert "exact_vs_reference" in text
    assert "NOT reached" not in text
    result.memory["reference"] = 200
    assert "NOT reached" in as_text(result)


def test_a_run_from_end_to_end(tmp_path, monkeypatch):
    """A small random model through every case, table and figure. What this process holds is not in its memory."""
    path = str(write_openai(small_model(), tmp_path / "small.pt"))
    monkeypatch.setattr("sharpen.benchmarks.bench.WIDE", 4)  # hypotheses: enough to run, and soon done
    axes = GrowthAxes(samples=(1, 4), tokens=(2, 4), utterances=(1, 2), seconds=(0.5, 1.0))
    plan = BenchPlan(models=(path,), methods=("greedy-em", "em-tok"), samples=(16,), clips=2, steps=1, growth=axes)
    said: list[str] = []
    ballast = np.ones(1 << 28, dtype=np.float64)  # 2 GB
    result = run(plan, CLIPS, "four clips of noise", said.append)
    assert all(value is not None and value > 0 for value in result.ratios().values())
    assert {(one.case.engine, one.case.batch) for one in result.cases} == {
        ("reference", 1), ("exact", 1), ("exact", 4), ("fast", 1), ("fast", 4), ("fastest", 1), ("fastest", 4),
    }  # fmt: skip
    assert [one.utterances for one in result.efforts] == [2] * len(EFFORTS)
    assert all(gradient < 1e-3 for _, gradient in result.differences.values())
    assert len(result.growth) == 5
    assert all(100 << 20 < size < ballast.nbytes for size in result.memory.values())
    assert json.loads(json.dumps(result.as_json()))["ratios"] == result.ratios()
    assert "four clips of noise" in as_text(result)
    assert said
    plot(result, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000


LAST = pytest.param("whisper,moonshine", marks=pytest.mark.long)


@pytest.mark.parametrize("order", ["moonshine", "moonshine,whisper", LAST])
def test_each_model_has_the_tables_that_apply_to_it(order, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sharpen.benchmarks.bench.WIDE", 2)
    monkeypatch.setattr("sharpen.benchmarks.bench.QUICK", replace(QUICK, methods=("greedy-em",)))
    monkeypatch.setattr("sharpen.benchmarks.episodes.read_clips", lambda folder, count: (CLIPS[:2], "two noises"))
    write_openai(small_model(), tmp_path / "whisper")
    write_directory(random_moonshine(), tmp_path / "moonshine")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--quick", "--models", order, "--clips", "1", "--json", "b.json", "--plot", "b.png"]) == 0
    out, result = capsys.readouterr().out, json.loads((tmp_path / "b.json").read_text())
    timed = {model: [one["effort"] for one in result["efforts"] if one["model"] == model] for model in order.split(",")}
    assert all(efforts == ["plain", "normal", "high", "paper"] for efforts in timed.values())
    assert all(f"{model}: the default effort takes" in out for model in timed)
    note = "Of moonshine only the efforts are timed: the reference of the episodes is for Whisper."
    assert result["notes"] == [note]
    assert note in out
    whisper = {"whisper"} & set(timed)
    assert {one["model"] for one in result["cases"]} == whisper
    assert (result["ratios"]["memory_vs_reference"] is not None) == bool(whisper)
    assert ("a process that loads whisper" in out) == bool(whisper)


def test_memory_that_could_not_be_measured_says_why():
    assert "failed with exit code 1: " in peak("no-such-model", BenchCase("exact", "greedy-em", 1), CLIPS[0])


@pytest.fixture
def no_run(monkeypatch):
    """Nothing may be computed."""
    monkeypatch.setattr("sharpen.benchmarks.bench.run", lambda *_: pytest.fail("the benchmark started"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "FILE/x.json"], "x.json cannot be written: a part of its path is a file"),
        (["--json", "FOLDER"], "cannot be written: Is a directory"),
        (["--plot", "FOLDER/x.doc"], "no suffix that a figure can have; give one of .*.png"),
        (["--plot", "FOLDER/x"], "no suffix that a figure can have"),
        (["--plot", "FILE/x.png"], "x.png cannot be written: a part of its path is a file"),
        (["--models", "SMALL,FILE"], "FILE"),
        (["--models", "SMALL,"], "empty name"),
        (["--models", "SMALL,CTC"], "is a CTC model, which has no efforts but plain"),
        (["--data", "FOLDER"], "librispeech-test-other"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(arguments, message, tmp_path, capsys, no_run):
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FILE").write_text("text")
    write_openai(small_model(), tmp_path / "SMALL")
    places = {name: str(tmp_path / name) for name in ("FOLDER", "FILE", "SMALL")} | {"CTC": str(CTC)}
    arguments = [re.sub("FOLDER|FILE|SMALL|CTC", lambda m: places[m[0]], argument) for argument in arguments]
    assert main(["bench", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert list((tmp_path / "FOLDER").iterdir()) == []


def test_a_missing_extra_is_named_before_anything_runs(monkeypatch, capsys, no_run):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "--quick"]) == 2
    assert "pip install 'sharpen[transformers]'" in capsys.readouterr().err


def test_the_command_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    result = BenchResult(Machine(1e9, 1e9, 2), "made up", "base")
    monkeypatch.setattr("sharpen.benchmarks.bench.run", lambda *_: result)
    json_path, plot_path = tmp_path / "new" / "bench.json", tmp_path / "new" / "bench.svg"
    assert main(["bench", "--quick", "--json", str(json_path), "--plot", str(plot_path)]) == 0
    assert json.loads(json_path.read_text()) == json.loads(json.dumps(result.as_json()))
    assert "<svg" in plot_path.read_text()
    assert "made up" in capsys.readouterr().out
    assert main(["bench", "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["utterances"] == "made up"


def test_clips_are_the_examples_or_noisy_speech(data):
    examples, what = read_clips(None, 3)
    assert len(examples) == 3
    assert "example" in what
    real, what = read_clips(data, 8)
    assert len({clip.id for clip in real}) == 8
    assert "10 dB" in what
