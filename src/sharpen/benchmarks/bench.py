"""The benchmark: which cases are run, and the ratios between them, all from one run.

Engines alternate on every utterance, so that a temporarily slow machine affects them equally; batches run last. The
time of an episode is the stem, ten times the mean of the steps that were run, and the final decode. The efforts of
`sharpen transcribe` are timed as a whole, with every model; episodes only with Whisper, which has a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from sharpen.benchmarks.efforts import EffortCost, time_efforts
from sharpen.benchmarks.episodes import Bench, BenchCase, Clip, EpisodeTiming
from sharpen.benchmarks.machine import STAGES, Machine, limit, measure
from sharpen.benchmarks.memory import peak
from sharpen.errors import SharpenError
from sharpen.models.load import load_speech
from sharpen.models.weights.ctc import CTCCheckpoint
from sharpen.models.weights.load import find_checkpoint, load_checkpoint
from sharpen.models.whisper_speech import WhisperSpeech

METHODS = ("greedy-em", "em-tok", "em-tok-b")
MAIN = ("em-tok", 16)  # the method and G of most ratios
OURS = ("exact", "fast", "fastest")  # engines of the main case
FEWER = ("exact", "fastest")  # of the others
BATCH = 4  # utterances of a batch
WIDE = 64  # G at which memory is compared
Say = Callable[[str], None]


@dataclass(frozen=True)
class GrowthAxes:
    """The values at which the time of a step is measured, one axis at a time."""

    samples: tuple[int, ...] = (1, 4, 16, 64)
    tokens: tuple[int, ...] = (8, 16, 32, 64)
    utterances: tuple[int, ...] = (1, 2, 4, 8)
    seconds: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class BenchPlan:
    """What is run."""

    models: tuple[str, ...] = ("base", "tiny.en")  # the ratios are those of the first Whisper model
    methods: tuple[str, ...] = METHODS
    samples: tuple[int, ...] = (4, 16, 64)
    clips: int = 8  # utterances of the main case and of the efforts; the others have two
    steps: int = 2
    growth: GrowthAxes | None = GrowthAxes()


QUICK = BenchPlan(models=("base",), methods=("greedy-em", "em-tok"), samples=(16,), clips=2, steps=1, growth=None)


@dataclass(frozen=True)
class CaseResult:
    """One case of one model, the mean over its utterances."""

    model: str
    case: BenchCase
    clips: int
    audio: float  # seconds of audio
    stages: dict[str, float]  # seconds of an episode
    limits: dict[str, float] | None  # the same at the limit of the machine; None for the reference

    @property
    def seconds(self) -> float:
        return sum(self.stages.values())


@dataclass
class BenchResult:
    """Everything that one run measured."""

    machine: Machine
    utterances: str  # what they are
    model: str = ""  # of the ratios: the first Whisper model, if there is one
    efforts: list[EffortCost] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    memory: dict[str, int | str] = field(default_factory=dict)  # engine -> bytes at G = WIDE, or why it failed
    differences: dict[str, tuple[float, float]] = field(default_factory=dict)  # case -> of loss, gradient; relative
    growth: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # axis -> (value, seconds of a step)
    notes: list[str] = field(default_factory=list)  # what could not be run

    def find(self, engine: str, method: str, samples: int, batch: int = 1, model: str = "") -> CaseResult | None:
        want, model = BenchCase(engine, method, samples, batch), model or self.model
        return next((one for one in self.cases if one.model == model and one.case == want), None)

    def ratios(self) -> dict[str, float | None]:
        """The ratios that have goals (`tables.GOALS`); None where one was not measured."""
        reference, exact = self.find("reference", *MAIN), self.find("exact", *MAIN)
        sizes = [self.memory.get(engine) for engine in ("exact", "reference")]
        both = [size for size in sizes if isinstance(size, int)]
        limits = exact.limits if exact else None
        return {
            "exact_vs_reference": _ratio(reference, exact),
            "batch4_vs_reference": _ratio(reference, self.find("exact", *MAIN, batch=BATCH)),
            "fastest_vs_reference": _ratio(reference, self.find("fastest", *MAIN)),
            "em_tok_vs_greedy_em": _ratio(exact, self.find("exact", "greedy-em", 1)),
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
            "utterances": self.utterances,
            "efforts": [asdict(one) for one in self.efforts],
            "ratios": self.ratios(),
            "cases": [
                {
                    "model": one.model,
                    "engine": one.case.engine,
                    "method": one.case.method,
                    "samples": one.case.samples,
                    "batch": one.case.batch,
                    "utterances": one.clips,
                    "seconds": one.seconds,
                    "real_time_factor": one.seconds / one.audio,
                    "stages": one.stages,
                    "limits": one.limits,
                }
                for one in self.cases
            ],
            "memory_bytes": self.memory,
            "difference_from_reference": {k: {"loss": a, "gradient": b} for k, (a, b) in self.differences.items()},
            "growth": self.growth,
            "notes": self.notes,
        }


def run(plan: BenchPlan, clips: Sequence[Clip], utterances: str, say: Say) -> BenchResult:
    """Runs the plan; `say` is called with a line about each part before it starts."""
    result = BenchResult(measure(), utterances)
    for model in plan.models:
        speech = load_speech(model, "cpu", "float32")
        if isinstance(speech, WhisperSpeech):
            _time_whisper(Bench(speech.checkpoint), model, plan, clips, result, say)
        else:
            result.efforts += time_efforts(model, speech, clips[: plan.clips], say)
            result.notes.append(f"Of {model} only the efforts are timed: the reference of the episodes is for Whisper.")
    if not result.model:
        return result
    say(f"memory at G = {WIDE}")
    longest = max(clips, key=lambda clip: clip.seconds)
    for engine in ("exact", "reference"):
        result.memory[engine] = peak(result.model, BenchCase(engine, MAIN[0], WIDE), longest)
    if plan.growth:
        result.growth = _growth(Bench(load_checkpoint(result.model)), clips, plan.growth, say)
    return result


def check_models(names: Sequence[str]) -> None:
    """Raises if one of them cannot be loaded or timed, which `run` would notice minutes later."""
    for name in names:
        if isinstance(find_checkpoint(name).load(), CTCCheckpoint):
            raise SharpenError(
                f"{name} is a CTC model, which has no efforts but plain and no hypotheses: there is nothing that bench "
                "could time. Leave it out of --models"
            )


def _time_whisper(
    bench: Bench, model: str, plan: BenchPlan, clips: Sequence[Clip], result: BenchResult, say: Say
) -> None:
    """Adds the efforts and the episodes of one model."""
    result.model = result.model or model
    say(f"{model}: warming up")
    _warm_up(bench, clips[0])
    cases = [(method, G) for method in plan.methods for G in ((1,) if method == "greedy-em" else plan.samples)]
    for method, G in cases:  # before anything is timed: a ratio is meaningless if the results differ
        few = min(G, MAIN[1])  # more hypotheses would show the same and take minutes
        name = f"{model} {method} G={few}"
        if name not in result.differences:
            say(f"{name}: equal to the reference?")
            result.differences[name] = bench.check_equal(clips[0], method, few)
    result.efforts += time_efforts(model, bench.speech, clips[: plan.clips], say)
    for method, G in cases:
        main = model == result.model and G in (1, MAIN[1])
        engines, chosen = (OURS, clips[: plan.clips]) if main else (FEWER, clips[:2])
        result.cases += _time_case(bench, model, method, G, engines, chosen, plan, result, say)


def _time_case(
    bench: Bench,
    model: str,
    method: str,
    G: int,
    engines: Sequence[str],
    clips: Sequence[Clip],
    plan: BenchPlan,
    result: BenchResult,
    say: Say,
) -> list[CaseResult]:
    """The reference and our engines on the same utterances, alternating."""
    alone = [BenchCase(engine, method, G) for engine in ("reference", *engines)]
    timings: dict[BenchCase, list[EpisodeTiming]] = {case: [] for case in alone}
    for i, clip in enumerate(clips):
        for case in alone:
            say(f"{model} {method} G={G}: {case.engine}, utterance {i + 1} of {len(clips)}")
            try:
                timings[case] += bench.time(case, [clip], plan.steps, seed=i)
            except (MemoryError, RuntimeError) as error:
                if "memory" not in str(error).lower():
                    raise
                result.notes.append(f"{model} {method} G={G}: {case.engine} ran out of memory on utterance {i + 1}")
    rounds = math.lcm(len(clips), BATCH) // len(clips)  # fills whole batches with every utterance equally often
    for engine in engines if G in (1, MAIN[1]) else ():
        case = BenchCase(engine, method, G, BATCH)
        say(f"{model} {method} G={G}: {engine}, batches of {BATCH}")
        again = [replace(clip, id=f"{clip.id} {i}") for i in range(rounds) for clip in clips]
        timings[case] = bench.time(case, again, plan.steps)
    audio = sum(clip.seconds for clip in clips) / len(clips)
    complete = {case: timed for case, timed in timings.items() if len(timed) >= len(clips)}  # no mean over some of them
    return [_mean(bench, model, case, timed, audio, result.machine) for case, timed in complete.items()]


def _mean(
    bench: Bench, model: str, case: BenchCase, timings: list[EpisodeTiming], audio: float, machine: Machine
) -> CaseResult:
    n = len(timings)
    episodes = [timing.episode() for timing in timings]
    stages = {stage: sum(e[stage] for e in episodes) / n for stage in STAGES}
    steps = {"stem": 1, "decode": 1}
    dims = bench.checkpoint.dimensions
    each = [limit(machine, dims, t.work, case.batch) for t in timings if t.work is not None]
    limits = {s: sum(one[s] for one in each) / n * steps.get(s, 10) for s in STAGES} if each else None
    return CaseResult(model, case, n, audio, stages, limits)


def _growth(bench: Bench, clips: Sequence[Clip], along: GrowthAxes, say: Say) -> dict[str, list[tuple[float, float]]]:
    """Seconds of one em-tok step per utterance, along each axis: the axis -> (value, seconds)."""
    clip = sorted(clips, key=lambda c: c.seconds)[len(clips) // 2]
    method, G = MAIN

    def step(engine: str, group: Sequence[Clip], samples: int = G) -> float:
        (timing, *_) = bench.time(BenchCase(engine, method, samples, len(group)), group, steps=1)
        return sum(seconds for stage, seconds in timing.stages.items() if stage not in ("stem", "decode"))

    def cut(seconds: float, cap: int | None = None) -> Clip:
        joined = np.concatenate([c.samples for c in clips for _ in range(3)])
        return Clip(f"{seconds} s", joined[: int(seconds * 16000)], cap)

    say("growth with G")
    grown = {"hypotheses G": [(float(g), step("exact", [clip], g)) for g in along.samples]}
    say("growth with T")
    grown["tokens T"] = [(float(t), step("exact", [cut(along.seconds[-1], t)])) for t in along.tokens]
    say("growth with B")
    grown["batch of B utterances, seconds each"] = [
        (float(b), step("exact", [replace(clip, id=f"{clip.id} {i}") for i in range(b)])) for b in along.utterances
    ]
    for engine in ("exact", "fastest"):
        say(f"growth with audio, {engine}")
        grown[f"seconds of audio, {engine}"] = [(s, step(engine, [cut(s)])) for s in along.seconds]
    return grown


def _warm_up(bench: Bench, clip: Clip) -> None:
    for engine in ("reference", "exact"):
        bench.time(BenchCase(engine, "greedy-em", 1), [clip], steps=1)


def _ratio(a: CaseResult | None, b: CaseResult | None) -> float | None:
    return a.seconds / b.seconds if a and b else None
