"""`--address`: replicas on a Ray cluster that is there already, and stays when the server ends."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import httpx2
import pytest
from serving.running import SAID, Running

pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'sharpen[ray]'")
pytestmark = pytest.mark.long  # Ray takes its time to start

FLAGS = ("--engine", "ray", "--replicas", "1", "--address")


def free_ports(count):
    """Ports that nobody listens on; Ray's own are left to those who use Ray on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster on this machine, which ends with the test."""
    # A token that another Ray has left in the home folder turns a check on, in the cluster and not in the server.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield from started()


def started():
    port, client, agent, metrics = free_ports(4)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short path: it has sockets in it
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={port}", f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
        f"--metrics-export-port={metrics}", f"--temp-dir={folder}", "--include-dashboard=false", "--num-cpus=2",
        "--object-store-memory=200000000", "--disable-usage-stats",
    ]  # fmt: skip
    with open(f"{folder}/log", "w", encoding="utf-8") as log:
        ray = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 120
        while not _listens(port):
            assert ray.poll() is None, "Ray did not start"
            assert time.monotonic() < end, "Ray takes too long to start"
            time.sleep(0.2)
        yield ray, f"127.0.0.1:{port}"
    finally:
        ray.terminate()
        ray.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def refused(address):
    """What a server says that cannot start there."""
    command = [sys.executable, "-m", "sharpen", "serve", "--model", "tiny.en", "--port", "0", *FLAGS, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_server_comes_and_goes_and_the_cluster_stays(cluster):
    ray, address = cluster
    for _ in range(2):  # the first leaves nothing behind that the second would meet
        with Running(*FLAGS, address) as server:
            assert httpx2.get(f"{server.url}/health").json()["replicas"] == 1
            assert not server.replicas()  # they belong to the cluster
            assert SAID in server.post().json()["text"]
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
            assert not [line for line in server.said if "Traceback" in line]
        assert ray.poll() is None


def test_one_server_for_a_cluster(cluster):
    _, address = cluster
    with Running(*FLAGS, address) as server:
        assert "has an application 'sharpen' already" in refused(address)
        assert SAID in server.post().json()["text"]  # it was not disturbed
        server.process.terminate()
        assert server.process.wait(60) == 0


def test_an_address_without_a_cluster():
    begin = time.monotonic()
    said = refused(f"127.0.0.1:{free_ports(1)[0]}")
    assert "cannot reach Ray at 127.0.0.1:" in said
    assert "ray start --head" in said
    assert time.monotonic() - begin < 60  # Ray by itself tries for minutes
