"""Whisper's grammar of timestamp tokens, as rules for a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sharpen.models.tokenizer import SECONDS_PER_TIMESTAMP, WhisperTokenizer


@dataclass(frozen=True)
class TimestampRules:
    """Restricts log pi to outputs whose timestamps open and close segments in order.

    An output starts with a timestamp no later than `latest_start`; timestamps come in pairs (the end of one segment,
    the start of the next) except before EOS, never decrease, and a segment is never empty. Where all timestamps
    together are more probable than the best other token, a timestamp follows.

    With `merged` the best timestamp stands for all, with their probability together: the beams of a search then differ
    in their words, not in their times. What is most probable at a node stays so.
    """

    begin: int  # the token <|0.00|>
    end: int  # the first token after <|30.00|>
    eos: int
    latest_start: float = 1.0  # seconds
    merged: bool = False

    @classmethod
    def of(cls, tokenizer: WhisperTokenizer, *, merged: bool = False) -> TimestampRules:
        return cls(tokenizer.timestamp_begin, tokenizer.timestamp_end, tokenizer.eot, merged=merged)

    def __call__(self, log_pi: Tensor, prefixes: list[list[int]]) -> Tensor:
        log_pi = log_pi.clone()
        for row, prefix in zip(log_pi, prefixes, strict=True):
            self._restrict(row, prefix)
        log_pi = log_pi.log_softmax(-1)
        stamps = log_pi[:, self.begin : self.end]
        others = log_pi.clone()
        others[:, self.begin : self.end] = -torch.inf
        stamped = stamps.logsumexp(-1) > others.amax(-1)
        log_pi[stamped, : self.begin] = -torch.inf
        log_pi[stamped, self.end :] = -torch.inf
        log_pi = log_pi.log_softmax(-1)
        if self.merged:
            stamps = log_pi[:, self.begin : self.end]
            together, best = stamps.logsumexp(-1, keepdim=True), stamps.argmax(-1, keepdim=True)
            stamps.fill_(-torch.inf).scatter_(1, best, together)
        return log_pi

    def is_timestamp(self, token: int) -> bool:
        return self.begin <= token < self.end

    def _restrict(self, row: Tensor, prefix: list[int]) -> None:
        if not prefix:
            row[: self.begin] = -torch.inf
            row[self.begin + round(self.latest_start / SECONDS_PER_TIMESTAMP) + 1 :] = -torch.inf
            return
        after_stamp = self.is_timestamp(prefix[-1])
        opened = len(prefix) < 2 or self.is_timestamp(prefix[-2])
        if after_stamp and opened:
            row[self.begin : self.end] = -torch.inf  # a segment was just opened: text must follow
        elif after_stamp:  # a segment was just closed: the next one's start, or the end
            row[: self.eos] = -torch.inf
            row[self.end :] = -torch.inf
        stamps = [token for token in prefix if self.is_timestamp(token)]
        if stamps:
            repeats = after_stamp and not opened  # a segment may start where the one before it ended
            row[self.begin : stamps[-1] + (0 if repeats else 1)] = -torch.inf
