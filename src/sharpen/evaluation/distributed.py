"""The engine that spreads over machines: Ray actors with a model each, batches as their tasks.

The driver alone writes rows, so a worker may die at any moment: Ray starts it again and repeats its task. A corpus must
be under the same path on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.evaluate import compute, load_model
from sharpen.evaluation.plan import Batch, Run
from sharpen.evaluation.rows import Row

RESTARTS = 3  # deaths of a worker that Ray mends by itself, and attempts at one task
OBJECTS = 100_000_000  # bytes of shared memory: rows and file names are all that travels


class Worker:
    """What an actor holds."""

    def __init__(self, run: Run, languages: Collection[str]) -> None:
        self.run = run
        self.model = load_model(run, languages)

    def compute(self, batch: Batch, done: frozenset[str]) -> list[Row]:
        return compute(self.model, self.run, batch, done)

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
                self.address,
                **({} if self.address else here),
                logging_level="ERROR",
                log_to_driver=False,
                ignore_reinit_error=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SharpenError(f"cannot reach Ray at {self.address or 'this machine'}: {error}") from error

    def _actors(self, ray: Any, run: Run, batches: Sequence[Batch]) -> list[Any]:
        needs = {"num_cpus": run.threads, **({"num_gpus": 1} if run.device.startswith("cuda") else {})}
        remote = ray.remote(max_restarts=RESTARTS, max_task_retries=RESTARTS, **needs)(Worker)
        languages = {u.language for batch in batches for u in batch.utterances}
        actors = [remote.remote(run, languages) for _ in range(min(self.workers, len(batches)))]
        try:
            ray.get(actors[0].pid.remote())
        except ray.exceptions.RayError as error:
            raise SharpenError(f"no worker could be made ready: {_reason(error)}") from error
        return actors


def _spread(
    ray: Any, actors: Sequence[Any], run: Run, batches: Sequence[Batch], done: Collection[str]
) -> Iterator[list[Row]]:
    """Each actor has one batch at a time and takes the next when it is through."""
    waiting = iter(batches)
    working: dict[Any, tuple[Any, Batch]] = {}  # task -> who does what

    def give(actor: Any) -> None:
        batch = next(waiting, None)
        if batch is not None:
            known = frozenset(key for key in batch.keys(run) if key in done)
            working[actor.compute.remote(batch, known)] = actor, batch

    for actor in actors:
        give(actor)
    while working:
        (task,), _ = ray.wait(list(working))
        actor, batch = working.pop(task)
        try:
            rows = ray.get(task)
        except ray.exceptions.RayError as error:
            # Every attempt killed the worker. The others go on; the batch is listed, and the next run tries it again.
            rows = [replace(row, failed=_reason(error)) for u in batch.utterances for row in batch.blanks(run, u)]
            if isinstance(error, ray.exceptions.ActorDiedError):
                actor = None
        yield [row for row in rows if row.key not in done]
        if actor is not None:
            give(actor)
        elif not working and next(waiting, None) is not None:  # an idle worker would have taken it
            raise SharpenError(f"all workers died; the last one said: {rows[0].failed}. Run the same command to go on")


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
