"""The published table is what the rows give."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_table_of_language_models_is_what_its_rows_give():
    spec = importlib.util.spec_from_file_location("text_table", ROOT / "scripts" / "text_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "generating.md").read_text(encoding="utf-8").split("## What it does")[1]
    printed = [line for line in page.splitlines() if line.startswith("|")]
    folders = [ROOT / "results" / "text" / name for name in ("source-tune", "one-step")]
    assert printed == [line for folder in folders for line in script.markdown(str(folder))]
