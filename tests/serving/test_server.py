"""The server as a process: limits, clients that leave, processes that die, signals."""

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import openai
import pytest
from serving.running import LETTER, SAID, Running
from serving.test_media import flac, wav

from sharpen.cli import main
from sharpen.speech.audio import read_audio

HEAVY = {"method": "em-tok-b", "steps": "14", "samples": "4", "effort": ""}


@pytest.fixture(scope="module")
def server():
    limits = ["--max-upload", "1", "--max-seconds", "60", "--upload-seconds", "3", "--queue", "3", "--max-uploads", "3"]
    with Running(*limits, "--max-header", "4096", "--cors", "https://page.example") as running:
        yield running


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def heavy(server, **settings):
    """A request that adapts for many steps, in a thread."""
    pool = ThreadPoolExecutor(1)
    return pool.submit(server.post, **{**HEAVY, **settings})


def raw(server, data, pause=0.0, size=1 << 16):
    """What the server answers to bytes that need not be HTTP."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            for i in range(0, len(data), size):
                connection.sendall(data[i : i + size])
                time.sleep(pause)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        try:
            while chunk := connection.recv(1 << 16):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


def body_of(response, status, code):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert response.headers["x-request-id"].startswith("req_")
    return error


def test_health_and_metrics(server):
    assert httpx2.get(f"{server.url}/health").json() == {
        "live": True, "ready": True, "draining": False, "model": "tiny.en",
    }  # fmt: skip
    before = server.metric('requests_total{outcome="ok"}') if SAID in server.post().json()["text"] else 0
    server.post()
    assert server.metric('requests_total{outcome="ok"}') == before + 1
    assert server.metric("audio_seconds_total") > 0
    assert server.metric("real_time_factor") > 0
    assert server.metric("in_flight") == 0
    text = httpx2.get(f"{server.url}/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in text.text.splitlines() if not line.startswith("#")]
    assert all(len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0 for line in samples)


def test_unknown_paths_and_methods(server):
    body_of(httpx2.get(f"{server.url}/v1/nothing"), 404, "not_found")
    body_of(httpx2.get(f"{server.url}/v1/audio/transcriptions"), 405, "not_found")


def test_what_is_too_much(server):
    body_of(server.post(file=bytes(2 << 20)), 413, "file_too_large")
    body_of(server.post(file=bytes(6 << 20)), 413, "file_too_large")
    body_of(server.post(file=flac(61)), 413, "audio_too_long")
    body_of(server.post(prompt="x" * 100_000), 400, "field_too_long")
    body_of(server.post(**{f"f{i}": "x" for i in range(70)}), 400, "too_many_fields")
    body_of(httpx2.post(f"{server.url}/v1/audio/transcriptions", json={"model": "x"}), 415, "unsupported_media_type")
    for size, pause in ((10_000, 0.0), (100, 0.3)):  # at once, and bit by bit
        answer = raw(server, b"GET /health HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\nhost: x\r\n\r\n", 0.01 * pause, size)
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert b'"headers_too_long"' in answer or b'"invalid_http"' in answer


def test_a_hundred_channels_are_served(server):
    samples = np.repeat((read_audio(LETTER).samples[:4000] * 32767).astype(np.int16), 100)
    assert server.post(file=wav(samples, channels=100)).status_code == 200


def test_a_slow_upload_is_ended(server):
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=X\r\n"
    begin = time.monotonic()
    answer = raw(server, head + b"content-length: 1000000\r\n\r\n" + b"x" * 400, pause=0.1, size=10)
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"upload" in answer or b"form" in answer
    assert time.monotonic() - begin < 15
    assert server.metric("uploads") == 0


def test_slow_headers_are_ended(server):
    begun = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as silent,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as half,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as second,
    ):
        half.sendall(begun)
        second.sendall(begun + b"\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += second.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200")
        second.sendall(begun)  # after a request that was all right
        assert [connection.recv(1 << 16) for connection in (silent, half, second)] == [b"", b"", b""]


def test_slow_uploads_do_not_take_all_places(server):
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=X\r\n"
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for connection in slow:
        connection.sendall(head + b"content-length: 1000000\r\n\r\n--X\r\n")
    wait_for(lambda: server.metric("uploads") == 3)
    error = body_of(server.post(), 429, "too_many_uploads")
    assert error["type"] == "rate_limit_error"
    wait_for(lambda: server.metric("uploads") == 0)  # each has three seconds
    assert SAID in server.post().json()["text"]
    for connection in slow:
        connection.close()


def test_a_full_queue_is_a_rate_limit_error_after_the_clients_own_retries(server):
    waiting = [heavy(server) for _ in range(3)]
    wait_for(lambda: server.metric("queue") == 3)
    refusals = server.metric('requests_total{outcome="queue_full"}') if server.post().status_code == 429 else 0
    with pytest.raises(openai.RateLimitError) as caught:
        server.client(retries=1).audio.transcriptions.create(file=("a.flac", LETTER), model="tiny.en")
    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert server.metric('requests_total{outcome="queue_full"}') == refusals + 2
    assert all(SAID in one.result().json()["text"] for one in waiting)


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_client_that_leaves_frees_its_place(server, stream):
    fields = {"model": "tiny.en", **HEAVY, "stream": stream}
    vanished = server.metric("vanished_total")
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(f"{server.url}/v1/audio/transcriptions", data=fields, files={"file": LETTER}, timeout=0.5)
    wait_for(lambda: server.metric("queue") == 0, seconds=10)
    assert server.metric("vanished_total") == vanished + 1
    assert server.metric("rows") == 0
    assert server.metric("in_flight") == 0


def test_a_deadline(server):
    begin = time.monotonic()
    said = server.post(**HEAVY, deadline="1.5").json()["adaptation"]
    assert time.monotonic() - begin < 6
    assert said["steps"] < 14
    assert said["windows"][0]["stopped"].startswith("deadline")
    assert server.post(deadline="0.000001").json()["error"]["code"] == "deadline_exceeded"


def test_a_killed_media_process_costs_one_request(server):
    restarts = server.metric("media_restarts_total")
    adapting = heavy(server)
    wait_for(lambda: server.metric("rows") == 1)
    server.kill_media()
    assert SAID in adapting.result().json()["text"]  # it was decoded already
    answers = [server.post() for _ in range(4)]
    assert all(answer.status_code in (200, 422) for answer in answers)
    assert sum(answer.status_code == 200 for answer in answers) >= 2
    assert server.metric("media_restarts_total") == restarts + 2
    assert len(server.media_processes()) == 2


def test_other_pages_may_use_it_only_where_told(server):
    for origin, allowed in (("https://page.example", "https://page.example"), ("https://other.example", None)):
        answer = httpx2.get(f"{server.url}/health", headers={"origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed


def test_only_this_machine_can_reach_it(server):
    """The socket is bound to the loopback address alone."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        local = [line.split()[1] for line in file if line.split()[3] == "0A"]
    assert [address for address in local if address.endswith(f":{server.port:04X}")] == [f"0100007F:{server.port:04X}"]


