"""Two workers on this machine, one of which is killed: Ray makes up for it, and the rows are those of a local run."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest
from evaluation import tiny

from sharpen.errors import SharpenError
from sharpen.evaluation.runs import distributed
from sharpen.evaluation.runs.distributed import Distributed
from sharpen.evaluation.runs.evaluate import evaluate, local
from sharpen.evaluation.runs.store import Store


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    pytest.importorskip("ray", reason="Ray is not here: pip install 'sharpen[ray]'")
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.checkpoint(folder), tiny.corpus(folder / "noises", 8, duration=1.0)


def test_a_killed_worker_loses_nothing_and_doubles_nothing(place, tmp_path, monkeypatch):
    model, manifest = place
    work = tiny.work(manifest, model)
    with Store(tmp_path / "local") as store:
        evaluate(work, store, local)
    pids, killed = [], []
    actors = Distributed._actors

    def watched(self, ray, run, batches):
        found = actors(self, ray, run, batches)
        pids.extend(ray.get([actor.pid.remote() for actor in found]))
        return found

    def kill(rows):
        if not killed:  # at the first result: both workers have the next batch in hand
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    monkeypatch.setattr(Distributed, "_actors", watched)
    with Store(tmp_path / "ray") as store:
        rows = evaluate(work, store, Distributed(workers=2), kill)
    assert len(set(pids)) == 2
    assert killed
    assert not any(row.failed for row in rows)
    assert tiny.found(tmp_path / "ray") == tiny.found(tmp_path / "local")
    assert len(rows) == work.size == 8 * (1 + 2)


def test_what_a_worker_cannot_survive_is_listed_and_the_rest_is_done(place, tmp_path, monkeypatch):
    """As many batches at which every worker dies, as memory that runs out would have it, as there are workers."""
    model, manifest = place
    work = tiny.work(manifest, model, ["source"])
    monkeypatch.setattr(distributed, "RETRIES", 1)
    monkeypatch.setattr(distributed.Worker, "compute", _deadly([batch.utterances[0].id for batch in work.batches[:2]]))
    with Store(tmp_path) as store:
        rows = evaluate(work, store, Distributed(workers=2))
    assert [bool(row.failed) for row in rows] == [True, True, True, True, False, False, False, False]
    assert "Actor" in rows[2].failed


def test_a_worker_without_room_holds_nothing_up(place, tmp_path, monkeypatch):
    model, manifest = place
    work = tiny.work(manifest, model, ["source"])
    small = Distributed(workers=1)
    monkeypatch.setattr(Distributed, "_start", lambda self, ray, run, start=Distributed._start: start(small, ray, run))
    with Store(tmp_path) as store:
        rows = evaluate(work, store, Distributed(workers=3))
    assert not any(row.failed for row in rows)
    assert len(rows) == work.size


class Task:
    """What stands for a remote call in a cluster that is none: it is answered when the test says so."""

    def __init__(self, *arguments):
        self.arguments = arguments

    @classmethod
    def remote(cls, *arguments):
        return cls(*arguments)


class Cluster:
    """A driver's view of Ray, in which every call is answered at once but those of the actors that are stuck."""

    def __init__(self):
        self.killed = []

    def actor(self, stuck=False):
        return SimpleNamespace(pid=Task, compute=SimpleNamespace(remote=lambda *a: Task(stuck, *a)))

    def wait(self, tasks, timeout):
        ready = [task for task in tasks if not (task.arguments and task.arguments[0] and not self.killed)]
        return ready[:1], []

    def get(self, task):
        return [] if task.arguments else 1

    def kill(self, actor):
        self.killed.append(actor)


def test_a_worker_with_nothing_to_do_makes_room(place):
    """So that one whose machine was lost with its batch can start again, which Ray does where there is room."""
    model, manifest = place
    work = tiny.work(manifest, model, ["source"])
    cluster = Cluster()
    lost, healthy = cluster.actor(stuck=True), cluster.actor()
    answered = list(distributed._spread(cluster, [lost, healthy], work.run, work.batches, ()))
    assert len(answered) == len(work.batches)
    assert cluster.killed == [healthy, lost]


def test_a_worker_is_told_where_the_model_is_from_everywhere(place, monkeypatch):
    model, manifest = place
    monkeypatch.chdir(model.parent)
    work = tiny.work(manifest, model.name, ["source"])
    remote = SimpleNamespace(remote=lambda *given: given)
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 8}, remote=lambda **needs: lambda worker: remote)
    ((run, where, _), *_) = Distributed()._actors(ray, work.run, work.batches)
    assert (run.model, where) == (model.name, str(model))
    assert all(u.path.is_absolute() for batch in work.batches for u in batch.utterances)


def test_what_the_cluster_cannot_have_is_not_waited_for():
    distributed._room({"CPU": 4.0}, {"CPU": 4, "GPU": 0})
    with pytest.raises(SharpenError, match="needs 1 GPU, but the whole cluster has 0"):
        distributed._room({"CPU": 4.0}, {"CPU": 4, "GPU": 1})


def _deadly(cursed):
    # A closure and no import of this module: workers do not have the tests.
    def compute(self, batch, done):
        import os

        from sharpen.evaluation.runs.evaluate import compute

        if batch.utterances[0].id in cursed:
            os._exit(1)
        return compute(self.model, self.run, batch, done)

    return compute


def test_workers_that_cannot_start_say_why(place, tmp_path):
    _, manifest = place
    work = tiny.work(manifest, tmp_path / "missing.pt", ["source"])
    with Store(tmp_path) as store, pytest.raises(SharpenError, match=r"no worker could be started.*missing\.pt"):
        evaluate(work, store, Distributed(workers=1))


def test_without_ray_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SharpenError, match=r"pip install 'sharpen\[ray\]'"):
        next(Distributed()(None, [], ()))
