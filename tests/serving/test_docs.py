"""What README.md and docs/serving.md tell a reader to send, sent."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving.running import Running

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "serving.md"]
ADDRESS = "http://127.0.0.1:8000"


def found(pattern):
    texts = [match for page in PAGES for match in re.findall(pattern, page.read_text(encoding="utf-8"), re.S | re.M)]
    return [text for text in texts if ADDRESS in text]


@pytest.fixture(scope="module")
def server():
    with Running() as running:
        yield running


@pytest.mark.parametrize("command", found(r"^\s*(curl [^\n]+)"))
def test_curl(server, command):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    line = command.replace("curl ", "curl -sS --fail-with-body ", 1).replace(ADDRESS, server.url)
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("1952" if "bakery" in command else "Aberdeen") in done.stdout
    if "stream" not in command and "srt" not in command:
        assert json.loads(done.stdout)["adaptation"]["complete"]


@pytest.mark.parametrize("code", found(r"^```python\n(.+?)^```"))
def test_python(server, code, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(code.replace(ADDRESS, server.url), "an example", "exec"), {})
    assert "Aberdeen" in capsys.readouterr().out


def test_there_are_snippets():
    assert len(found(r"^\s*(curl [^\n]+)")) >= 5
    assert len(found(r"^```python\n(.+?)^```")) >= 2
