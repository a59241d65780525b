"""Whether to trust an adapted text: a repetition loop has low entropy too."""

from __future__ import annotations

import re
import zlib

COMPRESSION_RATIO = 2.4  # Whisper's own threshold: text that zlib shrinks by more repeats itself
REPEATS = 3  # the same phrase this often in a row is a loop
LONGEST_PHRASE = 8  # words of a phrase that can loop
SHORTER, LONGER = 0.5, 2.0  # limits of the number of words, relative to the source's
SLACK = 3  # words that a text may always gain or lose

# Scripts without spaces, of which each character counts as a word: Thai, Lao, Burmese, Khmer, kana, ideographs.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
CHARACTERS = 8  # minimum length of a loop in such a script, all repeats together
_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
_UNSPACED = re.compile(rf"[{UNSPACED}]")


def check(source: str, adapted: str) -> str:
    """Why to return the source's text instead of the adapted one, or nothing."""
    if source.strip() and not adapted.strip():
        return "the adapted text is empty"
    before, after = len(words(source)), len(words(adapted))
    if before and not after:
        return f"the adapted text has no words: {adapted.strip()!r}"
    ratio = compression_ratio(adapted)
    if ratio > COMPRESSION_RATIO and ratio > compression_ratio(source):
        return f"compression ratio {ratio:.1f} is over {COMPRESSION_RATIO}"
    phrase = loop(adapted)
    if phrase and not loop(source):
        return f"{phrase!r} repeats {REPEATS} times or more"
    if after > LONGER * before + SLACK or (after < SHORTER * before - SLACK and not repeats(source)):
        return f"{after} words against the source's {before}"
    return ""


def repeats(text: str) -> bool:
    """Whether a text repeats itself as a loop does."""
    return compression_ratio(text) > COMPRESSION_RATIO or bool(loop(text))


def words(text: str) -> list[str]:
    """Words in lower case; single characters in scripts without spaces. Punctuation alone is not a word."""
    tokens = _WORD.findall(text.lower())
    return [word for word in tokens if _UNSPACED.match(word) or any(c.isalnum() for c in word)]


def loop(text: str) -> str:
    """A phrase of up to LONGEST_PHRASE words that occurs REPEATS times in a row, or nothing.

    A single word must occur once more: people do say "no, no, no". In scripts without spaces a phrase may have more
    characters than LONGEST_PHRASE, and all repeats together must have at least CHARACTERS.
    """
    said = words(text)
    short = [bool(_UNSPACED.match(word)) for word in said]
    for n in range(1, 3 * LONGEST_PHRASE + 1):
        for start in range(len(said) - n * REPEATS + 1):
            characters = all(short[start : start + n])
            times = max(REPEATS, -(-CHARACTERS // n)) if characters else REPEATS + (n == 1)
            phrase = said[start : start + n]
            if (characters or n <= LONGEST_PHRASE) and said[start : start + n * times] == phrase * times:
                return ("" if characters else " ").join(phrase)
    return ""


def compression_ratio(text: str) -> float:
    """Length of the text over its zlib-compressed length: a repetition loop compresses well."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))
