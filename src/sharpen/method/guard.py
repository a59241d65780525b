"""Whether an adapted text is to be trusted: low entropy is also what a repetition loop has."""

from __future__ import annotations

import zlib

COMPRESSION_RATIO = 2.4  # Whisper's own threshold: text that zlib makes smaller than this repeats itself
REPEATS = 3  # the same n words in a row, this often, is a loop
LONGEST_PHRASE = 8  # words of a phrase that is looked for in loops
SHORTER, LONGER = 0.5, 2.0  # number of words against the source's
SLACK = 3  # words that a text may always gain or lose


def check(source: str, adapted: str) -> str:
    """Why the source's text should be returned instead of the adapted one, or nothing."""
    if source.strip() and not adapted.strip():
        return "the adapted transcript is empty"
    ratio = compression_ratio(adapted)
    if ratio > COMPRESSION_RATIO and ratio > compression_ratio(source):
        return f"compression ratio {ratio:.1f} is over {COMPRESSION_RATIO}"
    phrase = loop(adapted)
    if phrase and not loop(source):
        return f"{phrase!r} repeats {REPEATS} times or more"
    before, after = len(source.split()), len(adapted.split())
    if after > LONGER * before + SLACK or after < SHORTER * before - SLACK:
        return f"{after} words against the source's {before}"
    return ""


def loop(text: str) -> str:
    """A phrase of up to LONGEST_PHRASE words that stands REPEATS times in a row, or nothing.

    A single word must come once more often: people do say "no, no, no".
    """
    words = text.lower().split()
    for n in range(1, LONGEST_PHRASE + 1):
        times = REPEATS + (n == 1)
        for start in range(len(words) - n * times + 1):
            phrase = words[start : start + n]
            if words[start : start + n * times] == phrase * times:
                return " ".join(phrase)
    return ""


def compression_ratio(text: str) -> float:
    """How much smaller zlib makes the text: a repetition loop compresses well."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))
