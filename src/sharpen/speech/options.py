"""How to transcribe: the options of a recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS, Method
from sharpen.models.languages import language_code
from sharpen.options import declared, option, validate
from sharpen.speech.presets import Padding

WIDTH = 5  # of Whisper's own beam search
Decode = Literal["greedy", "beam", "mbr"]
Chunk = Literal["sequential", "vad"]
FALLBACK = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class VadParameters:
    """What counts as speech to the voice activity detector. Names and defaults are faster-whisper's."""

    threshold: float = option(
        0.5, "probability from which a frame is speech", flag="--vad-threshold", above=0, most=1, role="recording"
    )
    min_speech_duration_ms: float = option(
        0, "speech shorter than this is left out", flag="--vad-min-speech-duration-ms", least=0, role="recording"
    )
    max_speech_duration_s: float | None = option(
        None,
        "speech longer than this is cut, at a pause",
        flag="--vad-max-speech-duration-s",
        above=0,
        role="recording",
    )
    min_silence_duration_ms: float = option(
        2000, "a shorter silence belongs to the speech", flag="--vad-min-silence-duration-ms", least=0, role="recording"
    )
    speech_pad_ms: float = option(
        400, "kept before and after speech", flag="--vad-speech-pad-ms", least=0, role="recording"
    )

    def __post_init__(self) -> None:
        if self.max_speech_duration_s == math.inf:  # faster-whisper's way to say that there is no limit
            object.__setattr__(self, "max_speech_duration_s", None)
        validate(self)


