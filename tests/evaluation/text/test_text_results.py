"""The published table is what the rows give."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from sharpen.cli import evaluate_text
from sharpen.cli.parser import Parser
from sharpen.evaluation.runs.store import read_rows
from sharpen.evaluation.text.run import _blank

ROOT = Path(__file__).parents[3]


def test_the_table_of_language_models_is_what_its_rows_give():
    spec = importlib.util.spec_from_file_location("text_table", ROOT / "scripts" / "text_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "generating.md").read_text(encoding="utf-8").split("## What it does")[1]
    printed = [line for line in page.splitlines() if line.startswith("|")]
    folders = [ROOT / "results" / "text" / name for name in ("source-tune", "smollm2-135m", "vote")]
    assert printed == [line for folder in folders for line in script.markdown(str(folder))]


@pytest.mark.parametrize("name", ["source-tune", "smollm2-135m", "vote"])
def test_kept_rows_are_found_by_the_commands_that_made_them(name):
    """A row that a command no longer finds would be computed again, beside itself."""
    page = (ROOT / "docs" / "generating.md").read_text(encoding="utf-8").replace("\\\n", " ")
    (command,) = re.findall(rf"^    sharpen evaluate-text (.* --out results/text/{name})$", page, re.MULTILINE)
    parser = Parser()
    evaluate_text.arguments(parser)
    run = evaluate_text.make_run(parser.parse_args(shlex.split(command)))
    wanted = {
        _blank(run, task, method, item).key
        for task in run.tasks
        for method in run.methods
        for item in task.items[: run.limit]
    }
    kept = {row.key: row for row in read_rows(ROOT / "results" / "text" / name)}
    assert wanted == {*kept}
