"""SentencePiece vocabularies as byte-pair encoding of the `tokenizers` library.

A pair of tokens is merged if the whole is a token; of several pairs, the whole with the highest score comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPACE = "▁"


def byte_pairs(number: Mapping[str, int], scores: Mapping[str, float], unknown: str) -> Any:
    """The model of a vocabulary: `number` has all tokens, `scores` those that merging may make."""
    from tokenizers import models

    merges = [
        (-score, number[whole[:cut]], number[whole[cut:]], (whole[:cut], whole[cut:]))
        for whole, score in scores.items()
        for cut in range(1, len(whole))
        if whole[:cut] in scores and whole[cut:] in scores
    ]
    pairs = [pair for *_, pair in sorted(merges)]
    return models.BPE(dict(number), pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
