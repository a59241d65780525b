"""How to transcribe: the options of a recording."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import Method
from sharpen.models.languages import language_code
from sharpen.models.padding import EVERY
from sharpen.speech.presets import Padding

WIDTH = 5  # of a beam search, as in Whisper


@dataclass(frozen=True)
class Options:
    """How to transcribe. The thresholds and their defaults are Whisper's own."""

    language: str = "auto"  # a code or an English name; "auto", or None, listens to the first window with sound in it
    task: Literal["transcribe", "translate"] = "transcribe"  # translate: into English
    adapt: Adaptation | None = None  # adapt the model to every window before decoding it; a method's name will do
    decode: Literal["greedy", "beam"] = "greedy"  # how the answer is found, adapted or not
    beam_size: int | None = None  # width of the beam search; unless given, 5, or the samples of the method "beam"
    padding: Padding = "full"  # condensed, sparse: the silence behind the speech in fewer frames, faster
    timestamps: bool = True  # decode timestamp tokens, which divide a window into segments
    initial_prompt: str = ""  # or None: text that the recording is taken to continue: names, spelling, style
    condition_on_previous_text: bool = False  # feed back what was just said; helps names, amplifies loops
    temperature: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in turn until the checks pass; or just one
    best_of: int = 5  # samples at a temperature above 0, of which the most probable is kept
    no_speech_threshold: float | None = 0.6  # above it, and with a low log-probability, a window holds no speech
    compression_ratio_threshold: float | None = 2.4  # above it the text repeats itself: try the next temperature
    logprob_threshold: float | None = -1.0  # average log-probability below which to try the next temperature
    batch_size: int = 1  # recordings side by side, where several are given
    seed: int = 0  # of the samples at temperatures above 0

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"language": self.language, "temperature": self.temperature}
        language, temperature = given["language"] or "auto", given["temperature"]
        self._set(language=language if language == "auto" else language_code(language))
        self._set(initial_prompt=self.initial_prompt or "")
        if isinstance(self.adapt, str | Method):
            self._set(adapt=Adaptation(method=self.adapt))
        if not isinstance(self.adapt, Adaptation | None):
            raise SharpenError(f"adapt is {self.adapt!r}; expected a method's name or a sharpen.Adaptation")
        self._set(temperature=(float(temperature),) if isinstance(temperature, (int, float)) else tuple(temperature))
        if self.adapt is not None and self.adapt.row.search is None:  # source and beam are ways to decode
            if self.adapt.row.decode == "beam":
                self._set(decode="beam", beam_size=self.adapt.samples if self.beam_size is None else self.beam_size)
            self._set(adapt=None)
        if self.beam_size is None:
            self._set(beam_size=WIDTH)
        choices = {"task": ("transcribe", "translate"), "decode": ("greedy", "beam"), "padding": ("full", *EVERY)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SharpenError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
        for name in ("beam_size", "best_of", "batch_size"):
            if getattr(self, name) < 1:
                raise SharpenError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not self.temperature or not all(0 <= t < math.inf for t in self.temperature):
            raise SharpenError(f"temperature is {self.temperature}; expected one or more numbers from 0 up")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
