"""The reference episode and ours for one utterance, every stage timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sharpen.benchmarks.machine import STAGES, Work
from sharpen.benchmarks.reference import Reference
from sharpen.errors import SharpenError
from sharpen.method.adapt import Outcome, adapt
from sharpen.method.adaptation import Adaptation
from sharpen.method.gradient import score, tree_loss
from sharpen.method.norms import affine, initial
from sharpen.method.objectives import METHODS
from sharpen.method.search import greedy
from sharpen.method.tree import HypothesisTree
from sharpen.models.log_mel import log_mel
from sharpen.models.states import PreparedSpeech
from sharpen.models.weights.checkpoint import Checkpoint
from sharpen.models.whisper import WhisperPolicy
from sharpen.models.whisper_speech import WhisperSpeech, length_limit
from sharpen.speech.presets import PRESETS

TOLERANCE = 5e-4  # relative difference between the engines' losses, and between their gradients


@dataclass(frozen=True, eq=False)
class Clip:
    """One utterance."""

    id: str
    samples: np.ndarray  # (N,) at 16 kHz
    cap: int | None = None  # its length limit in tokens; None for Whisper's

    @property
    def seconds(self) -> float:
        return len(self.samples) / 16000

    @property
    def limit(self) -> int:
        return self.cap or length_limit(self.seconds)


@dataclass(frozen=True)
class BenchCase:
    """What is timed."""

    engine: str  # reference, or a preset: exact, fast, fastest; all in float32, so they differ in padding
    method: str
    samples: int
    batch: int = 1  # utterances adapted together


@dataclass
class EpisodeTiming:
    """Seconds of one utterance: of the stem and the final decode, and of all steps together."""

    steps: int  # that were run
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    work: Work | None = None

    def add(self, stage: str, seconds: float) -> None:
        self.stages[stage] += seconds

    def episode(self, steps: int = 10) -> dict[str, float]:
        """Seconds of each stage of an episode with that many steps, from the steps that were run."""
        once = ("stem", "decode")
        return {s: t if s in once else t / self.steps * steps for s, t in self.stages.items()}


class Bench:
    """A checkpoint, ready for both engines."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        t = checkpoint.tokenizer
        self.prompt = [t.sot, t.languages["en"], t.transcribe] if t.multilingual else [t.sot]
        self.prompt.append(t.no_timestamps)

    # Each engine is made when it is first used: the process that measures its memory holds no part of the other.
    @cached_property
    def speech(self) -> WhisperSpeech:
        return WhisperSpeech(self.checkpoint)

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.checkpoint)

    @property
    def policy(self) -> WhisperPolicy:
        return self.speech.policy

    def time(self, case: BenchCase, clips: Sequence[Clip], steps: int, seed: int = 0) -> list[EpisodeTiming]:
        """The timing of each utterance; the seconds of a batch are divided among its utterances."""
        if case.engine == "reference":
            return [self._time_reference(case, clip, steps, seed) for clip in clips]
        groups = [clips[i : i + case.batch] for i in range(0, len(clips), case.batch)]
        return [timing for group in groups for timing in self._time_ours(case, group, steps, seed)]

    def prepare(self, clips: Sequence[Clip], padding: str = "full") -> PreparedSpeech:
        return self.speech.prepare([clip.samples for clip in clips], padding).prompted([self.prompt] * len(clips))

    def _time_reference(self, case: BenchCase, clip: Clip, steps: int, seed: int) -> EpisodeTiming:
        features = log_mel([clip.samples], self.checkpoint.mel)
        timing = EpisodeTiming(steps)
        trail = self.reference.episode(features, self.prompt, case.method, case.samples, steps, clip.limit, seed)
        for step in trail:
            for stage, seconds in step.seconds.items():
                timing.add(stage, seconds)
        return timing

    def _time_ours(self, case: BenchCase, clips: Sequence[Clip], steps: int, seed: int) -> list[EpisodeTiming]:
        timing, B = EpisodeTiming(steps), len(clips)
        start = time.perf_counter()
        prepared = self.prepare(clips, PRESETS[case.engine].padding)
        timing.add("stem", time.perf_counter() - start)
        outcome = self.adapt(prepared, clips, case, steps, seed)
        for step in outcome.traces[0].steps:
            for stage, seconds in step.batch_seconds.items():
                timing.add(stage, seconds)
        start = time.perf_counter()
        with torch.no_grad():
            adapted = self.policy.adapted(outcome.norms)
            trees = greedy(adapted, adapted.encode(prepared), [clip.limit for clip in clips])
        timing.add("decode", time.perf_counter() - start)
        shared = {stage: seconds / B for stage, seconds in timing.stages.items()}
        return [
            EpisodeTiming(steps, dict(shared), _work(case, outcome, b, prepared, len(tree)))
            for b, tree in enumerate(trees)
        ]

    def adapt(self, prepared: PreparedSpeech, clips: Sequence[Clip], case: BenchCase, steps: int, seed: int) -> Outcome:
        options = Adaptation(method=case.method, samples=case.samples, steps=steps, seed=seed)
        ids, limits = [clip.id for clip in clips], [clip.limit for clip in clips]
        return adapt(self.policy, prepared, options, ids=ids, limits=limits)

    def check_equal(self, clip: Clip, method: str, samples: int) -> tuple[float, float]:
        """Relative differences of loss and gradient between the engines, for the hypotheses of our first step."""
        prepared = self.prepare([clip])
        outcome = self.adapt(prepared, [clip], BenchCase("exact", method, samples), steps=1, seed=0)
        step = outcome.traces[0].steps[0]
        assert step.tree is not None
        ours = self._gradient(prepared, step.tree, method)
        features = log_mel([clip.samples], self.checkpoint.mel)
        hypotheses = [list(y.tokens) for y in step.tree.hypotheses]
        theirs = self.reference.step(
            features, self.prompt, method, samples, clip.limit, hypotheses, softmax=torch.float64
        )
        loss = abs(step.loss - theirs.loss) / max(1.0, abs(theirs.loss))
        gradient = float((ours - theirs.gradient).norm() / theirs.gradient.norm())
        if loss > TOLERANCE or gradient > TOLERANCE:
            raise SharpenError(
                f"{method}, G = {samples}: for the same hypotheses our loss differs from the reference's by {loss:.1e} "
                f"and our gradient by {gradient:.1e}; expected at most {TOLERANCE}. The engines do not compute the "
                "same, so their times cannot be compared"
            )
        return loss, gradient

    def _gradient(self, prepared: PreparedSpeech, tree: HypothesisTree, method: str) -> Tensor:
        """The gradient of the loss at the source parameters, in the order of the model's norms: (parameters,)."""
        norms, objective = self.policy.norms(), METHODS[method].objective
        assert objective is not None
        theta = initial(norms, 1).requires_grad_()
        view = self.policy.adapted(affine(norms, theta))
        scored = score(view, view.encode(prepared), [tree], theta.device)
        return scored.gradient(view, tree_loss([tree], [objective], ["tokens"]), theta)[0]


