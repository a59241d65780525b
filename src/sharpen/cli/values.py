"""Exit codes, and the kinds of values that arguments take."""

from __future__ import annotations

import argparse
import math

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
MOST_THREADS = 1024


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number, at least 1")
    return int(text)


def threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {MOST_THREADS}")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0")
    return value


def decibels(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of decibels")
    return value


def several_decibels(text: str) -> tuple[float, ...]:
    return tuple(decibels(word) for word in words(text))


def several_numbers(text: str) -> tuple[int, ...]:
    for word in words(text):
        if not word.isdecimal():
            raise argparse.ArgumentTypeError(f"{word!r}: expected whole numbers with commas between them: 0,1,2")
    return tuple(dict.fromkeys(map(int, words(text))))


def words(text: str) -> tuple[str, ...]:
    parts = tuple(word.strip() for word in text.split(",") if word.strip())
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one or more words with commas between them")
    return parts
