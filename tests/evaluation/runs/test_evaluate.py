"""Runs on a small random model: what is planned, what a row holds, failures, and resuming after a kill."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
from evaluation import tiny
from models.weights.writers import small_model, write_openai

from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.evaluation.corpora.corpus import read_corpus
from sharpen.evaluation.report.lines import group_lines, read
from sharpen.evaluation.runs import evaluate as room
from sharpen.evaluation.runs.evaluate import evaluate, load_model, local
from sharpen.evaluation.runs.normalisers import normaliser
from sharpen.evaluation.runs.plan import Part, Run, plan
from sharpen.evaluation.runs.score import word_errors
from sharpen.evaluation.runs.settings import settings
from sharpen.evaluation.runs.store import Store, read_rows
from sharpen.method import guard


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model and a manifest of six utterances."""
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.checkpoint(folder), tiny.corpus(folder / "noises", 6)


def rows_of(work, folder, engine=local):
    with Store(folder) as store:
        return evaluate(work, store, engine)


def test_batches_hold_the_same_utterances_whatever_the_limit(place):
    model, manifest = place
    order = [u.id for u in read_corpus(manifest).first(6).utterances]
    for limit in (None, 4, 5):
        batches = tiny.work(manifest, model, limit=limit).batches
        names = [[u.id for u in batch.utterances] for batch in batches if batch.setting.method == "source"]
        assert names == [order[i : min(i + 2, limit or 6)] for i in range(0, limit or 6, 2)]
    assert [b.setting.method for b in batches[:3]] == ["source", "em-tok", "source"]  # a batch goes through all methods


def test_a_plan_refuses_what_cannot_be(place, tmp_path):
    model, manifest = place
    part = Part(read_corpus(manifest))
    with pytest.raises(SharpenError, match="appears twice"):
        plan([part, part], settings(["source"]), Run(str(model)))
    two = [Part(part.corpus.corrupted("GS", snr), "GS", snr) for snr in (5.0, 10.0)]
    assert plan(two, settings(["source"]), Run(str(model))).size == 12
    long = tiny.corpus(tmp_path, 3, duration=31.0)
    with pytest.raises(SharpenError, match="nothing to evaluate"):
        tiny.work(long, model)
    lines = [json.loads(line) for line in long.read_text(encoding="utf-8").splitlines()]
    lines[0]["duration"] = 1.0
    long.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    work = tiny.work(long, model)
    assert (work.size, len(work.refused)) == (1 + 2, 2)
    assert "31.0 s of audio; at most 30 s" in work.refused[0]


def test_a_row_holds_what_its_numbers_came_from(place, tmp_path):
    model, manifest = place
    rows = rows_of(tiny.work(manifest, model, ["source", "beam", "em-tok"], limit=2), tmp_path)
    kinds = [("source", 0, 0)] * 2 + [("beam", 2, 0)] * 2 + [("em-tok", 2, 1), ("em-tok", 2, 2)] * 2
    assert [(row.method, row.samples, row.steps) for row in rows] == kinds
    normalise = normaliser("whisper-en")
    for row in rows:
        assert not row.failed
        assert row.text
        assert row.errors == word_errors(normalise(row.reference), normalise(row.text))
        assert (row.normaliser, row.language, row.speaker[0]) == ("whisper-en/1", "en", "s")
        assert row.seconds > 0
        assert set(row.versions) == {"sharpen", "torch", "python"}
        assert {"batch_size": 2, "threads": 1, "device": "cpu", "preset": "exact"}.items() <= row.options.items()
        assert ("lr" in row.options) == ("guard" in row.options) == (row.method == "em-tok")
    one, two = rows[4:6]
    assert (one.id, one.steps, two.id, two.steps) == (rows[0].id, 1, rows[0].id, 2)
    assert one.source_text == two.source_text == rows[0].text
    assert [len(one.trace[name]) for name in ("H_tok", "H_seq", "nodes", "tokens", "distinct", "truncated")] == [1] * 6
    assert two.trace["H_tok"][:1] == one.trace["H_tok"]
    assert two.seconds > one.seconds
    assert set(two.trace["seconds"]) >= {"encode", "search", "score", "backward"}