def _work(case: BenchCase, outcome: Outcome, b: int, prepared: PreparedSpeech, greedy_levels: int) -> Work:
    """The work of the mean step of utterance b."""
    steps = outcome.traces[b].steps
    levels = sum(max(len(y) for y in step.tree.hypotheses) for step in steps if step.tree is not None) / len(steps)
    nodes = sum(step.nodes for step in steps) / len(steps)
    wide = METHODS[case.method].search == "beam"  # a beam search also visits what it drops
    return Work(
        frames=prepared.stem.shape[1],
        nodes=round(nodes),
        levels=round(levels),
        searched=round(case.samples * levels if wide else nodes),
        greedy_levels=greedy_levels,
    )


def read_clips(data: Path | None, count: int = 8) -> tuple[list[Clip], str]:
    """Utterances and what they are: from `data` LibriSpeech with Gaussian noise at 10 dB, without it the examples."""
    from sharpen.evaluation.corpora.corpus import read_corpus

    if data is not None:
        corpus = read_corpus(data / "librispeech-test-other" / "manifest.jsonl").corrupted("GS", 10.0, None)
        chosen = corpus.utterances[:: max(1, len(corpus.utterances) // count)][:count]
        name = f"{len(chosen)} utterances of librispeech-test-other with Gaussian noise at 10 dB"
    else:
        examples = Path(__file__).parents[3] / "examples" / "manifest.jsonl"
        if not examples.is_file():
            raise SharpenError(
                "no utterances: this installation has no examples/; give --data DIR, a folder with "
                "librispeech-test-other/manifest.jsonl"
            )
        chosen = read_corpus(examples).utterances[:count]
        name = f"{len(chosen)} example clips"
    return [Clip(u.id, u.samples()) for u in chosen], name