def test_sigterm_finishes_what_is_in_flight_and_refuses_the_rest():
    with Running("--drain", "60") as server:
        adapting = heavy(server)
        wait_for(lambda: server.metric("rows") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx2.get(f"{server.url}/health").status_code == 503)
        refused = server.post()
        body_of(refused, 503, "stopping")
        assert int(refused.headers["retry-after"]) >= 1
        assert SAID in adapting.result().json()["text"]
        assert server.process.wait(10) == 0
        assert not [line for line in server.said if "Traceback" in line]


def test_after_the_drain_the_rest_is_told_so():
    with Running("--drain", "0.2") as server:
        adapting, streaming = heavy(server), heavy(server, stream="true")
        wait_for(lambda: server.metric("rows") == 2)
        server.process.send_signal(signal.SIGTERM)
        body_of(adapting.result(), 503, "stopping")
        assert '"code": "stopping"' in streaming.result().text
        assert server.process.wait(10) == 0


def test_a_second_signal_ends_at_once():
    with Running("--drain", "60") as server:
        adapting = heavy(server)
        wait_for(lambda: server.metric("rows") == 1)
        media = server.media_processes()
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: any("finishing" in line for line in server.said))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(2) == 1
        with pytest.raises(httpx2.HTTPError):
            adapting.result()
        wait_for(lambda: not any(_exists(pid) for pid in media))


def _exists(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_mistakes_on_the_command_line(tmp_path, capsys):
    (tmp_path / "empty").write_text("# nothing\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, says in (
            (["--api-keys", str(tmp_path / "empty")], "has no API key"),
            (["--api-keys", str(tmp_path / "absent")], "cannot be read"),
            (["--model", "tiny.en", "--port", port], "cannot listen"),
            (["--replicas", "3"], "--replicas needs --engine ray"),
            (["--address", "auto"], "--address needs --engine ray"),
        ):
            assert main(["serve", *arguments]) == 2
            assert says in capsys.readouterr().err


def test_nothing_is_written(server):
    """Not even an upload that is larger than what form parsers keep in memory."""

    def written():
        with open(f"/proc/{server.process.pid}/io", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("write_bytes"))

    before = written()
    assert server.post(file=wav(np.ones(8000 * 55), rate=8000)).json()["text"] == ""  # 0.9 MB of silence
    assert written() == before