@pytest.mark.parametrize("method", ["greedy-em", "em-tok", "em-tok-b"])
def test_fewer_steps_of_one_episode_are_a_shorter_episode(place, tmp_path, method):
    model, manifest = place
    long = rows_of(tiny.work(manifest, model, [method], limit=2, steps=(1, 2, 4)), tmp_path / "long")
    assert len({row.adapted_text for row in long}) > 2  # or any step would do
    for at in (1, 2):
        short = rows_of(tiny.work(manifest, model, [method], limit=2, steps=(at,)), tmp_path / str(at))
        assert [tiny.timeless(row) for row in short] == [tiny.timeless(row) for row in long if row.steps == at]


def test_the_guard_always_judges_and_decides_only_when_on(place, tmp_path, monkeypatch):
    model, manifest = place
    monkeypatch.setattr(guard, "check", lambda source, adapted: "never trusted")
    for on in (True, False):
        work = tiny.work(manifest, model, ["em-tok"], limit=2, guard=(on,))
        for row in rows_of(work, tmp_path / str(on)):
            assert (row.refused, row.options["guard"]) == ("never trusted", on)
            assert row.adapted_text != row.source_text
            assert row.text == (row.source_text if on else row.adapted_text)


def test_stopping_rules_are_evaluated(place, tmp_path):
    """With hardly any learning the second step sees what the first saw, and the rule ends the episode there."""
    model, manifest = place
    grid = {"lr": (1e-9,), "steps": (1, 2, 4), "stop": ((), ("settled",))}
    rows = rows_of(tiny.work(manifest, model, ["em-tok-b"], limit=2, **grid), tmp_path)
    never, settled = ([row for row in rows if row.options.get("stop") == stop] for stop in (None, "settled"))
    assert [row.steps for row in never] == [row.steps for row in settled] == [1, 2, 4] * 2
    assert [len(row.trace["H_tok"]) for row in never] == [1, 2, 4] * 2
    assert [len(row.trace["H_tok"]) for row in settled] == [1, 2, 2] * 2
    assert not any(row.trace["stopped"] for row in never)
    assert [row.trace["stopped"].split(":")[0] for row in settled] == ["", "settled", "settled"] * 2
    (found,) = group_lines(rows).values()
    assert [line.label for line in found if line.steps == 4] == [
        "em-tok-b · 4 steps · stop none",
        "em-tok-b · 4 steps · stop settled",
    ]


def test_an_adapted_model_can_answer_by_beam_search(place, tmp_path):
    model, manifest = place
    grid = {"decode": ("greedy", "beam"), "beam_size": (5, 16), "limit": 2}
    texts = {}
    for row in rows_of(tiny.work(manifest, model, ["em-tok"], **grid), tmp_path):
        how = row.steps, row.options.get("decode"), row.options.get("beam_size")
        texts.setdefault(how, {})[row.id] = row.adapted_text
    assert list(texts) == [(1, None, None), (2, None, None), *((k, "beam", w) for w in (None, 16) for k in (1, 2))]
    assert texts[2, None, None] != texts[2, "beam", None] != texts[2, "beam", 16]
    grid = {"decode": ("beam",), "steps": (1,), "limit": 2}
    alone = rows_of(tiny.work(manifest, model, ["em-tok"], **grid), tmp_path / "alone")
    assert {row.id: row.adapted_text for row in alone} == texts[1, "beam", None]


def test_a_prompt_stands_before_every_utterance(place, tmp_path):
    model, manifest = place
    prompts = ("", "names, and places")
    rows = rows_of(tiny.work(manifest, model, ["source"], initial_prompt=prompts, limit=4), tmp_path)
    plain, prompted = (
        {row.id: row.text for row in rows if row.options.get("initial_prompt", "") == p} for p in prompts
    )
    assert plain.keys() == prompted.keys()
    assert plain != prompted
    loaded = load_model(tiny.work(manifest, model).run, [("en", "transcribe", "source")])
    for u in read_corpus(manifest).first(2).utterances:
        options = settings(["source"], initial_prompt=prompts[1:])[0].options("exact")
        assert loaded.transcribe(u.samples(), replace(options, language="en")).text == prompted[u.id]


