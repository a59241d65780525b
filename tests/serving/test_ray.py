"""The same server in front of two replicas on Ray Serve: full, left, and with one of them killed."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from serving.running import LETTER, SAID, Running
from serving.test_server import body_of, wait_for

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'sharpen[ray]'")
pytestmark = pytest.mark.long  # Ray takes its time to start

SLOW = {"method": "em-tok-b", "steps": "4", "samples": "4", "effort": ""}
ONGOING, WAITING = 2, 4
ROOM = 2 * ONGOING + WAITING


@pytest.fixture(scope="module")
def server():
    limits = ["--ongoing", str(ONGOING), "--queue", str(WAITING), "--max-uploads", "32", "--drain", "120"]
    with Running("--engine", "ray", "--replicas", "2", *limits) as running:
        yield running
        running.process.terminate()
        running.process.wait(150)


def together(server, count, **settings):
    """So many slow requests at once, every second a stream."""
    pool = ThreadPoolExecutor(count)
    found = []
    for i in range(count):
        stream = {"stream": "true"} if i % 2 else {}
        found.append(pool.submit(server.post, **{**SLOW, **stream, **settings}))
        time.sleep(0.1)  # what comes at the same instant is all in Ray's queue, replicas free or not
    return found


def test_answers_are_those_of_one_model(server):
    said = server.client().audio.transcriptions.create(
        file=("a.flac", LETTER), model="whisper-1", response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert SAID in said.text
    assert said.words
    streamed = server.post(stream="true")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert SAID in server.post(response_format="srt").text
    body_of(server.post(model="other"), 404, "model_not_found")
    body_of(server.post(file=b"no audio"), 400, "invalid_file")
    assert httpx2.get(f"{server.url}/health").json() == {
        "live": True, "ready": True, "draining": False, "model": "tiny.en", "replicas": 2,
    }  # fmt: skip
    (model, alias) = httpx2.get(f"{server.url}/v1/models").json()["data"]
    assert (model["id"], alias["id"]) == ("tiny.en", "whisper-1")
    assert model["sharpen"]["languages"] == ["en"]
    assert server.metric('requests_total{outcome="ok"}') == 3
    assert server.metric("audio_seconds_total") > 0


def test_a_full_queue_of_rays_is_429(server):
    answers = [one.result() for one in together(server, ROOM + 4)]
    refused = [one for one in answers if one.status_code != 200]
    assert len(refused) >= 4
    for one in refused:
        error = body_of(one, 429, "queue_full")
        assert error["type"] == "rate_limit_error"
        assert int(one.headers["retry-after"]) >= 1
    assert all(SAID in one.text for one in answers if one.status_code == 200)
    assert len(answers) - len(refused) >= 2 * ONGOING


def test_clients_that_leave_free_their_places(server):
    steps, vanished = server.metric("steps_total"), server.metric("vanished_total")

    def leave(i):
        fields = {"model": "tiny.en", **SLOW, "steps": "20", "stream": ("false", "true")[i % 2]}
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{server.url}/v1/audio/transcriptions", data=fields, files={"file": LETTER}, timeout=2.0)

    with ThreadPoolExecutor(ROOM) as pool:
        list(pool.map(leave, range(ROOM // 2)))
    wait_for(lambda: server.metric("vanished_total") == vanished + ROOM // 2)
    assert server.metric("queue") == server.metric("in_flight") == 0
    assert SAID in server.post().json()["text"]
    assert server.metric("steps_total") < steps + 20  # all of them together have taken less steps than one asked for


def test_a_killed_replica_costs_the_requests_in_it_one_clear_error_each(server):
    victim, _ = server.replicas()
    working = together(server, ROOM, steps="8")
    wait_for(lambda: server.metric("rows") > 0, seconds=60)
    assert server.metric("queue") > 2 * ONGOING  # some wait, so both replicas are at work
    os.kill(victim, signal.SIGKILL)
    answers = [one.result() for one in working]
    lost = [one for one in answers if "replica_lost" in one.text]
    assert 1 <= len(lost) <= ONGOING
    for one in lost:
        if one.headers["content-type"].startswith("text/event-stream"):
            assert one.text.count('"code": "replica_lost"') == 1
        else:
            body_of(one, 503, "replica_lost")
            assert int(one.headers["retry-after"]) >= 1
    assert all(one.status_code == 200 and SAID in one.text for one in answers if one not in lost)
    assert SAID in server.post().json()["text"]  # by the other one
    wait_for(lambda: len(server.replicas()) == 2 and victim not in server.replicas(), seconds=120)
    wait_for(lambda: httpx2.get(f"{server.url}/health").json()["replicas"] == 2, seconds=120)
    assert all(SAID in one.result().text for one in together(server, 4))


def test_sigterm_finishes_what_is_in_flight(server):
    """The last test here: it ends the server."""
    adapting = together(server, 2)
    wait_for(lambda: server.metric("rows") > 0, seconds=60)
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: httpx2.get(f"{server.url}/health").status_code == 503)
    body_of(server.post(), 503, "stopping")
    assert all(SAID in one.result().text for one in adapting)
    assert server.process.wait(60) == 0
    wait_for(lambda: not server.replicas())
    assert not [line for line in server.said if "Traceback" in line]
