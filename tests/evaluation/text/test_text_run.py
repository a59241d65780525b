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


SMALL = ("--steps", "1", "--samples", "3")


def run(folder, *arguments):
    return main(["evaluate-text", "-q", "--model", folder, "--max-tokens", "4", *map(str, arguments)])


def test_rows_and_resume(folder, task, tmp_path, capsys):
    own = tmp_path / "own.py"
    own.write_text("def even(answer, right):\n    return len(answer) % 2 == 0\n")
    out, methods = tmp_path / "run", ("--methods", "source,vote,beam,greedy-em,em-seq,em-tok,em-tok-b")
    command = (task, "--out", out, *methods, "--scorer", f"{own}:even", "--batch-size", 2, *SMALL)
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
    assert run(folder, tmp_path / "c.jsonl", "--out", tmp_path / "run", "--methods", "source,em-tok", *SMALL) == 0
    rows = read_rows(tmp_path / "run")
    assert {row.options["scorer"] for row in rows} == {"choice"}
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


def test_draws_of_another_seed_are_other_rows(folder, task, tmp_path, capsys):
    out = ("--out", tmp_path / "run", "--methods", "source,vote", "--decode", "sample", "--samples", 3)
    assert run(folder, task, *out, "--seed", 1) == 0
    assert run(folder, task, *out, "--seed", 2) == 0
    rows = read_rows(tmp_path / "run")
    by = {}
    for row in rows:
        by.setdefault((row.method, row.seed), []).append(row.text)
    assert [*by] == [("source", 1), ("vote", 1), ("source", 2), ("vote", 2)]
    assert by["source", 1] != by["source", 2]
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"{tmp_path / 'run'}: 10 rows; sharpen report {tmp_path / 'run'} makes the tables and figures"
    )
    greedy = ("--out", tmp_path / "greedy", "--methods", "source")
    assert run(folder, task, *greedy, "--seed", 1) == run(folder, task, *greedy, "--seed", 2) == 0
    assert len(read_rows(tmp_path / "greedy")) == 5  # nothing is drawn: the rows are the same


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "source", "--temperature", 0.3), "temperature is 0.3, but decode is 'greedy'"),
        (("--methods", "source,em-tok", "--beam-size", 9), "beam_size is 9, but decode is 'greedy': set decode='beam'"),
        (("--methods", "vote,beam", "--decode", "sample"), "vote and beam search in their own way"),
        (("--methods", "source", "--lr", 1), "--lr needs an adapting method, e.g. --methods source,em-tok-b"),
        (("--methods", "source", "--samples", 4, "--steps", 2), "--steps, --samples need an adapting method"),
        (("--methods", "vote", "--steps", 2), "--steps needs an adapting method"),
        (("--decode", "vote"), "use the method vote instead"),
        (("--scorer", "choice", "--decode", "sample"), "compares log-probabilities: leave it out"),
    ],
)
def test_options_that_do_nothing_are_refused(folder, task, tmp_path, capsys, arguments, message):
    assert run(folder, task, "--out", tmp_path / "run", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_temperature_of_a_vote(folder, task, tmp_path):
    assert run(folder, task, "--out", tmp_path / "v", "--methods", "source,vote", "--temperature", 0.5) == 0
    found = {row.method: row.options.get("temperature") for row in read_rows(tmp_path / "v")}
    assert found == {"source": None, "vote": 0.5}


def row(method, n, wrong, steps=0, entropy=(1.0, 0.5), seed=0, **options):
    return Row("t", "t", str(n), "", "", 0.0, "x", "m", method, 4 * bool(steps), steps, seed,
               {"scorer": "exact", **options}, {}, seconds=2.0 + 3 * bool(steps),
               errors=ErrorCounts(substitutions=wrong, reference=1), trace={"entropy": list(entropy)})  # fmt: skip


def test_the_table():
    rows = [row("source", n, n % 2) for n in range(20)] + [row("em-tok", n, int(n == 1), 3) for n in range(20)]
    (head, source, adapted), = tables(rows).values()  # fmt: skip
    assert head[3] == "against source"
    assert source[:2] == ("source", "20")
    assert source[2].startswith("50.0 [")
    assert source[3:] == ("–", "–", "1.00", "–", "–", "1.0", "2.00")
    assert adapted[:2] == ("em-tok, G 4, 3 steps", "20")
    assert adapted[2].startswith("95.0 [")
    assert adapted[3].startswith("+45.0 [+")
    assert adapted[4:] == ("9 / 0", "1.00", "0.50", "0", "2.5", "5.00")


def test_lines_of_the_table_say_what_they_are():
    rows = [row("source", n, 0, decode="sample", temperature=0.5, seed=s) for n in range(4) for s in (1, 2)]
    rows += [row("source", n, 1) for n in range(4)] + [row("vote", n, 1, decode="vote") for n in range(4)]
    rows += [row("em-tok", n, 1, 3) for n in range(4)]
    (lines,) = tables(rows).values()
    assert [line[0] for line in lines[1:]] == [
        "source, decode sample, temperature 0.5, 2 seeds",
        "source, decode greedy, temperature 1",
        "vote",
        "em-tok, G 4, 3 steps",
    ]
    assert lines[1][1] == "4"  # items, each with two seeds
    assert lines[4][3] == "+0.0 [+0.0, +0.0]"  # against the source with the same search
