"""Methods over tasks, with a small random model."""

import json
import re

import pytest
from text.small_text import write_model

from sharpen.cli import main
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.evaluation.runs.store import read_rows
from sharpen.evaluation.text.table import tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "task.jsonl"
    items = [{"id": str(n), "prompt": "abc"[n % 3] * (n + 1), "answer": "q"} for n in range(5)]
    path.write_text("\n".join(map(json.dumps, items)))
    return path


def run(folder, *arguments):
    small = ("--steps", "1", "--samples", "3", "--max-tokens", "4")
    return main(["evaluate-text", "-q", "--model", folder, *map(str, arguments), *small])


def test_rows_and_resume(folder, task, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("def even(answer, right):\n    return len(answer) % 2 == 0\n")
    out, methods = tmp_path / "run", ("--methods", "source,vote,beam,greedy-em,em-seq,em-tok,em-tok-b")
    command = (task, "--out", out, *methods, "--scorer", f"{own}:even", "--batch-size", 2)
    assert run(folder, *command) == 0
    rows = read_rows(out)
    assert len(rows) == 35
    by = {(row.method, row.id): row for row in rows}
    for row in rows:
        assert row.errors == ErrorCounts(substitutions=len(row.text) % 2, reference=1)
        adapts = row.method.startswith(("em", "greedy"))
        assert (row.steps, "H_tok" in row.trace) == (int(adapts), adapts)
        assert row.source_text == by["source", row.id].text or row.method in ("vote", "beam")
        assert len(row.trace["entropy"]) == 2
    assert (by["vote", "0"].samples, by["beam", "0"].samples, by["source", "0"].samples) == (3, 3, 0)
    assert by["greedy-em", "0"].samples == 1
    assert len(by["em-tok", "0"].trace["H_tok"]) == 1
    table = capsys.readouterr().out
    right = sum(not row.errors.errors for row in rows if row.method == "source")
    assert re.search(rf"^source +5 +{100 * right / 5:.1f} ", table, re.MULTILINE)
    content = (out / "rows.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    (out / "rows.jsonl").write_bytes(b"".join(lines[:9]) + lines[9][:50])
    assert run(folder, *command) == 0
    again = {row.key: row.text for row in read_rows(out)}
    assert again == {row.key: row.text for row in rows}
    assert (out / "rows.jsonl").read_bytes().startswith(b"".join(lines[:9]))
    capsys.readouterr()
    task.write_text(task.read_text().replace('"abc"', '"abd"').replace('"a"', '"z"'))
    assert run(folder, *command) == 2
    assert "another prompt" in capsys.readouterr().err


def test_multiple_choice(folder, tmp_path, capsys):
    items = [{"prompt": f"p{n}", "answer": "ab", "choices": ["ab", "cd", "e"]} for n in range(4)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, items)))
    assert run(folder, tmp_path / "c.jsonl", "--out", tmp_path / "run", "--methods", "source,em-tok") == 0
    rows = read_rows(tmp_path / "run")
    assert {row.normaliser for row in rows} == {"choice"}
    assert {row.text for row in rows} <= {"ab", "cd", "e"}
    assert all(row.errors.errors == (row.text != "ab") for row in rows)
    assert run(folder, tmp_path / "c.jsonl", "--out", tmp_path / "v", "--methods", "vote") == 2
    assert "does not apply" in capsys.readouterr().err


def test_failures_and_bad_usage(folder, tmp_path, capsys):
    items = [{"id": "short", "prompt": "a", "answer": "x"}, {"id": "long", "prompt": "a" * 200, "answer": "x"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, items)))
    command = (tmp_path / "t.jsonl", "--out", tmp_path / "run", "--methods", "source", "--batch-size", 2)
    assert run(folder, *command) == 1
    assert "t long by source: the prompt of input 0 leaves no room" in capsys.readouterr().err
    assert [row.id for row in read_rows(tmp_path / "run")] == ["short"]
    assert run(folder, "made:sorting", "--out", tmp_path / "x", "--methods", "best") == 2
    assert run(folder, tmp_path / "t.jsonl", "--out", tmp_path / "x", "--scorer", "choice") == 2
    assert "not every item has choices" in capsys.readouterr().err


def row(method, n, wrong, steps=0, entropy=(1.0, 0.5)):
    return Row("t", "t", str(n), "", "", 0.0, "x", "m", method, 4 * bool(steps), steps, 0, {}, {}, seconds=2.0,
               errors=ErrorCounts(substitutions=wrong, reference=1), trace={"entropy": list(entropy)})  # fmt: skip


def test_the_table():
    rows = [row("source", n, n % 2) for n in range(20)] + [row("em-tok", n, int(n == 1), 3) for n in range(20)]
    (head, source, adapted), = tables(rows).values()  # fmt: skip
    assert head[3] == "against source"
    assert source[:2] == ("source", "20")
    assert source[2].startswith("50.0 [")
    assert source[3:] == ("–", "–", "1.00", "–", "–", "2.00")
    assert adapted[:2] == ("em-tok, G 4, 3 steps", "20")
    assert adapted[2].startswith("95.0 [")
    assert adapted[3].startswith("+45.0 [+")
    assert adapted[4:] == ("9 / 0", "1.00", "0.50", "0", "2.00")
