"""The benchmark: which cases are run, their ratios within one run, and the tables.

Engines take turns on every utterance, so that a slow spell of the machine hits them alike; batches run last. An episode
is the stem, ten times the mean of the steps that were run, and the final decode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharpen.benchmarks.episodes import Bench, Case, Clip, Timing
from sharpen.benchmarks.machine import STAGES, Machine, limit, measure
from sharpen.benchmarks.memory import peak
from sharpen.models.weights.load import load_checkpoint

METHODS = ("greedy-em", "em-tok", "em-tok-b")
MAIN = ("em-tok", 16)  # the method and G of most ratios
BATCH = 4  # utterances side by side, where several are
WIDE = 64  # G at which memory is compared
Say = Callable[[str], None]


@dataclass(frozen=True)
class Axes:
    """Along what the growth of a step is measured, and where."""

    samples: tuple[int, ...] = (1, 4, 16, 64)
    tokens: tuple[int, ...] = (8, 16, 32, 64)
    utterances: tuple[int, ...] = (1, 2, 4, 8)
    seconds: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    models: tuple[str, ...] = ("base", "tiny.en")  # the first one is the ratios'
    methods: tuple[str, ...] = METHODS
    samples: tuple[int, ...] = (4, 16, 64)
    clips: int = 8  # utterances of the main case; others take two
    steps: int = 2
    growth: Axes | None = Axes()


QUICK = Plan(models=("base",), methods=("greedy-em", "em-tok"), samples=(16,), clips=2, steps=1, growth=None)


@dataclass(frozen=True)
class Line:
    """One case of one model, averaged over its utterances."""

    model: str
    case: Case
    clips: int
    audio: float  # seconds of audio of a mean utterance
    stages: dict[str, float]  # seconds of an episode
    limits: dict[str, float] | None  # what the machine allows; not worked out for the reference

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


@dataclass
class Outcome:
    """Everything that a run measured."""

    machine: Machine
    what: str  # which utterances
    model: str  # whose ratios
    lines: list[Line] = field(default_factory=list)
    memory: dict[str, int | str] = field(default_factory=dict)  # engine -> bytes at G = WIDE, or why there is no number
    differences: dict[str, tuple[float, float]] = field(
        default_factory=dict
    )  # case -> loss, gradient against reference
    growth: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # axis -> (value, seconds of a step)
    notes: list[str] = field(default_factory=list)  # what could not be run

    def find(self, engine: str, method: str, samples: int, batch: int = 1, model: str = "") -> Line | None:
        want, model = Case(engine, method, samples, batch), model or self.model
        return next((line for line in self.lines if line.model == model and line.case == want), None)

    def ratios(self) -> dict[str, float | None]:
        """The figures that the project holds itself to; None where one was not measured."""
        reference, exact = self.find("reference", *MAIN), self.find("exact", *MAIN)
        sizes = [self.memory.get(engine) for engine in ("exact", "reference")]
        both = [size for size in sizes if isinstance(size, int)]
        limits = exact.limits if exact else None
        return {
            "exact_vs_reference": _over(reference, exact),
            "batch4_vs_reference": _over(reference, self.find("exact", *MAIN, batch=BATCH)),
            "fastest_vs_reference": _over(reference, self.find("fastest", *MAIN)),
            "em_tok_vs_greedy_em": _over(exact, self.find("exact", "greedy-em", 1)),
            "memory_vs_reference": both[0] / both[1] if len(both) == 2 else None,
            "vs_limit": exact.seconds / sum(limits.values()) if exact and limits else None,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": {
                "flops": self.machine.flops,
                "bandwidth": self.machine.bandwidth,
                "threads": self.machine.threads,
            },
            "utterances": self.what,
            "ratios": self.ratios(),
            "cases": [
                {
                    "model": line.model,
                    "engine": line.case.engine,
                    "method": line.case.method,
                    "samples": line.case.samples,
                    "batch": line.case.batch,
                    "utterances": line.clips,
                    "seconds": line.seconds,
                    "real_time_factor": line.seconds / line.audio,
                    "stages": line.stages,
                    "limits": line.limits,
                }
                for line in self.lines
            ],
            "memory_bytes": self.memory,
            "difference_from_reference": {k: {"loss": a, "gradient": b} for k, (a, b) in self.differences.items()},
            "growth": self.growth,
            "notes": self.notes,
        }


def run(plan: Plan, clips: Sequence[Clip], what: str, say: Say) -> Outcome:
    """Runs the plan; `say` hears what is under way."""
    first = plan.models[0]
    outcome = Outcome(measure(), what, first)
    for model in plan.models:
        bench = Bench(load_checkpoint(model))
        say(f"{model}: warming up")
        _warm_up(bench, clips[0])
        cases = [(method, G) for method in plan.methods for G in ((1,) if method == "greedy-em" else plan.samples)]
        for method, G in cases:  # before anything is timed: no ratio means a thing where results differ
            few = min(G, MAIN[1])  # more hypotheses would show the same, in minutes
            name = f"{model} {method} G={few}"
            if name not in outcome.differences:
                say(f"{name}: equal to the reference?")
                outcome.differences[name] = bench.check_equal(clips[0], method, few)
        for method, G in cases:
            main = model == first and G in (1, MAIN[1])
            some = clips[: plan.clips if main else 2]
            outcome.lines += _lines(bench, model, method, G, some, plan, outcome, say)
    say(f"memory at G = {WIDE}")
    longest = max(clips, key=lambda clip: clip.seconds)
    for engine in ("exact", "reference"):
        outcome.memory[engine] = peak(first, Case(engine, MAIN[0], WIDE), longest)
    if plan.growth:
        outcome.growth = _growth(Bench(load_checkpoint(first)), clips, plan.growth, say)
    return outcome


def _lines(
    bench: Bench, model: str, method: str, G: int, clips: Sequence[Clip], plan: Plan, outcome: Outcome, say: Say
) -> list[Line]:
    """Every engine on the same utterances in turn."""
    alone = [Case(engine, method, G) for engine in ("reference", "exact", "fastest")]
    timings: dict[Case, list[Timing]] = {case: [] for case in alone}
    for i, clip in enumerate(clips):
        for case in alone:
            say(f"{model} {method} G={G}: {case.engine}, utterance {i + 1} of {len(clips)}")
            try:
                timings[case] += bench.time(case, [clip], plan.steps, seed=i)
            except (MemoryError, RuntimeError) as error:
                if "memory" not in str(error).lower():
                    raise
                outcome.notes.append(f"{model} {method} G={G}: {case.engine} ran out of memory on utterance {i + 1}")
    rounds = math.lcm(len(clips), BATCH) // len(clips)  # full batches, in which each utterance comes equally often
    for engine in ("exact", "fastest") if G in (1, MAIN[1]) else ():
        case = Case(engine, method, G, BATCH)
        say(f"{model} {method} G={G}: {engine}, batches of {BATCH}")
        again = [replace(clip, id=f"{clip.id} {i}") for i in range(rounds) for clip in clips]
        timings[case] = bench.time(case, again, plan.steps)
    audio = sum(clip.seconds for clip in clips) / len(clips)
    whole = {case: found for case, found in timings.items() if len(found) >= len(clips)}  # no mean over some of them
    return [_line(bench, model, case, found, audio, outcome.machine) for case, found in whole.items()]


def _line(bench: Bench, model: str, case: Case, timings: list[Timing], audio: float, machine: Machine) -> Line:
    n = len(timings)
    episodes = [timing.episode() for timing in timings]
    stages = {stage: sum(e[stage] for e in episodes) / n for stage in STAGES}
    steps = {"stem": 1, "decode": 1}
    dims = bench.checkpoint.dimensions
    found = [limit(machine, dims, t.work, case.batch) for t in timings if t.work is not None]
    limits = {s: sum(f[s] for f in found) / n * steps.get(s, 10) for s in STAGES} if found else None
    return Line(model, case, n, audio, stages, limits)


def _growth(bench: Bench, clips: Sequence[Clip], along: Axes, say: Say) -> dict[str, list[tuple[float, float]]]:
    """Seconds of one exact em-tok step for each utterance, along each axis alone."""
    clip = sorted(clips, key=lambda c: c.seconds)[len(clips) // 2]
    method, G = MAIN

    def step(engine: str, group: Sequence[Clip], samples: int = G) -> float:
        (timing, *_) = bench.time(Case(engine, method, samples, len(group)), group, steps=1)
        return sum(seconds for stage, seconds in timing.stages.items() if stage not in ("stem", "decode"))

    def cut(seconds: float, cap: int | None = None) -> Clip:
        joined = np.concatenate([c.samples for c in clips for _ in range(3)])
        return Clip(f"{seconds} s", joined[: int(seconds * 16000)], cap)

    say("growth with G")
    grown = {"hypotheses G": [(float(g), step("exact", [clip], g)) for g in along.samples]}
    say("growth with T")
    grown["tokens T"] = [(float(t), step("exact", [cut(along.seconds[-1], t)])) for t in along.tokens]
    say("growth with B")
    grown["utterances side by side B, seconds each"] = [
        (float(b), step("exact", [replace(clip, id=f"{clip.id} {i}") for i in range(b)])) for b in along.utterances
    ]
    for engine in ("exact", "fastest"):
        say(f"growth with audio, {engine}")
        grown[f"seconds of audio, {engine}"] = [(s, step(engine, [cut(s)])) for s in along.seconds]
    return grown


def _warm_up(bench: Bench, clip: Clip) -> None:
    for engine in ("reference", "exact"):
        bench.time(Case(engine, "greedy-em", 1), [clip], steps=1)


def _over(a: Line | None, b: Line | None) -> float | None:
    return a.seconds / b.seconds if a and b else None