def test_nothing_is_computed_twice(place, tmp_path):
    model, manifest = place
    calls = []

    def counted(run, batches, done):
        calls.append([[u.id for u in batch.utterances] for batch in batches])
        return local(run, batches, done)

    order = [u.id for u in read_corpus(manifest).first(6).utterances]
    first = rows_of(tiny.work(manifest, model, ["source"], limit=3), tmp_path, counted)
    assert calls == [[order[:2], order[2:3]]]
    again = rows_of(tiny.work(manifest, model, ["source"], limit=3), tmp_path, counted)
    assert again == first
    assert len(calls) == 1  # not even a model was loaded
    more = rows_of(tiny.work(manifest, model, ["source"], limit=6), tmp_path, counted)
    assert calls[1] == [order[2:4], order[4:6]]
    assert more[:3] == first  # the third stands as it was, though its batch was computed once more
    assert len(read_rows(tmp_path)) == 6


def test_rows_of_another_question_are_not_taken_for_answers(place, tmp_path):
    model, manifest = place
    work = tiny.work(manifest, model, ["source"], limit=1)
    rows_of(work, tmp_path)
    batch = work.batches[0]
    for name, value in (("reference", "mended"), ("language", "de")):
        asked = replace(batch, utterances=(replace(batch.utterances[0], **{name: value}),))
        with pytest.raises(SharpenError, match=rf"has the {name} .*, but now it is '{value}'; give another folder"):
            rows_of(replace(work, batches=(asked,)), tmp_path)


def test_other_weights_or_other_audio_of_the_same_name_are_not_taken_for_these(place, tmp_path):
    _, manifest = place
    model = tiny.checkpoint(tmp_path)
    corpus = tmp_path / "copy"
    shutil.copytree(manifest.parent, corpus)
    work = tiny.work(corpus / "manifest.jsonl", model, ["source"], limit=2)
    rows = rows_of(work, tmp_path / "out")
    assert all(len(row.audio) == len(row.weights) == 12 for row in rows)
    u = work.batches[0].utterances[0]
    content = u.path.read_bytes()
    tiny.wav(u.path, 0.2 * np.random.default_rng(9).standard_normal(6400))
    with pytest.raises(SharpenError, match=rf"{u.id} by .* has the audio .*; give another folder to --out"):
        rows_of(work, tmp_path / "out")
    u.path.write_bytes(content)
    assert rows_of(work, tmp_path / "out") == rows
    write_openai(small_model(), model)
    with pytest.raises(SharpenError, match=r"has the weights .*; give another folder to --out"):
        rows_of(work, tmp_path / "out")
    model.unlink()
    u.path.unlink()
    assert rows_of(work, tmp_path / "out") == rows  # what is answered needs neither


def test_an_utterance_that_cannot_be_read_stops_nothing(tmp_path):
    model, manifest = tiny.checkpoint(tmp_path), tiny.corpus(tmp_path / "noises", 4, duration=1.0)
    work = tiny.work(manifest, model, ["source"])
    bad = work.batches[0].utterances[0]
    sound = bad.path.read_bytes()
    bad.path.write_bytes(b"no sound at all")
    rows = rows_of(work, tmp_path / "out")
    assert [bool(row.failed) for row in rows] == [True, False, False, False]
    assert "alone" not in rows[1].trace
    bad.path.write_bytes(sound)
    again = rows_of(work, tmp_path / "out")
    assert not any(row.failed for row in again)
    assert again[1:] == rows[1:]
    tiny.wav(bad.path, np.zeros(31 * 16000))
    (failed,) = (row for row in rows_of(work, tmp_path / "other") if row.failed)
    assert "31.0 s of audio" in failed.failed


def test_a_batch_that_fails_is_tried_one_by_one(place, tmp_path, monkeypatch):
    model, manifest = place
    work = tiny.work(manifest, model, ["source"], limit=4)
    plain = rows_of(work, tmp_path / "plain")
    cursed = work.batches[0].utterances[1].id
    answers = room._answers

    def sometimes(model, run, batch, together):
        if any(u.id == cursed for u, _ in together):
            raise RuntimeError("out of memory")
        return answers(model, run, batch, together)

    monkeypatch.setattr(room, "_answers", sometimes)
    rows = rows_of(work, tmp_path / "out")
    assert [row.failed for row in rows] == ["", "RuntimeError: out of memory", "", ""]
    assert rows[0].trace["alone"] == "the batch failed: out of memory"
    assert [row.text for row in rows[2:]] == [row.text for row in plain[2:]]
    with Store(tmp_path / "out") as store:
        assert len(store.rows) == 3  # the failed one is missing: the next run tries it


