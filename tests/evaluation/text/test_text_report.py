"""`sharpen report` of a language model's answers: accuracy, gains and what changed, in the words of tasks."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from sharpen.cli import main
from sharpen.errors import SharpenError
from sharpen.evaluation.report import document
from sharpen.evaluation.report.accuracy import times_source
from sharpen.evaluation.report.lines import group_lines
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.evaluation.runs.store import Store

KEPT = Path(__file__).parents[3] / "results" / "text" / "smollm2-135m"
SPEECH = re.compile(r"\bWER\b|[Ww]ord error|[Tt]ranscri|[Uu]tterance|\bRTF\b|\baudio\b")


def answer(method, n, right, **others):
    """A row of the item n, whose right answer is yes and whose source answer is right for even n."""
    adapts = method not in ("source", "vote")
    text, before = ("Yes." if right else "no"), ("yes" if n % 2 == 0 else "no")
    values = {
        "corpus": "task",
        "domain": "task",
        "samples": 4 * (method != "source"),
        "steps": 2 * adapts,
        "seed": 0,
        "options": {"scorer": "exact", "max_tokens": 4, "end_with": "\n", "threads": 1, "batch_size": 1},
        "source_text": before,
        "adapted_text": text if adapts else "",
        "seconds": 3.0 if adapts else 1.5,
        "trace": {"entropy": [2.0, 0.5], "H_tok": [2.0, 1.0]} if adapts else {"entropy": [2.0, 2.0]},
    } | others
    errors = ErrorCounts(substitutions=int(not right), reference=1)
    return Row(id=f"i{n:02}", speaker="", language="", duration=0.0, reference="yes", model="m", method=method,
               text=text, versions={}, errors=errors, **values)  # fmt: skip


def both(**others):
    """Ten right of twenty by the source; by em-tok-b 13: it helps four and hurts one."""
    source = [answer("source", n, n % 2 == 0, **others) for n in range(20)]
    adapted = [answer("em-tok-b", n, n != 0 and (n % 2 == 0 or n in (1, 3, 5, 7)), **others) for n in range(20)]
    return [*source, *adapted]


def written(folder, rows):
    with Store(folder) as store:
        store.add(rows)
    return str(folder)


def test_kept_rows_have_a_report(capsys):
    assert main(["report", str(KEPT), "--against", "source,vote"]) == 0
    page = capsys.readouterr().out
    assert "| vote | 200 | 31.00 [24.50, 37.50] |" in page
    assert re.search(r"\| vote \| \*\*−42.00\*\* \[−49.00, −35.00\] \| 0.00\d \| 2 / 86 / 112 \| 200 \|", page)
    assert "### copying-shots-test: against vote" in page
    assert "normaliser" not in page
    assert not SPEECH.search(page)


def test_tables_and_pages(tmp_path, capsys):
    folder = written(tmp_path / "run", both())
    files = {kind: tmp_path / f"r.{kind}" for kind in ("html", "markdown", "json", "latex")}
    assert main(["report", folder, *(word for kind, path in files.items() for word in (f"--{kind}", str(path)))]) == 0
    page = files["markdown"].read_text()
    assert re.search(r"\| em-tok-b \| 20 \| 65.00 \[45.00, 85.00\] \|", page)
    assert re.search(r"\| em-tok-b \| \+15.00 \[.*?\] \| 0.9\d\d \| 4 / 1 / 15 \| 20 \|", page)
    assert "| em-tok-b | 20 | 65.00 | 3.00 | 2.0 | 2.00 | 0.50 | 100.0 | 0 | 65.00 | 65.00 | 1 |" in page
    assert "| i01 | helped | yes | no | Yes. |" in page
    assert "| i00 | hurt | yes | Yes. | no |" in page
    html = files["html"].read_text()
    assert "adapted to each prompt separately, without its answer" in html
    assert "Mean over 20 items and their hypotheses" in html
    assert "<svg" in html
    for text in (page, html.split("</style>")[1], files["latex"].read_text()):
        assert not SPEECH.search(text)
    (task,) = json.loads(files["json"].read_text())["tasks"]
    source, adapted = task["lines"]
    assert (source["domains"]["task"]["value"], adapted["domains"]["task"]["value"]) == (0.5, 0.65)
    gain = adapted["against"]["source"]
    assert (round(gain["gain"]["value"], 6), gain["helped"], gain["hurt"]) == (0.15, 4, 1)
    assert gain["gain"]["low"] < 0.15 < gain["gain"]["high"]
    assert adapted["times_source"] == 2.0


def test_domains_seeds_and_settings():
    rows = [row for name in ("a", "b") for row in both(domain=name)]
    rows += [replace(row, seed=1) for row in rows if row.method == "em-tok-b"]
    rows += [answer("source", n, True, domain="a", options={"scorer": "exact"}) for n in range(20)]
    page = document.as_markdown(document.build(rows))
    assert "| method | items | a | b | average |" in page
    assert "| source · end with \\\\n · max tokens 4" in page
    assert "| source · end with none · max tokens 64" in page
    assert re.search(r"\| em-tok-b \|.* 2: 65.00 ± 0.00 \|", page)


def test_without_a_source_its_answers_in_the_rows_are_the_source():
    rows = [row for row in both() if row.method != "source"]
    page = document.as_markdown(document.build(rows))
    assert re.search(r"\| em-tok-b \| source, of the same rows \| \+15.00 .*\| 4 / 1 / 15 \|", page)


def test_a_source_that_answered_in_another_way_is_not_the_source():
    rows = [row if row.method == "source" else replace(row, options={**row.options, "max_tokens": 8}) for row in both()]
    page = document.as_markdown(document.build(rows))
    assert re.search(r"\| em-tok-b \| source, of the same rows \| \+15.00 ", page)


def test_a_scorer_of_ones_own_is_not_run(tmp_path):
    own = tmp_path / "own.py"
    own.write_text("raise SystemExit('a report ran it')\n")
    rows = [replace(row, options={**row.options, "scorer": f"{own}:f"}) for row in both()]
    page = document.as_markdown(document.build(rows))
    assert "| 4 / 1 / 15 |" in page  # from what the run stored
    alone = document.as_markdown(document.build([row for row in rows if row.method != "source"]))
    assert "against source" not in alone
    assert "| em-tok-b | 20 | 65.00 [45.00, 85.00] |" in alone


def test_a_recount_that_differs_is_said():
    rows = [replace(row, errors=ErrorCounts(substitutions=1, reference=1)) for row in both()]
    (note,) = document.build(rows).notes
    assert note.startswith("Rows with error counts that differ from a recount of their texts: 23.")


def test_time_is_compared_with_a_source_on_the_same_items_and_machine():
    rows = both()
    slow = [replace(row, seconds=99.0) if row.id == "i19" and row.method == "source" else row for row in rows]
    fewer = [row for row in slow if row.method == "source" or row.id != "i19"]
    source, adapted = group_lines(fewer)["task"]
    assert times_source(adapted, [source, adapted]) == 2.0
    assert times_source(source, [source, adapted]) == 1.0
    other = [replace(row, options={**row.options, "batch_size": 4}) if row.method == "source" else row for row in rows]
    source, adapted = group_lines(other)["task"]
    assert times_source(adapted, [source, adapted]) is None
    assert times_source(adapted, [adapted]) is None


def test_speech_and_text_are_two_reports(tmp_path, capsys):
    speech = Row("librispeech", "clean", "u", "", "en", 1.0, "a", "base", "source", 0, 0, 0, {}, {}, text="a",
                 normaliser="none/1", errors=ErrorCounts(reference=1))  # fmt: skip
    folders = [written(tmp_path / "speech", [speech]), written(tmp_path / "text", both())]
    assert main(["report", *folders]) == 2
    error = capsys.readouterr().err
    assert "librispeech is speech, and task a task of a language model; make one report for each" in error
    assert main(["report", folders[1], "--frontier", str(tmp_path / "f.png")]) == 2
    assert "--frontier draws word error rates of speech" in capsys.readouterr().err
    with pytest.raises(SharpenError, match="unknown method 'vote'"):
        document.build([speech], ["vote"])
