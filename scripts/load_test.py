"""Many clients at once against `sharpen serve`, a tenth of them bad, beside the same requests one at a time.

    python scripts/load_test.py --requests 300 --clients 16

Prints latency, throughput, the growth of the server's memory, how many texts differ from those of lone requests (by
rounding), and how many were crossed, that is nearer to the text of another clip. It starts two servers on the loopback
address, one after the other: one that has one window at a time, with all threads, and one with room for many. What
follows -- is for the second: `-- --engine ray --replicas 2 --threads 1`. Ends with 1 where a request was lost or
crossed, or a bad one had another answer than it should.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import time
import wave
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import httpx2

EXAMPLES = sorted(path for path in (Path(__file__).parent.parent / "examples").iterdir()
                  if path.suffix in (".flac", ".mp3", ".ogg", ".m4a"))  # fmt: skip
RATE = 4000  # of silence
ASKED = [
    {"effort": "plain"},
    {"effort": "normal"},
    {"effort": "high"},
    {"method": "em-tok", "steps": "2", "samples": "4"},
]
BAD = {  # and how each should end
    "truncated": "400",
    "wrong type": "400",
    "100 channels": "200",
    "hour of silence": "200",
    "slow": "408",
    "vanishing": "left",
}


@contextmanager
def served(model: str, *arguments: str):
    """A server's URL and process."""
    command = [sys.executable, "-m", "sharpen", "serve", "--model", model, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--queue", "256", "--busy", "1000", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+", line)))
        yield url, process
    finally:
        process.terminate()
        process.wait(60)


def memory(process: subprocess.Popen) -> float:
    """MB in use; Linux only."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


@cache
def silence(seconds: int, channels: int) -> bytes:
    """With a byte for a sample, so that an hour is no larger than an upload may be."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(1)
        out.setframerate(RATE)
        out.writeframes(b"\x80" * (channels * RATE * seconds))
    return file.getvalue()


def good(url: str, index: int) -> tuple[str, float, str]:
    """A request that must succeed: outcome, seconds and text."""
    path, fields = EXAMPLES[index % len(EXAMPLES)], ASKED[(index // 2) % len(ASKED)]
    begin = time.monotonic()
    answer = httpx2.post(f"{url}/v1/audio/transcriptions", data={"model": "whisper-1", **fields},
                         files={"file": path.read_bytes()}, timeout=600)  # fmt: skip
    took = time.monotonic() - begin
    return ("ok", took, answer.json()["text"]) if answer.status_code == 200 else (answer.text, took, "")


def bad(url: str, kind: str) -> tuple[str, float, str]:
    """A request that must not succeed, or not hurt."""
    begin = time.monotonic()
    data = EXAMPLES[0].read_bytes()
    files = {"truncated": data[:60], "wrong type": b"%PDF-1.7 no audio", "100 channels": silence(2, 100),
             "hour of silence": silence(3600, 1)}  # fmt: skip
    fields = {"model": "whisper-1", "method": "em-tok-b", "steps": "20"}
    outcome = kind
    if kind == "slow":
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n"
                               b"content-type: multipart/form-data; boundary=X\r\n\r\n--X\r\n")  # fmt: skip
            outcome += f" {connection.recv(12)[9:].decode()}"
    elif kind == "vanishing":
        try:
            httpx2.post(f"{url}/v1/audio/transcriptions", data=fields, files={"file": data}, timeout=0.5)
        except httpx2.TimeoutException:
            outcome += " left"
    else:
        answer = httpx2.post(f"{url}/v1/audio/transcriptions", data=fields, files={"file": files[kind]}, timeout=600)
        outcome += f" {answer.status_code}"
    return outcome, time.monotonic() - begin, ""


def run(url: str, requests: int, clients: int, share: float, rng: random.Random) -> tuple[list, float]:
    """The outcomes by request, and the seconds that all took."""
    kinds = [""] * requests
    for count, i in enumerate(sorted(rng.sample(range(requests), round(share * requests)))):
        kinds[i] = list(BAD)[count % len(BAD)]
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(lambda i: bad(url, kinds[i]) if kinds[i] else good(url, i), range(requests)))
    return [(kind, *one) for kind, one in zip(kinds, found, strict=True)], time.monotonic() - begin


def summary(rows: list, seconds: float) -> dict:
    times = sorted(took for kind, _, took, _ in rows if not kind)
    return {
        "good": len(times),
        "seconds": round(seconds, 1),
        "p50": round(statistics.median(times), 2),
        "p95": round(times[int(0.95 * (len(times) - 1))], 2),
        "per_second": round(len(times) / seconds, 3),
        "failed": [outcome for kind, outcome, _, _ in rows if not kind and outcome != "ok"],
        "bad": dict(Counter(outcome for kind, outcome, _, _ in rows if kind)),
    }


def crossed(text: str, clip: int, own: dict[int, list[str]]) -> bool:
    """Whether a text is nearer to one of another clip than to all of its own."""

    def nearness(other: int) -> float:
        return max(SequenceMatcher(None, text, known, autojunk=False).ratio() for known in own[other])

    return max(own, key=nearness) != clip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--bad", type=float, default=0.1, help="share of bad requests")
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("server", nargs="*", metavar="-- ARGUMENTS", help="of the server with many clients")
    args = parser.parse_args()
    with served(args.model, "--rows", "1", "--lanes", "1", "--upload-seconds", "5") as (url, _):
        combinations = len(EXAMPLES) * 2 * len(ASKED)
        alone, seconds = run(url, min(args.requests, combinations), 1, 0.0, random.Random(0))
        print(json.dumps({"one at a time": summary(alone, seconds)}))
    with served(args.model, "--upload-seconds", "5", "--max-uploads", "64", *args.server) as (url, process):
        run(url, 2 * args.clients, args.clients, 0.0, random.Random(1))
        before = memory(process)
        same, took = run(url, len(alone), args.clients, 0.0, random.Random(2))
        print(json.dumps({"side by side": summary(same, took), "times as fast": round(seconds / took, 2)}))
        rows, took = run(url, args.requests, args.clients, args.bad, random.Random(3))
        after = memory(process)
    own: dict[int, list[str]] = {}
    for i, (_, _, _, text) in enumerate(alone):
        own.setdefault(i % len(EXAMPLES), []).append(text)
    answered = [(i, text) for i, (kind, outcome, _, text) in enumerate(rows) if not kind and outcome == "ok"]
    compared = [(text, alone[i % combinations][3]) for i, text in answered if i % combinations < len(alone)]
    wrong = [i for i, text in answered if i % len(EXAMPLES) in own and crossed(text, i % len(EXAMPLES), own)]
    said = summary(rows, took)
    strange = [outcome for kind, outcome, _, _ in rows if kind and outcome != f"{kind} {BAD[kind]}"]
    print(json.dumps({"with bad ones": said, "crossed": len(wrong), "bad ones with another end": strange,
                      "texts that differ from a lone request's": [sum(a != b for a, b in compared), len(compared)],
                      "memory before and after, MB": [round(before), round(after)]}))  # fmt: skip
    return int(bool(wrong or strange or said["failed"]))


if __name__ == "__main__":
    sys.exit(main())
