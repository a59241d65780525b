"""One utterance through the straightforward episode and through ours, every stage timed."""

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
from sharpen.method import norms as norm_room
from sharpen.method.adaptation import Adaptation
from sharpen.method.episode import Episode, adapt
from sharpen.method.gradient import charge, score
from sharpen.method.objectives import METHODS
from sharpen.method.policy import default_limit
from sharpen.method.search import greedy
from sharpen.method.tree import HypothesisTree
from sharpen.models.log_mel import log_mel
from sharpen.models.padding import EVERY
from sharpen.models.states import Prepared
from sharpen.models.weights.checkpoint import Checkpoint
from sharpen.models.whisper import WhisperPolicy

TOLERANCE = 5e-4  # between both engines' losses and gradients, relative


@dataclass(frozen=True, eq=False)
class Clip:
    """An utterance of the benchmark."""

    id: str
    samples: np.ndarray  # (N,) at 16 kHz
    cap: int | None = None  # a length limit of its own

    @property
    def seconds(self) -> float:
        return len(self.samples) / 16000

    @property
    def limit(self) -> int:
        return self.cap or default_limit(self.seconds)


@dataclass(frozen=True)
class Case:
    """What is timed."""

    engine: str  # reference, exact, or fastest: sparse padding in float32
    method: str
    samples: int
    batch: int = 1  # utterances side by side


@dataclass
class Timing:
    """Seconds of one utterance: once per episode, or per step."""

    steps: int
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    work: Work | None = None

    def add(self, stage: str, seconds: float) -> None:
        self.stages[stage] += seconds

    def episode(self, steps: int = 10) -> dict[str, float]:
        """The stages of an episode of so many steps, from those that were run."""
        once = ("stem", "decode")
        return {s: t if s in once else t / self.steps * steps for s, t in self.stages.items()}

    def total(self, steps: int = 10) -> float:
        return sum(self.episode(steps).values())


