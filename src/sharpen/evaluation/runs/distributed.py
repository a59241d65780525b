"""The engine for several machines: Ray actors with one model each, which compute batches.

Only the driver writes rows, so a worker may die at any moment: Ray restarts it and repeats its batch, a few times. A
worker gets its first batch when the cluster has started it. A corpus must have the same path on every machine.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.evaluate import compute, demands, load_model
from sharpen.evaluation.runs.plan import Batch, Run
from sharpen.evaluation.runs.rows import Row
from sharpen.models.weights.load import fingerprint

RETRIES = 3  # of one task whose worker died
PATIENCE = 60.0  # seconds without any worker before a warning
OBJECTS = 100_000_000  # bytes of shared memory: only rows and file names are sent


class Worker:
    """What an actor holds."""

    def __init__(self, run: Run, where: str, work: Collection[tuple[str, str, str]]) -> None:
        self.run = run
        self.model = load_model(replace(run, model=where), work)
        self.weights = fingerprint(where)

    def compute(self, batch: Batch, done: frozenset[str]) -> list[Row]:
        return compute(self.model, self.run, batch, done, self.weights)

    def pid(self) -> int:
        return os.getpid()


@dataclass(frozen=True)
class Distributed:
    """The engine. Without an address it starts Ray on this machine, and stops it at the end."""

    workers: int = 2
    address: str | None = None  # of a running cluster, as `ray start` prints it; "auto" finds one on this machine

    def __call__(self, run: Run, batches: Sequence[Batch], done: Collection[str]) -> Iterator[list[Row]]:
        ray = _ray()
        self._start(ray, run)
        try:
            yield from _spread(ray, self._actors(ray, run, batches), run, batches, done)
        finally:
            ray.shutdown()

    def _start(self, ray: Any, run: Run) -> None:
        here = {"num_cpus": self.workers * run.threads, "object_store_memory": OBJECTS, "include_dashboard": False}
        try:
            ray.init(
                self.address or "local",  # otherwise Ray would use RAY_ADDRESS, whose cluster has its own resources
                **({} if self.address else here),
                logging_level="ERROR",
                log_to_driver=False,
                ignore_reinit_error=False,
            )
        except Exception as error:  # Ray raises a bare Exception where a start takes too long
            raise SharpenError(f"cannot reach Ray at {self.address or 'this machine'}: {error}") from error

    def _actors(self, ray: Any, run: Run, batches: Sequence[Batch]) -> list[Any]:
        needs = {"num_cpus": run.threads, **({"num_gpus": 1} if run.device.startswith("cuda") else {})}
        _room(ray.cluster_resources(), {"CPU": needs["num_cpus"], "GPU": needs.get("num_gpus", 0)})
        remote = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **needs)(Worker)
        work = demands(run, batches)
        # A worker has another working directory, so a path must be absolute.
        where = str(Path(run.model).absolute()) if Path(run.model).exists() else run.model
        return [remote.remote(run, where, work) for _ in range(min(self.workers, len(batches)))]


def _spread(
    ray: Any, actors: Sequence[Any], run: Run, batches: Sequence[Batch], done: Collection[str]
) -> Iterator[list[Row]]:
    """Gives each actor one batch at a time, the first when it has started."""
    waiting = deque(batches)
    starting = {actor.pid.remote(): actor for actor in actors}
    working: dict[Any, tuple[Any, Batch]] = {}  # task -> its actor and batch

    def give(actor: Any) -> None:
        if waiting:
            batch = waiting.popleft()
            known = frozenset(key for key in batch.keys(run) if key in done)
            working[actor.compute.remote(batch, known)] = actor, batch
        else:
            ray.kill(actor)  # a worker that lost its machine may need the room to restart

    while working or waiting:
        tasks = [*working, *starting]
        ended, _ = ray.wait(tasks, timeout=None if working else PATIENCE)
        if not ended:
            warnings.warn("no worker is ready yet: the cluster may be busy, or still loading the model", stacklevel=2)
            continue
        (task,) = ended
        if task in starting:
            actor = starting.pop(task)
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                if not working and not starting:
                    raise SharpenError(f"no worker could be started: {_reason(error)}") from error
            else:
                give(actor)
        else:
            actor, batch = working.pop(task)
            try:
                rows = ray.get(task)
                give(actor)
            except ray.exceptions.RayError as error:
                # Every attempt killed the worker. Ray restarts it for other batches; the next run tries this one again.
                rows = [replace(row, failed=_reason(error)) for u in batch.utterances for row in batch.blanks(run, u)]
                starting[actor.pid.remote()] = actor
            yield [row for row in rows if row.key not in done]


def _room(there: Mapping[str, float], needs: Mapping[str, float]) -> None:
    """Refuses to wait for resources that the cluster does not have."""
    for what, amount in needs.items():
        if there.get(what, 0) < amount:
            raise SharpenError(
                f"a worker needs {amount:g} {what}, but the whole cluster has {there.get(what, 0):g}; "
                "use fewer --threads, another --device, or a larger cluster"
            )


def _reason(error: Exception) -> str:
    """One line of Ray's many: our own error where there is one, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("sharpen.errors.")]
    return ours[-1] if ours else f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SharpenError("--engine ray needs Ray: pip install 'sharpen[ray]'") from error
    return ray
