"""Many clients at once against `sharpen serve`, a tenth of them bad, beside the same requests one at a time.

    python scripts/load_test.py --requests 300 --clients 16

Prints latency, throughput, the growth of the server's memory, how many texts differ from those of lone requests (by
rounding), and which were crossed, that is have the text of another clip. It starts two servers on the loopback
address, one after the other: one that has one window at a time, with all threads, and one with room for many. With
--replicas 2 the second is in front of two models on Ray Serve. With --kill a process behind it is killed with -9 when
half of the requests are answered: one that reads files, or a replica. What follows -- is for the second server, too.

Ends with 1 where a request was lost or crossed, a bad one had another answer than it should, or the kill cost more than
the requests in that process one clear error each.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import wave
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import httpx2

from sharpen.serving.limits import RayScale

EXAMPLES = sorted(path for path in (Path(__file__).parent.parent / "examples").iterdir()
                  if path.suffix in (".flac", ".mp3", ".ogg", ".m4a"))  # fmt: skip
RATE = 4000  # of silence
ALIKE = 0.7  # share of equal characters, from which on a text may be another's
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
COSTS = {"replica_lost": "503", "media_failed": "422"}  # what a request in a process gets that is killed


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


def family(pid: int) -> list[int]:
    """A process and all that it has started; Linux only."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text(encoding="ascii").split():
            with suppress(OSError):  # it has ended meanwhile
                found += family(int(child))
    return found


def memory(process: subprocess.Popen) -> float:
    """MB that the server and its processes use; what they share counts once."""
    found = 0
    for pid in family(process.pid):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
            found += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])
    return found / 1024


def kill_one(process: subprocess.Popen) -> str:
    """Kills a replica, or where there is none a process that reads files; the code of the error that this costs."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family(process.pid)}
    for name, code in ((b"ray::ServeReplica", "replica_lost"), (b"media_process", "media_failed")):
        if victims := [pid for pid, command in commands.items() if name in command]:
            os.kill(victims[0], signal.SIGKILL)
            return code
    raise SystemExit("there is neither a replica nor a process that reads files")


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
    try:
        answer = httpx2.post(f"{url}/v1/audio/transcriptions", data={"model": "whisper-1", **fields},
                             files={"file": path.read_bytes()}, timeout=600)  # fmt: skip
    except httpx2.HTTPError as error:
        return f"lost: {error!r}", time.monotonic() - begin, ""
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


def run(
    url: str, requests: int, clients: int, share: float, rng: random.Random, halfway: Callable[[], None] = lambda: None
) -> tuple[list, float]:
    """The outcomes by request, and the seconds that all took; `halfway` is called when half of them are answered."""
    kinds = [""] * requests
    for count, i in enumerate(sorted(rng.sample(range(requests), round(share * requests)))):
        kinds[i] = list(BAD)[count % len(BAD)]
    answered = threading.Semaphore(0)

    def one(i: int) -> tuple[str, float, str]:
        found = bad(url, kinds[i]) if kinds[i] else good(url, i)
        answered.release()
        return found

    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        all_of_them = pool.map(one, range(requests))
        for _ in range(requests // 2):
            answered.acquire()
        halfway()
        found = list(all_of_them)
    return [(kind, *one) for kind, one in zip(kinds, found, strict=True)], time.monotonic() - begin


def tell(**said: object) -> None:
    """At once, as the next part takes minutes."""
    print(json.dumps(said, ensure_ascii=False), flush=True)


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
    """Whether a text is that of another clip: much like one of them, and more so than like any of its own.

    A short or empty text is like none.
    """

    def nearness(other: int) -> float:
        return max(SequenceMatcher(None, text, known, autojunk=False).ratio() for known in own[other])

    return max((nearness(other) for other in own if other != clip), default=0.0) > max(ALIKE, nearness(clip))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--bad", type=float, default=0.1, help="share of bad requests")
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--replicas", type=int, help="models on Ray Serve behind the second server (default: no Ray)")
    parser.add_argument("--kill", action="store_true", help="kill -9 a process of the second server halfway")
    parser.add_argument("server", nargs="*", metavar="-- ARGUMENTS", help="of the server with many clients")
    args = parser.parse_args()
    with served(args.model, "--rows", "1", "--lanes", "1", "--upload-seconds", "5") as (url, _):
        combinations = len(EXAMPLES) * 2 * len(ASKED)
        alone, seconds = run(url, min(args.requests, combinations), 1, 0.0, random.Random(0))
        tell(one_at_a_time=summary(alone, seconds))
    ray = ["--engine", "ray", "--replicas", str(args.replicas), "--threads", "1"] if args.replicas else []
    killed = ""

    def kill() -> None:
        nonlocal killed
        killed = kill_one(process)

    with served(args.model, "--upload-seconds", "5", "--max-uploads", "64", *ray, *args.server) as (url, process):
        run(url, 2 * args.clients, args.clients, 0.0, random.Random(1))
        before = memory(process)
        same, took = run(url, len(alone), args.clients, 0.0, random.Random(2))
        tell(side_by_side=summary(same, took), times_as_fast=round(seconds / took, 2))
        halfway = [kill] if args.kill else []
        rows, took = run(url, args.requests, args.clients, args.bad, random.Random(3), *halfway)
        after = memory(process)
    own: dict[int, list[str]] = {}
    for i, (_, _, _, text) in enumerate(alone):
        own.setdefault(i % len(EXAMPLES), []).append(text)
    answered = [(i, text) for i, (kind, outcome, _, text) in enumerate(rows) if not kind and outcome == "ok"]
    compared = [(text, alone[i % combinations][3]) for i, text in answered if i % combinations < len(alone)]
    wrong = [
        {"clip": EXAMPLES[i % len(EXAMPLES)].name, "text": text, "alone": own[i % len(EXAMPLES)]}
        for i, text in answered
        if i % len(EXAMPLES) in own and crossed(text, i % len(EXAMPLES), own)
    ]
    said = summary(rows, took)
    strange = [outcome for kind, outcome, _, _ in rows if kind and outcome != f"{kind} {BAD[kind]}"]
    cost = [outcome for outcome in said["failed"] if killed and f'"code": "{killed}"' in outcome]
    in_it = [outcome for outcome in strange if killed and outcome.endswith(COSTS[killed])]  # a bad one was in it
    if killed:
        tell(killed=killed, requests_that_it_cost=len(cost) + len(in_it))
    tell(
        with_bad_ones=said,
        crossed=wrong,
        bad_ones_with_another_end=strange,
        texts_that_differ_from_a_lone_request=[sum(a != b for a, b in compared), len(compared)],
        memory_before_and_after=[round(before), round(after)],  # MB
    )
    most = {"replica_lost": RayScale().ongoing, "media_failed": 1}.get(killed, 0)  # what that process held
    unexplained = len(said["failed"]) - len(cost) + len(strange) - len(in_it)
    unexplained += sum(outcome != "ok" for _, outcome, _, _ in [*alone, *same])
    return int(bool(wrong or unexplained or len(cost) + len(in_it) > most))


if __name__ == "__main__":
    sys.exit(main())