def test_a_language_the_model_lacks_is_refused_before_anything_is_computed(place, tmp_path):
    model, _ = place
    with pytest.raises(SharpenError, match="English-only model cannot transcribe 'de'"):
        rows_of(tiny.work(tiny.corpus(tmp_path, 2, language="de"), model), tmp_path / "out")


def test_noise_is_named_in_the_row(place, tmp_path):
    model, manifest = place
    corpus = read_corpus(manifest)
    parts = [Part(corpus), Part(corpus.corrupted("GS", 0.0), "GS", 0.0)]
    rows = rows_of(plan(parts, settings(["source"]), Run(str(model), batch_size=2), 2), tmp_path)
    assert [(row.domain, row.options.get("noise"), row.options.get("snr")) for row in rows[1:3]] == [
        ("clean", None, None),
        ("GS", "GS", 0.0),
    ]
    assert [row.id for row in rows[:2]] == [row.id for row in rows[2:]]


def test_draws_of_a_noise_are_columns_of_their_own(place, tmp_path):
    """The first draw is what a run without them has, so its rows are found again."""
    model, manifest = place
    noise = ["--noise", "GS", "--snr", "0", "--limit", "2"]
    command = ["evaluate", str(manifest), "--model", str(model), "--methods", "source", *noise, "--out", str(tmp_path)]
    assert main(command) == 0
    before = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    assert main([*command, "--noise-draws", "0,2"]) == 0
    after = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    assert after.startswith(before)
    rows = [json.loads(line) for line in after.splitlines()]
    assert [row["options"].get("noise_draw") for row in rows] == [None, None, 2, 2]
    assert [row["id"] for row in rows[:2]] == [row["id"] for row in rows[2:]]
    (found,) = group_lines(read([tmp_path])).values()
    assert [c.key for c in found[0].cells] == ["GS 0 dB", "GS 0 dB, draw 2"]


def test_a_killed_run_resumes_to_the_same_rows(place, tmp_path):
    model, manifest = place
    methods = ("source", "em-tok", "em-tok-b")
    rows_of(tiny.work(manifest, model, methods), tmp_path / "whole")
    arguments = ["evaluate", manifest, "--methods", ",".join(methods), "--samples", 2, "--steps-at", "1,2"]
    arguments += ["--lr", 0.05, "--model", model, "--batch-size", 2, "--threads", 1, "--out", tmp_path / "killed"]
    path = tmp_path / "killed" / "rows.jsonl"
    process = subprocess.Popen(tiny.command(*arguments, "--quiet"), stderr=subprocess.DEVNULL)
    while not path.exists() or path.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    os.truncate(path, path.stat().st_size - 100)  # as if the kill had come in the middle of a line
    before = path.read_bytes()
    kept = before[: before.rindex(b"\n") + 1]
    assert kept.count(b"\n") < 29
    done = tiny.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "em-tok-b · 2 steps" in done.stdout
    assert path.read_bytes().startswith(kept)
    assert tiny.found(path.parent) == tiny.found(tmp_path / "whole")
    assert len(tiny.found(path.parent)) == 6 * (1 + 2 + 2)


def test_the_command_lists_what_failed_and_exits_with_1(tmp_path):
    model, manifest = tiny.checkpoint(tmp_path), tiny.corpus(tmp_path / "noises", 3, duration=1.0)
    (tmp_path / "noises" / "audio" / "u01.wav").write_bytes(b"no sound")
    arguments = ["evaluate", manifest, "--methods", "source", "--model", model, "--out", tmp_path / "out"]
    done = tiny.run(*arguments)
    assert done.returncode == 1
    assert "1 failed; the same command tries them again:\n  noises u01 (source)" in done.stderr
    assert "3/3" in done.stderr
    assert "source" in done.stdout
    assert tiny.run(*arguments, "--model", "bass", "--limit", 1).returncode == 2


def test_an_unknown_model_is_told_at_once(place, tmp_path):
    work = tiny.work(place[1], place[0])
    with pytest.raises(SharpenError, match="unknown model 'bass'"):
        load_model(replace(work.run, model="bass"), [("en", "transcribe", "source")])