class Bench:
    """A checkpoint made ready for both engines."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        t = checkpoint.tokenizer
        self.prompt = [t.sot, t.languages["en"], t.transcribe] if t.multilingual else [t.sot]
        self.prompt.append(t.no_timestamps)

    # Each engine is made when it is asked for: a process that measures one's memory holds no part of the other.
    @cached_property
    def policy(self) -> WhisperPolicy:
        return WhisperPolicy(self.checkpoint)

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.checkpoint)

    def time(self, case: Case, clips: Sequence[Clip], steps: int, seed: int = 0) -> list[Timing]:
        """Each utterance's timing; a batch's seconds are shared among its utterances."""
        if case.engine == "reference":
            return [self._time_reference(case, clip, steps, seed) for clip in clips]
        groups = [clips[i : i + case.batch] for i in range(0, len(clips), case.batch)]
        return [timing for group in groups for timing in self._time_ours(case, group, steps, seed)]

    def prepare(self, clips: Sequence[Clip], sparse: bool = False) -> Prepared:
        mel = self.checkpoint.mel
        features = log_mel([clip.samples for clip in clips], mel)
        speech = [-(-len(clip.samples) // mel.hop_length) for clip in clips] if sparse else None
        return self.policy.prepare(features, [self.prompt] * len(clips), speech, EVERY["sparse"])

    def _time_reference(self, case: Case, clip: Clip, steps: int, seed: int) -> Timing:
        features = log_mel([clip.samples], self.checkpoint.mel)
        timing = Timing(steps)
        trail = self.reference.episode(features, self.prompt, case.method, case.samples, steps, clip.limit, seed)
        for step in trail:
            for stage, seconds in step.seconds.items():
                timing.add(stage, seconds)
        return timing

    def _time_ours(self, case: Case, clips: Sequence[Clip], steps: int, seed: int) -> list[Timing]:
        timing, B = Timing(steps), len(clips)
        start = time.perf_counter()
        prepared = self.prepare(clips, sparse=case.engine == "fastest")
        timing.add("stem", time.perf_counter() - start)
        episode = self.adapt(prepared, clips, case, steps, seed)
        for step in episode.traces[0].steps:  # a batch's steps share their seconds
            for stage, seconds in step.seconds.items():
                timing.add(stage, seconds)
        start = time.perf_counter()
        with torch.no_grad():
            adapted = self.policy.adapted(episode.norms)
            trees = greedy(adapted, adapted.encode(prepared), [clip.limit for clip in clips])
        timing.add("decode", time.perf_counter() - start)
        shared = {stage: seconds / B for stage, seconds in timing.stages.items()}
        return [
            Timing(steps, dict(shared), _work(case, episode, b, prepared, len(tree))) for b, tree in enumerate(trees)
        ]

    def adapt(self, prepared: Prepared, clips: Sequence[Clip], case: Case, steps: int, seed: int) -> Episode:
        options = Adaptation(method=case.method, samples=case.samples, steps=steps, seed=seed)
        ids, limits = [clip.id for clip in clips], [clip.limit for clip in clips]
        return adapt(self.policy, prepared, options, ids=ids, limits=limits)

    def check_equal(self, clip: Clip, method: str, samples: int) -> tuple[float, float]:
        """Relative differences of loss and gradient between both engines, for the hypotheses that ours finds first."""
        prepared = self.prepare([clip])
        episode = self.adapt(prepared, [clip], Case("exact", method, samples), steps=1, seed=0)
        step = episode.traces[0].steps[0]
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
                f"{method}, G = {samples}: for the same hypotheses our loss differs by {loss:.1e} and our gradient by "
                f"{gradient:.1e} from the reference's, expected at most {TOLERANCE}: no ratio of times means a thing"
            )
        return loss, gradient

    def _gradient(self, prepared: Prepared, tree: HypothesisTree, method: str) -> Tensor:
        """Of the loss at the source parameters, (parameters,), in the order of the model's norms."""
        norms, objective = self.policy.norms(), METHODS[method].objective
        assert objective is not None
        theta = norm_room.initial(norms, 1).requires_grad_()
        view = self.policy.adapted(norm_room.affine(norms, theta))
        scored = score(view, view.encode(prepared), [tree], theta.device)
        return scored.gradient(view, charge([tree], objective, "tokens"), theta)[0]


def _work(case: Case, episode: Episode, b: int, prepared: Prepared, greedy_levels: int) -> Work:
    """The mean step of one utterance."""
    steps = episode.traces[b].steps
    levels = sum(max(len(y) for y in step.tree.hypotheses) for step in steps if step.tree is not None) / len(steps)
    nodes = sum(step.nodes for step in steps) / len(steps)
    wide = METHODS[case.method].search == "beam"  # a beam also visits what it drops
    return Work(
        frames=prepared.stem.shape[1],
        nodes=round(nodes),
        levels=round(levels),
        searched=round(case.samples * levels if wide else nodes),
        greedy_levels=greedy_levels,
    )


def read_clips(data: Path | None, count: int = 8) -> tuple[list[Clip], str]:
    """Real speech with Gaussian noise at 10 dB where `data` has it, else the examples as they are; and which it is."""
    from sharpen.evaluation.corpora.corpus import read_corpus

    if data is not None:
        corpus = read_corpus(data / "librispeech-test-other" / "manifest.jsonl").corrupted("GS", 10.0, None)
        chosen = corpus.utterances[:: max(1, len(corpus.utterances) // count)][:count]
        what = f"{len(chosen)} of librispeech-test-other with Gaussian noise at 10 dB"
    else:
        corpus = read_corpus(Path(__file__).parents[3] / "examples" / "manifest.jsonl")
        chosen = corpus.utterances[:count]
        what = f"{len(chosen)} example clips"
    return [Clip(u.id, u.samples()) for u in chosen], what
