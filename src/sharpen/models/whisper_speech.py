"""Whisper as a speech model: audio in, prompts, the text of tokens, and what its special tokens say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.policy import LONGEST
from sharpen.models.attention import consensus
from sharpen.models.languages import SPELLED
from sharpen.models.log_mel import log_mel
from sharpen.models.padding import EVERY
from sharpen.models.speech import Attention, Start
from sharpen.models.states import EncodedSpeech, PreparedSpeech, SpeechState
from sharpen.models.timestamps import TimestampRules
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.weights.checkpoint import Checkpoint
from sharpen.models.whisper import WhisperPolicy

TOKENS_PER_SECOND = 15  # twice what fast English needs
SPELLED_TOKENS_PER_SECOND = 60  # for scripts whose letters the vocabulary lacks
SHORTEST_LIMIT = 32  # tokens
MAX_CONTEXT = 223  # tokens of earlier text that fit before the prompt: half of the decoder's positions, less one


class WhisperSpeech:
    """Answers `models.speech.SpeechModel` for a Whisper checkpoint."""

    timestamps = True

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.checkpoint = checkpoint
        self.policy = WhisperPolicy(checkpoint, device, dtype)
        self.tokenizer: WhisperTokenizer = checkpoint.tokenizer
        self.name = checkpoint.name
        self.sampling_rate = checkpoint.mel.sampling_rate
        self.seconds = float(checkpoint.mel.seconds)
        self.multilingual = self.tokenizer.multilingual

    def check(self, language: str, task: str) -> None:
        if not self.multilingual and (language != "en" or task != "transcribe"):
            raise SharpenError(
                f"an English-only model cannot {task} {language!r}; use the multilingual model (without .en)"
            )
        if self.multilingual and language not in self.tokenizer.languages:
            raise SharpenError(f"this checkpoint does not know the language {language!r}; use a newer one")

    def prepare(self, windows: Sequence[np.ndarray], padding: str = "full") -> PreparedSpeech:
        mel = self.checkpoint.mel
        features, start = log_mel(list(windows), mel), [[self.tokenizer.sot]] * len(windows)
        if padding == "full":
            return self.policy.prepare(features, start)
        speech = [-(-len(samples) // mel.hop_length) for samples in windows]
        return self.policy.prepare(features, start, speech, EVERY[padding])

    def prompted(
        self,
        prepared: PreparedSpeech,
        languages: Sequence[str],
        contexts: Sequence[Sequence[int]],
        task: str,
        timestamps: bool,
    ) -> PreparedSpeech:
        pairs = zip(languages, contexts, strict=True)
        return prepared.prompted([self.prompt(language, context, task, timestamps) for language, context in pairs])

    def prompt(self, language: str, context: Sequence[int], task: str, timestamps: bool) -> list[int]:
        """What the decoder reads before its first token."""
        return [*self._before(context), *self._after(language, task, timestamps)]

    def start(
        self,
        encoded: EncodedSpeech,
        languages: Sequence[str | None],
        contexts: Sequence[Sequence[int]],
        task: str,
        timestamps: bool,
    ) -> Start[EncodedSpeech, SpeechState]:
        """Both probabilities come from the position of the start token, which is decoded once."""
        before = [self._before(context) for context in contexts]
        state = self.policy.begin(encoded.prompted(before))
        logits = self.policy.logits(state.hidden[:, 0])  # (B, V)
        no_speech: list[float] = logits.softmax(-1)[:, self.tokenizer.no_speech].tolist()
        known = self._languages(encoded, logits, languages, contexts)
        after = [self._after(language, task, timestamps) for language in known]
        if after[0]:  # the same length for all
            state = self.policy.read(state, torch.tensor(after))
        prompts = [[*one, *other] for one, other in zip(before, after, strict=True)]
        return Start(encoded.prompted(prompts), state, known, no_speech)

    def grammar(
        self, policy: WhisperPolicy, timestamps: bool, beams: bool = False
    ) -> tuple[WhisperPolicy, TimestampRules | None]:
        return (policy.timestamped(), TimestampRules.of(self.tokenizer, merged=beams)) if timestamps else (policy, None)

    def length_limit(self, seconds: float, language: str, task: str) -> int:
        return length_limit(seconds, language, task)

    def attention(
        self,
        policy: WhisperPolicy,
        encoded: EncodedSpeech,
        texts: Sequence[Sequence[int]],
        languages: Sequence[str],
        task: str,
        seconds: Sequence[float],
    ) -> list[Attention]:
        """As openai-whisper does it: without the earlier text and without timestamps.

        There the first word has the silence before it. Here the prompt has it, which listens to it.
        """
        found = []
        for b, (text, language, end) in enumerate(zip(texts, languages, seconds, strict=True)):
            prompt = self.prompt(language, (), task, timestamps=False)
            tokens = [*prompt, *text, self.tokenizer.eot]
            logits = policy.cross_attention(encoded, b, tokens, self.checkpoint.alignment_heads)  # (heads, n, S)
            times = self.frame_times(encoded)[b, : logits.shape[-1]]
            within = times < end
            # A token is written from the position before it: the first one from the last position of the prompt.
            weights = consensus(logits[:, :, within])[len(prompt) - 2 : -1]
            found.append(Attention(weights.cpu().numpy(), times[within].cpu().numpy()))
        return found

    def frame_times(self, prepared: PreparedSpeech | EncodedSpeech) -> Tensor:
        times = prepared.frames * self.policy.seconds_per_frame
        return times if prepared.bias is None else times.masked_fill(prepared.bias[:, 0, 0] == -torch.inf, torch.nan)

    def language_probabilities(self, logits: Tensor) -> list[dict[str, float]]:
        """For each window the probability of each language: (B, V) logits after the start token -> B mappings."""
        codes, ids = list(self.tokenizer.languages), list(self.tokenizer.languages.values())
        return [dict(zip(codes, row, strict=True)) for row in logits[:, ids].softmax(-1).tolist()]

    def _languages(
        self,
        encoded: EncodedSpeech,
        logits: Tensor,
        languages: Sequence[str | None],
        contexts: Sequence[Sequence[int]],
    ) -> list[str]:
        known = [language or "en" for language in languages]
        unknown = [b for b, language in enumerate(languages) if language is None]
        if not unknown or not self.multilingual:
            return known
        with_context = [
            b for b in unknown if contexts[b]
        ]  # Whisper detects after the start token alone, without context
        if with_context:
            alone = self.policy.begin(encoded.select(with_context).prompted([[self.tokenizer.sot]] * len(with_context)))
            logits = logits.index_copy(
                0, torch.tensor(with_context, device=logits.device), self.policy.logits(alone.hidden[:, 0])
            )
        for b, probabilities in zip(unknown, self.language_probabilities(logits[unknown]), strict=True):
            known[b] = max(probabilities, key=probabilities.__getitem__)
        return known

    def _before(self, context: Sequence[int]) -> list[int]:
        """The prompt up to the start token."""
        start = [self.tokenizer.sot]
        return [self.tokenizer.sot_prev, *context[-MAX_CONTEXT:], *start] if context else start

    def _after(self, language: str, task: str, timestamps: bool) -> list[int]:
        """The prompt after the start token."""
        self.check(language, task)
        spoken = [self.tokenizer.languages[language], getattr(self.tokenizer, task)] if self.multilingual else []
        return spoken if timestamps else [*spoken, self.tokenizer.no_timestamps]


def length_limit(seconds: float, language: str = "en", task: str = "transcribe") -> int:
    """The longest output to consider for so much audio, in tokens."""
    spelled = language in SPELLED and task == "transcribe"  # translations are English
    rate = SPELLED_TOKENS_PER_SECOND if spelled else TOKENS_PER_SECOND
    return min(LONGEST, max(SHORTEST_LIMIT, round(rate * seconds)))
