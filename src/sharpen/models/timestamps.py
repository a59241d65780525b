"""Whisper's grammar of timestamp tokens, as rules for a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sharpen.models.tokenizer import WhisperTokenizer

SECONDS_PER_TIMESTAMP = 0.02


@dataclass(frozen=True)
class TimestampRules:
    """Narrows log pi to outputs whose timestamps open and close segments in order.

    An output starts with a timestamp no later than `latest_start`; timestamps come in pairs (the end of one segment,
    the start of the next) except before EOS, never go back, and a segment is never empty. Where all timestamps
    together are more probable than the best other token, a timestamp it is.
    """

    begin: int  # the token <|0.00|>
    eos: int
    latest_start: float = 1.0  # seconds

    @classmethod
    def of(cls, tokenizer: WhisperTokenizer) -> TimestampRules:
        return cls(tokenizer.timestamp_begin, tokenizer.eot)

    def __call__(self, log_pi: Tensor, prefixes: list[list[int]]) -> Tensor:
        log_pi = log_pi.clone()
        for row, prefix in zip(log_pi, prefixes, strict=True):
            self._narrow(row, prefix)
        log_pi = log_pi.log_softmax(-1)
        stamped = log_pi[:, self.begin :].logsumexp(-1) > log_pi[:, : self.begin].amax(-1)
        log_pi[stamped, : self.begin] = -torch.inf
        return log_pi.log_softmax(-1)

    def _narrow(self, row: Tensor, prefix: list[int]) -> None:
        if not prefix:
            row[: self.begin] = -torch.inf
            row[self.begin + round(self.latest_start / SECONDS_PER_TIMESTAMP) + 1 :] = -torch.inf
            return
        after_stamp = prefix[-1] >= self.begin
        opened = len(prefix) < 2 or prefix[-2] >= self.begin
        if after_stamp and opened:
            row[self.begin :] = -torch.inf  # a segment was just opened: text must follow
        elif after_stamp:
            row[: self.eos] = -torch.inf  # a segment was just closed: the next one's start, or the end
        stamps = [token for token in prefix if token >= self.begin]
        if stamps:
            repeats = after_stamp and not opened  # a segment may start where the one before it ended
            row[self.begin : stamps[-1] + (0 if repeats else 1)] = -torch.inf
