"""The door in front of replicas on Ray Serve: it hands them forms and takes their answers.

Ray Serve keeps the replicas alive, chooses one for each request and queues what they have no room for. Its HTTP proxy
is not used: what it says about a full queue or a dead replica is no answer of this API.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any

from sharpen.errors import SharpenError
from sharpen.serving.errors import ApiError, stopping
from sharpen.serving.form import Form
from sharpen.serving.keys import Keys
from sharpen.serving.limits import RayScale, ServerLimits
from sharpen.serving.metrics import Counted
from sharpen.serving.reception import Reception, RequestOutcome
from sharpen.serving.replica import Item, Replica, ReplicaSetup, ReplicaState

NAME = "sharpen"  # of the application on Ray Serve
HELD = 8  # times the largest upload: bytes of files whose answers are not done
RECENT = 1.0  # seconds for which is believed what Ray says of its replicas
STALE = 10.0  # seconds for which is believed what a replica says of itself
WEIGHT = 0.3  # of the last answer's seconds
UNBOUNDED = 1 << 30  # Ray bounds what a replica gets
LEAST_STORE = 100_000_000  # bytes of shared memory that Ray needs
SETTINGS = {  # of Ray, where the environment has no other
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing leaves the machine
    "RAY_worker_niceness": "0",  # Ray's workers wait for everything else on a machine; clients wait for these
}
KNOCK = 10.0  # seconds in which a cluster must answer
LONGEST_WAIT = 60.0  # seconds that a client is told to wait at most


class RemoteAnswer:
    """The answer of a replica, as it comes."""

    def __init__(self, replicas: Replicas, response: Any) -> None:
        self._replicas, self._response = replicas, response
        self._ended = False
        self.whole = False  # a transcript, to its end

    async def next(self) -> Item | None:
        """The next piece, None at the end; raises where the request failed."""
        from ray.exceptions import RayError, TaskCancelledError
        from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError

        try:
            while isinstance(item := await anext(self._response), ReplicaState):
                self._replicas.heard(item)
        except asyncio.CancelledError:
            raise  # the client left: the replica is still at work
        except StopAsyncIteration:
            self._ended = True
            return None
        except Exception as error:
            self._ended = True
            if isinstance(error, BackPressureError):
                raise self._replicas.full() from error
            if isinstance(error, TaskCancelledError | RequestCancelledError):
                raise stopping(1.0) from error  # a client that left does not ask
            if isinstance(error, RayError | RayServeException):
                message = "the replica that worked on this request has died; try again"
                raise ApiError(503, message, None, "replica_lost", 1.0) from error
            raise
        if isinstance(item, ApiError):
            self._ended = True
            raise item
        self.whole = isinstance(item, RequestOutcome) and item.word == "ok"
        found: Item = item
        return found

    def cancel(self) -> bool:
        """Nobody waits for it any more; false where it had ended."""
        if self._ended:
            return False
        self._ended = True
        with suppress(Exception):  # it may have failed meanwhile
            self._response.cancel()
        return True


class Replicas(Reception):
    """A server whose recordings are transcribed by replicas."""

    def __init__(self, handle: Any, limits: ServerLimits, keys: Keys) -> None:
        super().__init__((), limits, keys)
        self._handle = handle
        self._card: dict[str, Any] = {}
        self._answers: set[RemoteAnswer] = set()
        self._held = 0  # bytes
        self._seconds = 1.0  # that an answer took of late
        self._heard: dict[str, tuple[float, Counted]] = {}  # by replica, of the dead as well: when, and what
        self._running: tuple[float, int] = (-math.inf, 0)  # when Ray was asked, and how many replicas it runs

    @property
    def card(self) -> dict[str, Any]:
        return self._card

    @property
    def alive(self) -> bool:
        return True  # Ray replaces replicas; whether one is there, is a matter of being ready

    async def start(self) -> None:
        self.names, self._card = await self._handle.card.remote()
        self.ready = True

    async def stop(self) -> None:
        self.ready = False

    async def end_rest(self) -> None:
        for answer in list(self._answers):
            answer.cancel()

    async def health(self) -> dict[str, Any]:
        if time.monotonic() - self._running[0] > RECENT:
            self._running = time.monotonic(), await asyncio.to_thread(_running)
        said, there = await super().health(), self._running[1]
        return {**said, "ready": said["ready"] and there > 0, "replicas": there}

    def heard(self, state: ReplicaState) -> None:
        self._heard[state.name] = time.monotonic(), state.counted

    async def metrics_text(self) -> str:
        """Counts of all replicas as they last told; what they are doing is of those that have told of it lately."""
        since = time.monotonic() - STALE if self._answers else math.inf
        told = [Counted(known.counts, known.gauges if when > since else {}) for when, known in self._heard.values()]
        return self.metrics.text(told)

    def full(self) -> ApiError:
        """What a client is told where Ray's queue is full."""
        wait = min(LONGEST_WAIT, max(1.0, self._seconds))
        return ApiError(429, f"{len(self._answers)} recordings are waiting; try again later", None, "queue_full", wait)

    @contextmanager
    def asked(self, form: Form, task: str) -> Iterator[RemoteAnswer]:
        """Hands a form to a replica, or to the queue; leaving early cancels it there."""
        size, begin = len(form.file or b""), time.monotonic()
        if self._held and self._held + size > HELD * self.limits.upload_bytes:
            raise self.full()
        answer = RemoteAnswer(self, self._handle.options(stream=True).answer.remote(form, task))
        del form
        self._held += size
        self._answers.add(answer)
        try:
            with self._gauged("queue"):
                yield answer
        finally:
            self._held -= size
            self._answers.discard(answer)
            if answer.cancel():
                self.metrics.add("vanished_total")
            if answer.whole:
                took = time.monotonic() - begin
                self._seconds = (1 - WEIGHT) * self._seconds + WEIGHT * took
                self.metrics.observe(took)


