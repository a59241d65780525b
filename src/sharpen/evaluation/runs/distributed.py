"""The engine that spreads over machines: Ray actors with a model each, batches as their tasks.

The driver alone writes rows, so a worker may die at any moment: Ray starts it again and repeats its task, a few times
where it dies of the task. Workers for which the cluster has no room yet wait, and hold no batch while they do. A corpus
must be under the same path on every machine.
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
from sharpen.evaluation.runs.evaluate import compute, load_model
from sharpen.evaluation.runs.plan import Batch, Run
from sharpen.evaluation.runs.rows import Row
from sharpen.models.weights.load import fingerprint

RETRIES = 3  # of one task whose worker died
PATIENCE = 60.0  # seconds without any worker, after which that is said
OBJECTS = 100_000_000  # bytes of shared memory: rows and file names are all that travels


class Worker:
    """What an actor holds."""

    def __init__(self, run: Run, where: str, languages: Collection[str]) -> None:
        self.run = run
        self.model = load_model(replace(run, model=where), languages)
        self.weights = fingerprint(where)

    def compute(self, batch: Batch, done: frozenset[str]) -> list[Row]:
        return compute(self.model, self.run, batch, done, self.weights)

    def pid(self) -> int:
        return os.getpid()


@dataclass(frozen=True)
class Distributed:
    """The engine. Without an address it starts Ray on this machine and ends it again."""

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
                self.address or "local",  # else RAY_ADDRESS would count, for a machine that `here` does not fit
                **({} if self.address else here),
                logging_level="ERROR",
                log_to_driver=False,
                ignore_reinit_error=False,
            )
        except Exception as error:  # a start that takes too long raises no more than that
            raise SharpenError(f"cannot reach Ray at {self.address or 'this machine'}: {error}") from error

    def _actors(self, ray: Any, run: Run, batches: Sequence[Batch]) -> list[Any]:
        needs = {"num_cpus": run.threads, **({"num_gpus": 1} if run.device.startswith("cuda") else {})}
        _room(ray.cluster_resources(), {"CPU": needs["num_cpus"], "GPU": needs.get("num_gpus", 0)})
        remote = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **needs)(Worker)
        languages = {u.language for batch in batches for u in batch.utterances}
        # A worker is in a folder of its own: a path that is given from here must not depend on where here is.
        where = str(Path(run.model).absolute()) if Path(run.model).exists() else run.model
        return [remote.remote(run, where, languages) for _ in range(min(self.workers, len(batches)))]


def _spread(
    ray: Any, actors: Sequence[Any], run: Run, batches: Sequence[Batch], done: Collection[str]
) -> Iterator[list[Row]]:
    """Each actor has one batch at a time, the first as soon as it is there, and takes the next when it is through."""
    waiting = deque(batches)
    coming = {actor.pid.remote(): actor for actor in actors}
    working: dict[Any, tuple[Any, Batch]] = {}  # task -> who does what

    def give(actor: Any) -> None:
        if waiting:
            batch = waiting.popleft()
            known = frozenset(key for key in batch.keys(run) if key in done)
            working[actor.compute.remote(batch, known)] = actor, batch
        else:
            ray.kill(actor)  # makes room: a worker whose machine was lost with its batch may need it to start again

    while working or waiting:
        tasks = [*working, *coming]
        ended, _ = ray.wait(tasks, timeout=None if working else PATIENCE)
        if not ended:
            warnings.warn("no worker is ready yet: the cluster may be busy, or the model is still loaded", stacklevel=2)
            continue
        (task,) = ended
        if task in coming:
            actor = coming.pop(task)
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                if not working and not coming:
                    raise SharpenError(f"no worker could be made ready: {_reason(error)}") from error
            else:
                give(actor)
        else:
            actor, batch = working.pop(task)
            try:
                rows = ray.get(task)
                give(actor)
            except ray.exceptions.RayError as error:
                # Every attempt killed the worker, which Ray starts once more. The next run tries the batch again.
                rows = [replace(row, failed=_reason(error)) for u in batch.utterances for row in batch.blanks(run, u)]
                coming[actor.pid.remote()] = actor
            yield [row for row in rows if row.key not in done]


def _room(there: Mapping[str, float], needs: Mapping[str, float]) -> None:
    """Refuses to wait for what the cluster cannot have."""
    for what, amount in needs.items():
        if there.get(what, 0) < amount:
            raise SharpenError(
                f"a worker needs {amount:g} {what}, and the whole cluster has {there.get(what, 0):g}: "
                "take fewer --threads, another --device, or a larger cluster"
            )


def _reason(error: Exception) -> str:
    """A line of what Ray tells in many: our own complaint where there is one, else how it begins."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("sharpen.errors.")]
    return ours[-1] if ours else f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SharpenError("--engine ray needs Ray, which is not here: pip install 'sharpen[ray]'") from error
    return ray
