"""What transcription needs of a model: the protocol between speech/ and the models that run.

`WhisperSpeech` and `MoonshineSpeech` answer it, in files of their own; `CTCSpeech` does too, but for the calls about a
policy, and answers `FrameModel` in their place. speech/ knows models by these protocols only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from sharpen.method.ctc import CTCAdaptation
from sharpen.method.policy import E, Policy, Prepared, S
from sharpen.method.search import Rules


class TokenText(Protocol):
    """The text of tokens, and the times that some tokens stand for."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; those that are not text are left out."""

    def is_text(self, token: int) -> bool: ...
    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that a text token writes; a character may span several tokens."""

    def time(self, token: int) -> float | None:
        """Seconds from the start of the window, for a timestamp token; None for any other."""


@dataclass(frozen=True)
class Start(Generic[E, S]):
    """A batch of windows whose prompts have been read."""

    encoded: E  # with the whole prompts, to search once more
    state: S  # the search, begun after the prompts
    languages: list[str]  # as given, or detected
    no_speech: list[float]  # probability that a window holds no speech; 0 where the model cannot tell


@dataclass(frozen=True, eq=False)
class Attention:
    """Where in a window a model listens while it writes a text of n tokens."""

    weights: np.ndarray  # (n + 2, S), larger where it listens more: before the text, for each token, and for its end
    times: np.ndarray  # (S,) seconds in the window of each column, rising


class SpeechModel(Protocol):
    """A model that transcribes windows of audio."""

    @property
    def name(self) -> str: ...
    @property
    def sampling_rate(self) -> int:
        """Of the audio it takes, in Hz."""

    @property
    def seconds(self) -> float:
        """The longest window it takes."""

    @property
    def multilingual(self) -> bool:
        """Whether a language must be given or detected; otherwise it is "en"."""

    @property
    def timestamps(self) -> bool:
        """Whether it can say when something was said, by tokens or by what it listens to."""

    @property
    def tokenizer(self) -> TokenText: ...
    @property
    def policy(self) -> Policy[Any, Any, Any]: ...

    def check(self, language: str, task: str) -> None:
        """Raises if the model cannot do the task in that language."""

    def prepare(self, windows: Sequence[np.ndarray], padding: str = "full") -> Prepared:
        """Audio made ready, without prompts: B windows of samples."""

    def prompted(
        self,
        prepared: Any,
        languages: Sequence[str],
        contexts: Sequence[Sequence[int]],
        task: str,
        timestamps: bool,
    ) -> Prepared:
        """The same windows with their prompts; `contexts` are tokens of the text before each window."""

    def start(
        self,
        encoded: Any,
        languages: Sequence[str | None],
        contexts: Sequence[Sequence[int]],
        task: str,
        timestamps: bool,
    ) -> Start[Any, Any]:
        """Detects languages that are None, judges silence, and reads the prompts."""

    def grammar(self, policy: Any, timestamps: bool, beams: bool = False) -> tuple[Policy[Any, Any, Any], Rules | None]:
        """The view of a policy to decode with, and the rules its output must follow.

        `beams`: several outputs are wanted, which should differ in their words, not in their times.
        """

    def length_limit(self, seconds: float, language: str, task: str) -> int:
        """The longest output to consider for a window, in tokens."""

    def attention(
        self,
        policy: Any,
        encoded: Any,
        texts: Sequence[Sequence[int]],
        languages: Sequence[str],
        task: str,
        seconds: Sequence[float],
    ) -> list[Attention]:
        """Where a view of the policy listens while it writes a text, for each of the windows it has encoded.

        The texts are text tokens alone. Only the frames within the `seconds` of audio are looked at, not the padding.
        """

    def frame_times(self, prepared: Any) -> Tensor:
        """The time in its window that each encoder frame stands for, in seconds, NaN for filling: (B, S)."""


@dataclass(frozen=True)
class FrameText:
    """The text of a window by a model that gives every frame a symbol or a blank."""

    tokens: tuple[int, ...]  # collapsed
    logprobs: tuple[float, ...]  # of each token, at the frame that is surest of it
    entropies: tuple[float, ...]  # of each token, at the frame with the least entropy, in nats
    avg_logprob: float  # of the best symbol, over all frames


class FrameStep(Protocol):
    """What one step of adapting to frames measured."""

    @property
    def loss(self) -> float: ...
    @property
    def frame_entropy(self) -> float:
        """Mean over the frames, in nats."""

    @property
    def H_seq(self) -> float | None:  # noqa: N802
        """Mean -log pi(y) of the samples, in nats; None where there are none."""

    @property
    def samples(self) -> int: ...
    @property
    def distinct(self) -> int: ...
    @property
    def gradient_norm(self) -> float: ...
    @property
    def seconds(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class FrameTranscript:
    """A window by the source model and, where it adapted, by the adapted one."""

    source: FrameText
    adapted: FrameText | None
    steps: Sequence[FrameStep]
    stopped: str  # why it stopped early; empty if it did not


@runtime_checkable
class FrameModel(Protocol):
    """A speech model whose frames are independent (CTC): it has no policy, and methods of its own."""

    def check_method(self, method: str) -> None:
        """Raises if the method is for other models."""

    def listen(
        self, windows: Sequence[np.ndarray], ids: Sequence[str], options: CTCAdaptation | None
    ) -> list[FrameTranscript]:
        """The texts of B windows, each adapted to first where there are options; `ids` name the random draws."""
