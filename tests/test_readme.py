"""What the README tells a newcomer to type, typed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sharpen.errors import WeightsError

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (sharpen .+?)(?:  #.*)?$", README, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A scratch folder that looks like a clone; commands run there one after the other, as a reader would."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture
def here(clone, monkeypatch):
    monkeypatch.chdir(clone)
    return clone


def test_there_are_commands_to_run():
    assert len(COMMANDS) >= 5


def test_every_kind_of_model_is_fetched_and_then_used():
    for name in ("moonshine-tiny", "stories15M"):
        fetched = COMMANDS.index(f"sharpen models fetch {name}")
        assert any(f"--model {name}" in command for command in COMMANDS[fetched + 1 :])


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(here, command):
    environment = {**os.environ, "SHARPEN_CACHE": str(here / "cache")}
    line = command.replace("sharpen", f"{shlex.quote(sys.executable)} -m sharpen", 1)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment)
    nothing = ("reach", "could not download", "there is no", "download failed", "is not on this machine")
    fetched = re.search("fetch|generate|moonshine", command)
    if fetched and done.returncode == 2 and any(why in done.stderr for why in nothing):
        pytest.skip(f"nothing to fetch from: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if command.startswith("sharpen transcribe examples/ferry.flac") and "--output-dir" not in command:
        assert "leaves at half" in done.stdout


def examples():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, code in enumerate(
            re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), re.DOTALL), 1
        ):
            if "http://127.0.0.1" in code:
                continue  # tests/serving/test_docs.py has a server for it
            # Ten steps with whisper-base: what the README shows first takes longest.
            long = [pytest.mark.long] if page.name == "README.md" and page.parent == ROOT else []
            yield pytest.param(code, id=f"{page.relative_to(ROOT)} {number}", marks=long)


@pytest.mark.parametrize("code", list(examples()))
def test_python_examples_run(here, capsys, code):
    try:
        exec(compile(code, "an example", "exec"), {})
    except WeightsError as error:
        if "is not on this machine" not in str(error):  # what `sharpen models fetch` has not fetched
            raise
        pytest.skip(str(error))
    assert "print(" not in code or len(capsys.readouterr().out.split()) > 5


def test_every_example_in_python_is_fenced_as_one_that_is_run():
    assert any("load_text" in example.values[0] for example in examples())
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        fences = re.findall(r"^```(\w+)\n(?=import |from )", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences) <= {"python"}, page.name


def test_every_link_leads_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tree_in_contributing_is_the_tree():
    """CONTRIBUTING names every source file, and no file that does not exist."""
    for path in (ROOT / "src" / "sharpen").rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert re.search(rf"\b{re.escape(path.name)}\b", CONTRIBUTING), (
                f"CONTRIBUTING.md does not mention {path.name}"
            )
    folders = [ROOT / folder for folder in ("src", "tests", "examples", "scripts")]
    names = {path.name for folder in folders for path in folder.rglob("*.py")}
    for name in re.findall(r"\b(\w+\.py)\b", README + CONTRIBUTING):
        assert name in names, f"there is no {name}"
