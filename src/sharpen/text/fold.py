"""Answers as they are compared: by a vote, by the stopping rule `agreed`, and by a scorer."""

EDGES = " \t\r\n.,;:!?\"'`*()[]"  # no minus, currency or percent sign: they are part of an answer


def folded(text: str) -> str:
    """Without differences of case, spaces, and punctuation at its ends unless it is nothing else."""
    plain = " ".join(text.lower().split())
    return plain.strip(EDGES) or plain


def first_line(text: str) -> str:
    """The first line that is more than punctuation; empty where there is none."""
    return next((line for line in text.splitlines() if line.strip(EDGES)), "")