@contextmanager
def deployed(setup: ReplicaSetup, scale: RayScale) -> Iterator[Any]:
    """A handle to replicas that are ready. Without an address Ray is started on this machine, and ended with them."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    ray, serve = _ray()
    inner = replace(setup.limits, queue=UNBOUNDED)  # a client that left is in the batch until its turn is over
    needs = {"num_cpus": setup.threads or 1, "num_gpus": int(setup.device.startswith("cuda"))}
    deployment = serve.deployment(
        Replica,
        name="Replica",
        num_replicas=scale.replicas,
        max_ongoing_requests=scale.ongoing,
        max_queued_requests=setup.limits.queue,
        max_constructor_retry_count=1,
        ray_actor_options=needs,
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    _begin(ray, setup, scale, needs)
    try:
        if scale.address and NAME in serve.status().applications:
            raise SharpenError(f"the cluster has an application {NAME!r} already: end the server that it belongs to")
        try:
            yield _run(serve, deployment.bind(replace(setup, limits=inner)))
        finally:
            if scale.address:
                serve.delete(NAME)
    finally:
        ray.shutdown()


def _run(serve: Any, application: Any) -> Any:
    try:
        return serve.run(application, name=NAME, route_prefix=None)
    except Exception as error:  # Serve raises a bare RuntimeError, with all that the replicas said
        raise SharpenError(f"no replica could be started: {_reason(serve, error)}") from error


def _begin(ray: Any, setup: ReplicaSetup, scale: RayScale, needs: dict[str, int]) -> None:
    store = 2 * HELD * setup.limits.upload_bytes
    here = {
        "num_cpus": scale.replicas * needs["num_cpus"],
        "object_store_memory": max(LEAST_STORE, store),
        "include_dashboard": False,
    }
    if scale.address:
        _knock(scale.address)
    try:
        ray.init(
            scale.address or "local",  # otherwise Ray would use RAY_ADDRESS, whose cluster has its own resources
            **({} if scale.address else here),
            logging_level="ERROR",
            log_to_driver=False,
        )
    except Exception as error:  # Ray raises a bare Exception where a start takes too long
        hint = "; a cluster that asks for a token needs RAY_AUTH_MODE=token here" if scale.address else ""
        raise SharpenError(f"cannot reach Ray at {scale.address or 'this machine'}: {error}{hint}") from error
    signal.signal(signal.SIGTERM, _end)  # until the server has its own: Ray's would abort
    ray.serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR", "enable_access_log": False})


def _knock(address: str) -> None:
    """Raises where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:  # auto, or another kind of address
        return
    try:
        socket.create_connection((host, int(port)), KNOCK).close()
    except (OSError, OverflowError) as error:
        message = f"cannot reach Ray at {address}: {error}; give the address that `ray start --head` printed"
        raise SharpenError(message) from error


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _running() -> int:
    """How many replicas Ray runs."""
    from ray import serve

    application = serve.status().applications.get(NAME)
    states = application.deployments["Replica"].replica_states if application else {}
    return sum(count for state, count in states.items() if str(getattr(state, "value", state)) == "RUNNING")


def _reason(serve: Any, error: Exception) -> str:
    """One line of Ray's many: our own error where there is one, else the last line that says something."""
    application = serve.status().applications.get(NAME)
    said = [deployment.message for deployment in application.deployments.values()] if application else []
    lines = [line.strip() for line in "\n".join([str(error), *said]).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("sharpen.errors.")]
    return (ours or lines or [type(error).__name__])[-1]


def _ray() -> tuple[Any, Any]:
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise SharpenError("--engine ray needs Ray Serve: pip install 'sharpen[ray]'") from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it would tell of every step
    return ray, serve