@dataclass(frozen=True)
class Options:
    """How to transcribe. The thresholds and their defaults are Whisper's own.

    `adapt` and `vad_parameters` are no options: their own fields are. A method's name or row of METHODS means the
    defaults of that method.
    """

    language: str = option("auto", "code or English name; auto detects it in each recording", role="recording")
    task: Literal["transcribe", "translate"] = option("transcribe", "translate: into English")
    adapt: Adaptation | None = None  # adapt the model to every window before decoding it
    decode: Decode = option(
        "beam", "search for the answer, adapted or not; mbr takes the beam with the fewest expected word errors"
    )
    beam_size: int = option(WIDTH, "width of --decode beam and mbr; the method beam is as wide as --samples", least=1)
    length_penalty: float = option(
        1.0,
        "what a beam's log-probability is divided by to compare it with others: its length to this power; 1 is "
        "Whisper's own way, 0 compares the probabilities of whole texts",
        least=0,
    )
    budget: str | None = option(
        None,
        "computing time that adapting may use: seconds per second of audio (0.5), or a multiple of the time of plain "
        "decoding (4x); windows that adapt little leave theirs to later ones",
        pattern=r"\d+(\.\d+)?x?",
        example="a number such as 0.5, or a multiple such as 4x",
        role="recording",
    )
    deadline: float | None = option(
        None, "seconds in which a recording should be done: it adapts as far as they allow", above=0, role="recording"
    )
    padding: Padding = option(
        "full", "frames of padding kept after short audio: all, one in four, or one in sixteen; fewer are faster"
    )
    timestamps: bool = option(True, "decode timestamp tokens, which divide a window into segments")
    word_timestamps: bool = option(False, "also find when each word was spoken", role="output")
    confidence: bool = option(False, "words with their confidence and alternatives, also without times", role="output")
    n_best: int = option(1, "texts to give for each window, each with its probability", least=1, role="output")
    initial_prompt: str = option("", "text that the recording continues: names, spelling, style")
    condition_on_previous_text: bool = option(
        False, "feed back what was just said; it helps names and amplifies loops", role="recording"
    )
    temperature: tuple[float, ...] = option(FALLBACK, "tried in turn until the checks pass", least=0)
    best_of: int = option(5, "samples at a temperature above 0, of which the most probable is kept", least=1)
    no_speech_threshold: float | None = option(
        0.6, "probability of <|nospeech|> above which a window with a low log-probability holds no speech"
    )
    compression_ratio_threshold: float | None = option(
        2.4, "compression ratio above which a text repeats itself: try the next temperature"
    )
    logprob_threshold: float | None = option(-1.0, "average log-probability below which to try the next temperature")
    vad_filter: bool = option(
        False, "decode only where a voice is heard; needs sharpen[vad]", flag="--vad", role="recording"
    )
    vad_parameters: VadParameters = VadParameters()  # or a mapping of its fields
    chunk: Chunk = option(
        "sequential",
        "sequential: a window begins where the one before ended; vad: cut at pauses first, and decode only speech, "
        "the windows of one recording side by side",
        role="recording",
    )
    batch_size: int = option(1, "recordings side by side, or windows with --chunk vad", least=1, role="machine")
    seed: int = option(0, "seed of every random draw")

    def __post_init__(self) -> None:
        given: Any = self  # what callers may write besides the declared types: None, one number, a method's name
        language, temperature = given.language or "auto", given.temperature
        if isinstance(language, str) and language != "auto":
            language = language_code(language)
        if isinstance(temperature, int | float):
            temperature = (float(temperature),)
        adapt = Adaptation(method=given.adapt) if isinstance(given.adapt, str | Method) else given.adapt
        if not isinstance(adapt, Adaptation | None):
            raise SharpenError(f"adapt is {adapt!r}; expected a method's name or a sharpen.Adaptation")
        self._set(language=language, temperature=temperature, adapt=adapt, initial_prompt=given.initial_prompt or "")
        self._set(vad_parameters=_vad_parameters(given.vad_parameters))
        validate(self)
        self._set(temperature=tuple(temperature))
        if not temperature:
            raise SharpenError("temperature is (); expected one or more numbers")
        if self.chunk == "vad" and self.condition_on_previous_text:
            raise SharpenError("condition_on_previous_text needs chunk='sequential': windows of 'vad' have none before")
        if self.vad_parameters != VadParameters() and not self.needs_voice:
            raise SharpenError("vad_parameters do nothing without voice activity: set vad_filter, or chunk='vad'")
        self._resolve_search()

    def _resolve_search(self) -> None:
        """What `decode`, `beam_size` and the method say together about the search for the answer.

        The method beam is the paper's baseline and as wide as its samples. An adapting method, or none, ends in a beam
        of `beam_size` where `decode` or the method's own row says so, else in greedy search (`final_decode`). `source`
        and `beam` are ways to decode, so `adapt` is None for them.
        """
        row = METHODS["source"] if self.adapt is None else self.adapt.row
        if self.adapt is not None and row.search is None:
            if row.decode == "beam" and self.beam_size != WIDTH:
                raise SharpenError(
                    f"beam_size is {self.beam_size}, but the method beam is as wide as its samples: "
                    "set samples, or use decode='beam' without the method"
                )
            self._set(adapt=None, beam_size=self.adapt.samples if row.decode == "beam" else self.beam_size)
            self._set(decode="beam" if row.decode == "beam" else self.decode)
        if self.beam_size != WIDTH and self.final_decode == "greedy":
            raise SharpenError(f"beam_size is {self.beam_size}, but decode is 'greedy': set decode='beam'")
        found = 1 if self.final_decode == "greedy" else self.beam_size
        if self.n_best > found:
            raise SharpenError(
                f"n_best is {self.n_best}, but the search finds {found}: set decode='beam' and beam_size={self.n_best}"
            )

    @property
    def final_decode(self) -> Decode:
        """How the answer of an adapted model is searched; the source model is searched by `decode`."""
        own = self.adapt is not None and self.adapt.row.decode == "beam" and self.decode == "greedy"
        return "beam" if own else self.decode

    @property
    def needs_voice(self) -> bool:
        """Whether the voice activity detector is used."""
        return self.vad_filter or self.chunk == "vad"

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _vad_parameters(given: Any) -> VadParameters:
    if isinstance(given, Mapping):
        unknown = [str(name) for name in given if name not in declared(VadParameters)]
        if unknown:
            expected = ", ".join(declared(VadParameters))
            raise SharpenError(f"vad_parameters has {', '.join(unknown)}; expected some of {expected}")
        return VadParameters(**given)
    if given is not None and not isinstance(given, VadParameters):
        raise SharpenError(f"vad_parameters is {given!r}; expected a mapping or VadParameters")
    return given or VadParameters()
