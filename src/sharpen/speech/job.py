"""One recording being transcribed: which windows are next, and what becomes of their transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sharpen.models.languages import UNSPACED
from sharpen.models.speech import SpeechModel
from sharpen.speech.allowance import Allowance
from sharpen.speech.answers import Adapted, Decoded
from sharpen.speech.audio import Audio
from sharpen.speech.decoding import Window, initial_context
from sharpen.speech.longform import SHORTEST, Segment, segments, settle, with_words
from sharpen.speech.options import Options
from sharpen.speech.stream import StreamedSamples
from sharpen.speech.voice import Span, Voice, find_voice

CHUNK = 15.0  # seconds; the longest window of `chunk="vad"`
TOLERANCE = 0.2  # seconds; a text may end so much before the speech
UNHEARD = 0.5  # seconds of speech after the end of a text that ask for another window


@dataclass(eq=False)
class Job:
    """One recording being transcribed: its position, and the segments so far.

    Windows lie in stretches of it: the whole recording, or where somebody speaks, or (`chunk="vad"`) the pieces that
    it is cut into, which are decoded in any order.
    """

    audio: Audio
    options: Options
    speech: SpeechModel
    language: str | None = None  # None until detected
    position: int = 0  # samples already transcribed
    segments: list[Segment] = field(default_factory=list)
    adapted: list[tuple[float, Adapted]] = field(default_factory=list)  # adapted windows: start in seconds, and how
    cut: list[float] = field(default_factory=list)  # starts of windows whose text the length limit cut
    allowance: Allowance | None = field(init=False)  # of time; None: no limit
    _context: list[int] = field(default_factory=list)  # tokens of the text that the next window continues
    _voice: Voice | None = field(init=False, default=None)
    _stretches: tuple[Span, ...] = field(init=False)  # in samples, in order
    _waiting: dict[int, tuple[Window, Decoded]] = field(init=False, default_factory=dict)  # decoded ahead of their turn

    def __post_init__(self) -> None:
        if self.options.language != "auto" or not self.speech.multilingual:
            self.language = "en" if self.options.language == "auto" else self.options.language
        self._stretches = ((0, len(self.audio.samples)),)
        if self.options.needs_voice:
            self._voice = find_voice(self.audio.samples, self.audio.sampling_rate, self.options.vad_parameters)
            chunked = self.options.chunk == "vad"
            self._stretches = self._voice.chunks(CHUNK) if chunked else self._voice.spans()
        rate = self.audio.sampling_rate
        self.allowance = Allowance.of(self.options, sum(stop - start for start, stop in self._stretches) / rate)
        self._reset_context()
        self._move(self.position)

    @property
    def finished(self) -> bool:
        return self.position >= len(self.audio.samples)

    @property
    def done(self) -> float:
        """Seconds already transcribed."""
        return self.position / self.audio.sampling_rate

    def starts(self) -> list[int]:
        """Where the windows begin that can be decoded now, the first at the position."""
        if self.options.chunk == "sequential" or self.language is None:  # the first window decides it for all
            return [self.position]
        later = [start for start, _ in self._stretches if start > self.position]
        return [start for start in [self.position, *later] if start not in self._waiting]

    def window(self, start: int | None = None) -> Window:
        """The next window to decode, or another of `starts`."""
        start = self.position if start is None else start
        samples = self.audio.samples[start : self._end(start)]
        return Window(f"{self.audio.name}@{start}", samples, tuple(self._context), start)

    def accept(self, window: Window, decoded: Decoded) -> list[Segment]:
        """Adds the transcript of that window and moves on; returns the new segments, also of windows that waited."""
        self._waiting[window.start] = window, decoded
        new: list[Segment] = []
        while self.position in self._waiting:
            new += self._settle(*self._waiting.pop(self.position))
        return new

    def _settle(self, window: Window, decoded: Decoded) -> list[Segment]:
        """The segments of the window at the position."""
        if decoded.is_speech:  # music or noise at the start must not decide the language
            self.language = self.language or decoded.language
        if decoded.adaptation is not None:
            self.adapted.append((self.done, decoded.adaptation))
        tokenizer, rate = self.speech.tokenizer, self.audio.sampling_rate
        duration = len(window.samples) / rate
        stop = self._stop(self.position)
        new: list[Segment] = []
        consumed = duration
        if decoded.is_speech:
            self.cut += [] if decoded.finished else [self.done]
            closed, consumed = settle(tokenizer, decoded, duration, last=self.position + len(window.samples) == stop)
            new = segments(tokenizer, closed, self.done, consumed, len(self.segments))
            if self.options.word_timestamps:
                spaced = self.options.task == "translate" or decoded.language not in UNSPACED
                ended = self.segments[-1].end if self.segments else 0.0
                new = with_words(tokenizer, new, closed, self.done, consumed, spaced=spaced, last=ended)
            if self.options.chunk == "vad" and new and consumed == duration:
                consumed = self._heard(duration, new[-1].end - self.done)
        self.segments += new
        if self.options.condition_on_previous_text:
            if decoded.temperature > 0.5:  # Whisper's rule: a context that leads to uncertain text leads to more of it
                self._reset_context()
            else:
                self._context += [token for segment in new for token in segment.tokens]
        position = self.position + round(consumed * rate)
        # Whisper would invent a word for a rest that is too short.
        self._move(stop if stop - position < SHORTEST * rate else position)
        return new

    def _heard(self, duration: float, said: float) -> float:
        """After how many seconds to go on: where the text ends, if somebody speaks long after that in the window.

        In Whisper's own windows the model has the last word; of a piece cut at pauses it may leave out sentences.
        """
        assert self._voice is not None
        rate = self.audio.sampling_rate
        after, end = self.position + round((said + TOLERANCE) * rate), self.position + round(duration * rate)
        return said if said >= SHORTEST and self._voice.voiced(after, end) > UNHEARD else duration

    def _reset_context(self) -> None:
        """Back to the initial prompt."""
        self._context = list(initial_context(self.speech, self.options))

    def cancel(self) -> None:
        """Skips the rest of the recording."""
        self.position = len(self.audio.samples)
        self._waiting.clear()

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens that the next window continues."""
        return tuple(self._context)

    def resume(self, position: int, found: Sequence[Segment], language: str | None, context: Sequence[int]) -> None:
        """Continues where an earlier run was, with the segments it had found."""
        self.segments, self.language, self._context = list(found), language, list(context)
        self._move(position)

    def _stop(self, position: int) -> int:
        """The end of the stretch that it lies in."""
        return next((stop for start, stop in self._stretches if position < stop), len(self.audio.samples))

    def _end(self, start: int) -> int:
        return min(self._stop(start), start + round(self.speech.seconds * self.audio.sampling_rate))

    def _move(self, position: int) -> None:
        """To that sample, or the next one worth decoding: Whisper would invent text for silence."""
        samples = self.audio.samples
        self.position = self._next(position)
        while not self.finished and Audio(samples[self.position : self._end(self.position)]).is_silent:
            self.position = self._next(self._end(self.position))
            self._forget()
        self._forget()

    def _next(self, position: int) -> int:
        """The first sample of a stretch from there on."""
        return next(
            (max(start, position) for start, stop in self._stretches if position < stop), len(self.audio.samples)
        )

    def _forget(self) -> None:
        if isinstance(self.audio.samples, StreamedSamples):
            self.audio.samples.forget(self.position)
