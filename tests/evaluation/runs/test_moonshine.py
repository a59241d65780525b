"""`sharpen evaluate` and `sharpen report` with a Moonshine model."""

from dataclasses import replace

from evaluation import tiny
from models.moonshines import random_moonshine, write_directory

from sharpen.cli import main
from sharpen.evaluation.corpora.corpus import read_corpus
from sharpen.evaluation.runs.store import read_rows
from sharpen.speech.options import Options
from sharpen.speech.transcribe import load


def test_rows_and_a_report(tmp_path, capsys):
    model, manifest = write_directory(random_moonshine(), tmp_path / "moonshine"), tiny.corpus(tmp_path / "noises", 3)
    out = str(tmp_path / "run")
    given = ["--samples", "3", "--steps", "1,2", "--lr", "0.05", "--batch-size", "2", "--guard", "off", "--quiet"]
    methods = ["--methods", "source,beam,em-tok-b"]
    assert main(["evaluate", str(manifest), "--model", str(model), *methods, *given, "--out", out]) == 0
    rows = read_rows(tmp_path / "run")
    assert sorted((row.method, row.steps) for row in rows) == sorted(
        3 * [("source", 0), ("beam", 0), ("em-tok-b", 1), ("em-tok-b", 2)]
    )
    assert not any(row.failed for row in rows)
    assert {row.model for row in rows} == {str(model)}
    speech, greedy = load(model), Options(temperature=(0.0,), no_speech_threshold=None)
    greedy = replace(greedy, decode="greedy", adapt=None)
    for utterance in read_corpus(manifest).utterances:
        own = {(row.method, row.steps): row for row in rows if row.id == utterance.id}
        assert own["source", 0].text == speech.transcribe(utterance.samples(), greedy).text
        assert own["em-tok-b", 2].source_text == own["source", 0].text
        assert len(own["em-tok-b", 2].trace["H_tok"]) == 2
        assert own["em-tok-b", 2].trace["H_tok"][1] < own["em-tok-b", 2].trace["H_tok"][0]
    assert any(row.text != row.source_text for row in rows if row.steps == 2)
    capsys.readouterr()
    assert main(["report", out]) == 0
    shown = capsys.readouterr().out
    assert "em-tok-b" in shown
    assert f"model {model}" in shown
