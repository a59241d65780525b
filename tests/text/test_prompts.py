"""`sharpen generate` from the command line, and its files."""

import io
import json
import shutil
from pathlib import Path

import pytest
from text.small_text import write_model

from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.text.prompts import read_prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": "one", "prompt": "abc"}, {"prompt": "defg"}, {"id": 7, "prompt": "x"}]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    return path


def run(*arguments):
    return main(["generate", "-q", *map(str, arguments)])


def answers(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_prompt_on_the_command_line(folder, tmp_path, capsys, monkeypatch):
    assert run("--model", folder, "--prompt", "abc", "--max-tokens", 6) == 0
    plain = capsys.readouterr().out
    (tmp_path / "p.txt").write_text("abc\n")
    assert run("--model", folder, "--prompt", f"@{tmp_path / 'p.txt'}", "--max-tokens", 6) == 0
    assert capsys.readouterr().out == plain
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\n"))
    assert run("--model", folder, "-p", "-", "-p", "x", "--max-tokens", 6) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"==> standard input <==\n{plain}==> prompt 2 <==\n")


def test_explain(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method = ("--method", "em-tok-b", "--steps", 2, "--samples", 3, "--lr", 0.02, "--explain")
    assert run("--model", folder, "--prompt", "abc", "--max-tokens", 6, *method) == 0
    err = capsys.readouterr().err
    assert "em-tok-b · 2 steps" in err
    assert "before the first update:" in err
    assert "generate.html shows it as a page" in err
    assert "Hypotheses after 1 update" in (tmp_path / "generate.html").read_text()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_file_of_prompts_is_resumed(folder, prompts, tmp_path, capsys, batch):
    out = tmp_path / "answers.jsonl"
    method = ("--method", "em-tok", "--steps", 1, "--samples", 2, "--max-tokens", 5, "--batch-size", batch)
    command = ("--model", folder, "--input", prompts, "--output", out, *method)
    assert run(*command) == 0
    whole = answers(out)
    assert [entry["id"] for entry in whole] == ["one", "3", "7"]
    assert set(whole[0]) >= {"prompt", "answer", "source", "adapted", "refused", "H_tok", "finished", "settings"}
    assert whole[0]["settings"]["method"] == "em-tok"
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(lines[0] + lines[1][:20])  # a crash in the second line
    assert run(*command) == 0
    assert [entry["id"] for entry in answers(out)] == ["one", "3", "7"]
    assert [entry["answer"] for entry in answers(out)] == [entry["answer"] for entry in whole]
    assert out.read_bytes().startswith(lines[0])
    capsys.readouterr()
    assert run(*command) == 0
    assert "all 3 prompts are answered" in capsys.readouterr().err
    assert run(*command[:-1], batch, "--lr", 0.5) == 2
    assert "other settings" in capsys.readouterr().err
    prompts.write_text(json.dumps({"id": "one", "prompt": "another"}))
    assert run(*command) == 2
    assert "another prompt with the id 'one'" in capsys.readouterr().err


def test_a_prompt_that_fails_does_not_stop_the_others(folder, prompts, tmp_path, capsys):
    with prompts.open("a") as file:
        file.write(json.dumps({"id": "long", "prompt": "a" * 200}))
    out = tmp_path / "answers.jsonl"
    assert run("--model", folder, "--input", prompts, "--output", out, "--batch-size", 4, "--max-tokens", 4) == 1
    assert "long: the prompt of input 0 leaves no room" in capsys.readouterr().err
    assert [entry["id"] for entry in answers(out)] == ["one", "3", "7"]


def test_answers_of_other_weights_are_not_continued(folder, prompts, tmp_path, capsys):
    model, out = tmp_path / "model", tmp_path / "answers.jsonl"
    shutil.copytree(folder, model)
    command = ("--model", model, "--input", prompts, "--output", out, "--max-tokens", 3)
    assert run(*command) == 0
    before = out.read_bytes()
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert run(*command) == 2
    assert f"an answer of other weights: {model} had the checksum" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_a_folder_of_a_speech_model(folder, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper", "is_encoder_decoder": True}))
    (tmp_path / "model.safetensors").write_bytes((Path(folder) / "model.safetensors").read_bytes())
    assert run("--model", tmp_path, "--prompt", "a") == 2
    assert f"{tmp_path} is a speech model; use `sharpen transcribe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to answer"),
        (("--prompt", "a", "--input", "x"), "contradict each other"),
        (("--prompt", "a", "--output", "x"), "--output needs --input"),
        (("--prompt", "@/nowhere"), "cannot read /nowhere"),
        (("--input", "/nowhere"), "cannot read /nowhere"),
        (("--prompt", "a", "--steps", "3"), "--steps needs an adapting method"),
        (("--prompt", "a", "--votes", "3"), "votes is 3, but decode is 'greedy': set decode='vote'"),
        (("--prompt", "a", "--votes", "16"), "votes is 16, but decode is 'greedy'"),  # also the default does nothing
        (("--prompt", "a", "--method", "beam", "--decode", "sample"), "as wide as --samples"),
        (("--prompt", "a", "--model", "nonsense"), "not one of stories15M, smollm2-135m"),
        (("--prompt", "a", "--model", "tiny.en"), "a speech model; use `sharpen transcribe --model tiny.en`"),
    ],
)
def test_bad_usage(arguments, message, capsys):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no prompts"), ("[1]", "expected a JSON object"), ("{", "not JSON"), ('{"id": 1}', 'a text "prompt"'),
     ('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', "taken by an earlier line")],
)  # fmt: skip
def test_files_that_are_no_prompts(tmp_path, text, message):
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(SharpenError, match=message):
        read_prompts(tmp_path / "p.jsonl")
