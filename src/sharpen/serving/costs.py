"""How long things take here, learnt while they are done: what a deadline is measured by."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from sharpen.models.speech import SpeechModel
from sharpen.speech.decoding import Window, adapt_windows, decode_adapted, decode_source
from sharpen.speech.efforts import effort_options

WARM = 2  # seconds of noise
RECENT = 0.3  # weight of the last measurement
MARGIN = 1.25  # expected times are multiplied by this: being late is worse than a step less
LONGEST_WAIT = 60.0  # seconds that a client is told to wait at most


class Costs:
    """Seconds of each kind of work, per second of audio where it has audio."""

    def __init__(self) -> None:
        self._per_second: dict[str, float] = {}

    def saw(self, what: str, took: float, seconds: float = 1.0) -> None:
        """So many seconds of audio took so long."""
        if seconds <= 0:
            return
        new = took / seconds
        old = self._per_second.get(what, new)
        self._per_second[what] = (1 - RECENT) * old + RECENT * new

    def expected(self, what: str, seconds: float = 1.0) -> float:
        """How long so many seconds of audio will take; 0 as long as nothing is known."""
        return MARGIN * self._per_second.get(what, 0.0) * seconds

    def wait(self, seconds: float) -> float:
        """How long to wait until so many seconds of audio are done, for a client that was refused."""
        return min(LONGEST_WAIT, max(1.0, self._per_second.get("beam", 0.0) * seconds))


def search_of(decode: str) -> str:
    """What a decode costs is known by its search."""
    return "greedy" if decode == "greedy" else "beam"


def warm_up(speech: SpeechModel, costs: Costs) -> None:
    """Decodes noise and adapts to it: weights are converted when they are first used, which is not a client's time."""
    samples = np.random.default_rng(0).normal(0, 0.1, WARM * speech.sampling_rate).astype(np.float32)
    for decode in ("greedy", "beam"):
        options = effort_options("high", decode=decode, temperature=(0.0,), no_speech_threshold=None)
        begin = time.monotonic()
        source = decode_source(speech, [Window("warm", samples)], options, ["en"])
        costs.saw(decode, time.monotonic() - begin, WARM)
    assert options.adapt is not None
    options = replace(options, adapt=replace(options.adapt, steps=1, gate=0.0))
    begin = time.monotonic()
    outcome = adapt_windows(speech, source, options)
    costs.saw("turn", time.monotonic() - begin)
    decode_adapted(speech, source, outcome, options)
