"""How an encoder-decoder text model begins and ends its outputs, and what it never writes: its generation settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sharpen.errors import WeightsError

# What `generate` of transformers does to a distribution while it searches, by settings that some checkpoints have. A
# distribution that depends on what the search wrote before is not the model's, which is the one to adapt.
SEARCH_ONLY = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
}


@dataclass(frozen=True)
class Decoding:
    """Of one checkpoint, all in tokens."""

    start: tuple[int, ...]  # what every output begins with, which is not part of it
    ends: tuple[int, ...]
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()  # at the first position alone
    unused: tuple[str, ...] = ()  # settings that are not followed, for people


def decoding_of(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> Decoding:
    """From `config.json` and, where it says something, `generation_config.json`; refuses by name what it cannot do."""
    set_there = {key: value for key, value in (generation or {}).items() if value is not None}
    settings = {**config, **set_there}
    starts = (settings.get(key) for key in ("decoder_start_token_id", "bos_token_id"))
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise WeightsError("config.json and generation_config.json have no decoder_start_token_id and no bos_token_id")
    ends = _several(settings.get("eos_token_id"))
    forced, last = settings.get("forced_bos_token_id"), _several(settings.get("forced_eos_token_id"))
    if set(last) - set(ends):
        raise WeightsError(
            f"forced_eos_token_id is {settings['forced_eos_token_id']}, which is none of the end tokens {list(ends)}"
        )
    bad = settings.get("bad_words_ids") or []
    longer = [word for word in bad if len(word) > 1]
    unused = [key for key, plain in SEARCH_ONLY.items() if settings.get(key, plain) not in (plain, None)]
    return Decoding(
        start=(*_several(start), *(() if forced is None else (forced,))),
        ends=ends,
        suppressed=(*(word[0] for word in bad if len(word) == 1), *_several(settings.get("suppress_tokens"))),
        suppressed_first=_several(settings.get("begin_suppress_tokens")),
        unused=(*unused, *(("bad_words_ids of several tokens",) if longer else ())),
    )


def _several(tokens: int | list[int] | None) -> tuple[int, ...]:
    return () if tokens is None else (tokens,) if isinstance(tokens, int) else tuple(tokens)
