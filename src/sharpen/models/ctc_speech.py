"""A CTC model as a speech model: windows to texts at once, adapted by the objectives of `method.ctc`.

It answers what transcription needs of any speech model, and `models.speech.FrameModel` in place of a policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method.ctc import CTCAdaptation, distributions
from sharpen.method.entropy import entropy
from sharpen.method.objectives import CTC_METHODS
from sharpen.models.ctc import adapt_ctc
from sharpen.models.speech import FrameText, FrameTranscript
from sharpen.models.wav2vec2 import acoustic_model
from sharpen.models.weights.ctc import CTCCheckpoint

SECONDS = 30.0  # the longest window: attention takes the square of it


class CTCTokens:
    """The symbols of a CTC model: letters, a mark between words, and others that are no text."""

    def __init__(self, checkpoint: CTCCheckpoint) -> None:
        self._symbols = {number: symbol for symbol, number in checkpoint.vocabulary.items()}
        self._delimiter = checkpoint.delimiter
        named = (n for n, s in self._symbols.items() if len(s) > 2 and s[0] + s[-1] in ("<>", "[]"))
        self._special = {checkpoint.blank, *named}  # <unk>, [PAD] and such

    def encode(self, text: str) -> NoReturn:
        raise SharpenError("a CTC model does not continue a text; leave the initial prompt out")

    def decode(self, ids: Iterable[int]) -> str:
        """A text begins with a space, as Whisper's do: those of several windows are joined without one."""
        words = b"".join(self.token_bytes(token) for token in ids if self.is_text(token)).decode("utf-8").split()
        return "".join(f" {word}" for word in words)

    def is_text(self, token: int) -> bool:
        return token in self._symbols and token not in self._special

    def token_bytes(self, token: int) -> bytes:
        symbol = self._symbols.get(token, "")
        return (" " if symbol == self._delimiter else symbol).encode()

    def time(self, token: int) -> None:
        return None


class CTCSpeech:
    """Answers `models.speech.FrameModel` for a checkpoint."""

    timestamps = False
    multilingual = False

    def __init__(
        self, checkpoint: CTCCheckpoint, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.checkpoint, self.device, self.dtype = checkpoint, torch.device(device), dtype
        self.name, self.sampling_rate, self.seconds = checkpoint.name, checkpoint.sampling_rate, SECONDS
        self.tokenizer = CTCTokens(checkpoint)
        self.model = acoustic_model(checkpoint.config, checkpoint.tensors, dtype).to(self.device)

    @property
    def policy(self) -> NoReturn:
        raise SharpenError(
            f"{self.name} is a CTC model, which has no hypothesis tree: only transcribe and evaluate take it"
        )

    def check(self, language: str, task: str) -> None:
        """Whatever its language is, it writes what it hears."""
        if task != "transcribe":
            raise SharpenError(f"{self.name} is a CTC model, which cannot {task}; use a Whisper model")

    def check_method(self, method: str) -> None:
        if method not in ("source", *CTC_METHODS):
            raise SharpenError(
                f"{self.name} is a CTC model, and the method {method} is for models that write token by token; use "
                f"source, {' or '.join(CTC_METHODS)}"
            )

    def listen(
        self, windows: Sequence[np.ndarray], ids: Sequence[str], options: CTCAdaptation | None
    ) -> list[FrameTranscript]:
        """Texts by the source model and, with options, by the model adapted to each window."""
        found = []
        for samples, name in zip(windows, ids, strict=True):
            x = self._prepared(samples)
            if options is None:
                found.append(FrameTranscript(self._text(self._source(x)), None, (), ""))
                continue
            (one,) = adapt_ctc(self.model, [x], options, ids=[name])
            source, adapted = self._text(one.source_log_p), self._text(one.log_p)
            found.append(FrameTranscript(source, adapted, one.steps, one.stopped))
        return found

    @torch.no_grad()
    def _source(self, x: Tensor) -> Tensor:
        return distributions(self.model(x.to(self.device, self.dtype)[None]).logits[0])

    def _prepared(self, samples: np.ndarray) -> Tensor:
        """Too short ones are filled up with silence to a single frame."""
        x = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
        if self.checkpoint.normalise:
            x = (x - x.mean()) / (x.var(correction=0) + 1e-7).sqrt()
        shortest = 1
        sizes = zip(self.model.config.conv_kernel, self.model.config.conv_stride, strict=True)
        for kernel, stride in reversed(list(sizes)):
            shortest = (shortest - 1) * stride + kernel
        return torch.nn.functional.pad(x, (0, max(0, shortest - len(x))))

    def _text(self, log_p: Tensor) -> FrameText:
        """The best path of (frames, V), collapsed."""
        H, best = entropy(log_p).tolist(), log_p.max(-1)
        symbols, values = best.indices.tolist(), best.values.tolist()
        runs = [list(run) for _, run in groupby(range(len(symbols)), key=lambda t: symbols[t])]
        kept = [run for run in runs if symbols[run[0]] != self.checkpoint.blank]
        return FrameText(
            tokens=tuple(symbols[run[0]] for run in kept),
            logprobs=tuple(max(values[t] for t in run) for run in kept),
            entropies=tuple(min(H[t] for t in run) for run in kept),
            avg_logprob=sum(values) / len(values),
        )
