"""`sharpen serve` as a process, and clients of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import openai
from speechlike import EXAMPLES

LETTER = (EXAMPLES / "letter.flac").read_bytes()
SAID = "broken window"


class Running:
    """A server that a test has started."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "sharpen", "serve", "--model", "tiny.en", "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self.url = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"http://\S+", line):
                self.url = found[0]
                break
        assert self.url, "".join(self.said)
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, key: str = "none", retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=retries, timeout=120, _strict_response_validation=True
        )

    def post(self, path: str = "/v1/audio/transcriptions", file: bytes | None = LETTER, **fields: str):
        files = {} if file is None else {"file": ("letter.flac", file)}
        data = {"model": "tiny.en", "effort": "plain", **fields}
        return httpx2.post(self.url + path, data=data, files=files, timeout=120)

    def metric(self, name: str) -> float:
        text = httpx2.get(f"{self.url}/metrics").text
        return float(re.search(rf"^sharpen_{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    def media_processes(self) -> list[int]:
        """The processes that decode files: the children of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if "media_process" in Path(f"/proc/{pid}/cmdline").read_text()]

    def kill_media(self) -> None:
        for pid in self.media_processes():
            os.kill(pid, signal.SIGKILL)

    def replicas(self) -> list[int]:
        """The processes of Ray Serve's replicas: grandchildren of the server, if Ray was started by it."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, parent = path.with_name("cmdline").read_bytes(), _parent(int(path.parent.name))
                if name.startswith(b"ray::ServeReplica") and _parent(parent) == self.process.pid:
                    found.append(int(path.parent.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def memory(self, what: str = "VmRSS") -> float:
        """MB in use; VmHWM: the most so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+)", text)[1]) / 1024


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
