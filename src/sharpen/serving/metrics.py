"""Counters in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds: upper ends of the buckets

COUNTERS = {
    "requests_total": "requests for a transcript by outcome: ok, or the code of the error",
    "audio_seconds_total": "seconds of audio transcribed",
    "stage_seconds_total": "seconds spent by stage",
    "windows_total": "windows by answer: adapted, source or silence",
    "steps_total": "updates taken, over all windows",
    "guard_total": "adapted transcripts that the guard refused",
    "confident_total": "windows that were left alone because the model was confident",
    "out_of_time_total": "windows that a deadline stopped",
    "shed_total": "windows that stopped adapting because others waited",
    "vanished_total": "requests whose client left before the answer",
    "media_restarts_total": "media processes that had to be started again",
}
GAUGES = {
    "queue": "recordings accepted and not yet done",
    "waiting": "windows that wait for their turn",
    "rows": "windows that are adapting",
    "in_flight": "requests being answered",
    "uploads": "uploads being received",
    "real_time_factor": "computing time of the model over seconds of audio, since the start",
}
AT_THE_DOOR = {"requests_total", "vanished_total", "queue", "in_flight", "uploads"}  # known where requests come in


@dataclass(frozen=True)
class Counted:
    """The numbers of one process at one moment."""

    counts: Mapping[str, Mapping[str, float]]  # by name and label
    gauges: Mapping[str, float]


class Metrics:
    """Numbers that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._gauges: dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        self._latency = [0] * (len(LATENCY) + 1)
        self._latency_sum = 0.0

    def add(self, name: str, amount: float = 1.0, label: str = "") -> None:
        """Adds to a counter. `label` is the value of its one label, where it has one."""
        assert name in COUNTERS, name
        with self._lock:
            self._counts[name][label] += amount

    def set(self, name: str, value: float) -> None:
        assert name in GAUGES, name
        with self._lock:
            self._gauges[name] = value

    def change(self, name: str, by: int) -> None:
        assert name in GAUGES, name
        with self._lock:
            self._gauges[name] += by

    def observe(self, seconds: float) -> None:
        """Records how long a request took that got a transcript."""
        with self._lock:
            self._latency[bisect_left(LATENCY, seconds)] += 1
            self._latency_sum += seconds

    def value(self, name: str, label: str = "") -> float:
        with self._lock:
            return self._gauges[name] if name in GAUGES else self._counts[name][label]

    def counted(self) -> Counted:
        with self._lock:
            return Counted({name: dict(values) for name, values in self._counts.items()}, dict(self._gauges))

    def text(self, others: Iterable[Counted] = ()) -> str:
        """All numbers; those of `others`, which work behind this door, are added."""
        known = [self.counted()]
        for other in others:
            counts = {name: values for name, values in other.counts.items() if name not in AT_THE_DOOR}
            gauges = {name: value for name, value in other.gauges.items() if name not in AT_THE_DOOR}
            known.append(Counted(counts, gauges))
        with self._lock:
            return "\n".join(self._lines(known)) + "\n"

    def _lines(self, known: list[Counted]) -> Iterator[str]:
        counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for one in known:
            for name, values in one.counts.items():
                for label, value in values.items():
                    counts[name][label] += value
        for name, meaning in COUNTERS.items():
            yield from _head(name, meaning, "counter")
            yield from _samples(name, counts[name] or {"": 0.0})
        gauges = {name: sum(one.gauges.get(name, 0.0) for one in known) for name in GAUGES}
        model = sum(counts["stage_seconds_total"][stage] for stage in ("source", "step", "answer"))
        heard = counts["audio_seconds_total"][""]
        gauges["real_time_factor"] = model / heard if heard else 0.0
        for name, meaning in GAUGES.items():
            yield from _head(name, meaning, "gauge")
            yield f"sharpen_{name} {gauges[name]:.10g}"
        yield from _head("request_seconds", "time from the end of the upload to the whole transcript", "histogram")
        total = 0
        for bound, count in zip((*map(str, LATENCY), "+Inf"), self._latency, strict=True):
            total += count
            yield f'sharpen_request_seconds_bucket{{le="{bound}"}} {total}'
        yield f"sharpen_request_seconds_sum {self._latency_sum:.10g}"
        yield f"sharpen_request_seconds_count {total}"


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP sharpen_{name} {meaning}"
    yield f"# TYPE sharpen_{name} {kind}"


LABELS = {"requests_total": "outcome", "stage_seconds_total": "stage", "windows_total": "answer"}


def _samples(name: str, values: Mapping[str, float]) -> Iterator[str]:
    for label, value in sorted(values.items()):
        if label and name in LABELS:
            yield f'sharpen_{name}{{{LABELS[name]}="{label}"}} {value:.10g}'
        elif name not in LABELS:
            yield f"sharpen_{name} {value:.10g}"
