"""What transcription needs of a model: the protocol between speech/ and the models that run.

`WhisperSpeech` and `MoonshineSpeech` answer it, in files of their own. speech/ knows models by this protocol only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np
from torch import Tensor

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
