"""`make setup` with stand-ins for Python, which write down what they are asked to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
PYTHON = """#!/bin/sh
case "$1 $2" in
-c*) case "$2" in *hashlib*) echo NAME ;; esac; exit STATUS ;;
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo "NAME venv" >>log ;;
"-m pip") echo "NAME pip" >>log ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "log"):
        (tmp_path / name).write_text("")

    def run(name, status=0):
        """The exit code of `make setup` with that interpreter, and what it did."""
        python = tmp_path / name
        python.write_text(PYTHON.replace("NAME", name).replace("STATUS", str(status)))
        python.chmod(0o755)
        (tmp_path / "log").write_text("")
        done = subprocess.run(["make", "setup", f"PYTHON=./{name}"], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, (tmp_path / "log").read_text().splitlines()

    return run


def test_another_interpreter_makes_the_environment_again(setup, tmp_path):
    assert setup("a") == (0, ["a venv", "a pip"])
    old = tmp_path / ".venv" / "old"
    old.write_text("")
    assert setup("a") == (0, [])
    assert old.exists()
    assert setup("b") == (0, ["b venv", "b pip"])
    assert not old.exists()
    assert setup("a") == (0, ["a venv", "a pip"])


def test_new_requirements_are_installed_into_the_same_environment(setup, tmp_path):
    setup("a")
    old = tmp_path / ".venv" / "old"
    old.write_text("")
    stamp = next((tmp_path / ".venv").glob(".ready*"))
    os.utime(stamp, (0, 0))
    assert setup("a") == (0, ["a venv", "a pip"])
    assert old.exists()


def test_an_interpreter_that_is_too_old_changes_nothing(setup, tmp_path):
    setup("a")
    code, log = setup("b", status=1)
    assert code != 0
    assert log == []
    assert (tmp_path / ".venv" / "bin" / "python").exists()
