"""What the efforts of `sharpen transcribe` cost: whole windows transcribed under each, in float32."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sharpen.benchmarks.episodes import Clip
from sharpen.evaluation.runs.settings import of_effort
from sharpen.models.speech import SpeechModel
from sharpen.speech.decoding import Window, decode
from sharpen.speech.efforts import EFFORTS


@dataclass(frozen=True)
class EffortTiming:
    """One utterance transcribed under one effort."""

    seconds: float
    adapted: bool


@dataclass(frozen=True)
class EffortCost:
    """An effort beside the others, on the same utterances."""

    model: str
    effort: str
    utterances: int
    seconds: float  # per utterance, the mean
    times_plain: float  # its seconds divided by those of plain
    faster_than_paper: float  # the seconds of paper divided by its own
    left_alone: int  # utterances that were not adapted to: all under plain, elsewhere the confident ones


def time_efforts(
    model: str, speech: SpeechModel, clips: Sequence[Clip], say: Callable[[str], None]
) -> list[EffortCost]:
    """The cost of every effort with a model, named as the user did. Efforts alternate on every utterance."""
    say(f"{model}: efforts: warming up")
    _transcribe(speech, clips[0], "plain")
    timings: dict[str, list[EffortTiming]] = {effort: [] for effort in EFFORTS}
    for i, clip in enumerate(clips):
        for effort, timed in timings.items():
            say(f"{model}: effort {effort}, utterance {i + 1} of {len(clips)}")
            timed.append(_transcribe(speech, clip, effort))
    return compare(model, timings)


def compare(model: str, timings: Mapping[str, Sequence[EffortTiming]]) -> list[EffortCost]:
    """The efforts' costs from the timings of the same utterances under each."""
    mean = {effort: sum(one.seconds for one in timed) / len(timed) for effort, timed in timings.items()}
    return [
        EffortCost(
            model,
            effort,
            len(timed),
            mean[effort],
            mean[effort] / mean["plain"],
            mean["paper"] / mean[effort],
            sum(not one.adapted for one in timed),
        )
        for effort, timed in timings.items()
    ]


def _transcribe(speech: SpeechModel, clip: Clip, effort: str) -> EffortTiming:
    window, options = Window(clip.id, clip.samples), of_effort(effort).options("exact")
    start = time.perf_counter()
    (result,) = decode(speech, [window], options, ["en"])
    seconds = time.perf_counter() - start
    return EffortTiming(seconds, result.adaptation is not None and bool(result.adaptation.trace.steps))
