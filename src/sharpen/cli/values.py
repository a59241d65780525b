"""Exit codes, and the kinds of values that arguments take."""

from __future__ import annotations

import argparse
import math

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def optional(text: str) -> float | None:
    return None if text.lower() in ("none", "off") else float(text)


def yes_no(text: str) -> bool:
    answers = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in answers:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return answers[text.lower()]
