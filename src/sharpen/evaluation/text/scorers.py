"""Whether an answer is right."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError
from sharpen.text.fold import first_line, folded

Scorer = Callable[[str, str], bool]
"""Takes the model's answer and the right one."""

_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")


def last_number(text: str) -> str:
    """The last number of a text, without separators of thousands; empty where there is none."""
    found = _NUMBER.findall(text)
    if not found:
        return ""
    digits = re.sub(r",(?=\d{3}(?!\d))", "", found[-1])
    try:
        return f"{float(digits):g}"
    except ValueError:
        return str(digits)


def _line(text: str) -> str:
    return folded(first_line(text))


def exact(answer: str, right: str) -> bool:
    return _line(answer) == _line(right)


def number(answer: str, right: str) -> bool:
    return last_number(answer) == last_number(right) != ""


# Multiple choice compares texts, too: the model's answer is the choice with the highest log-probability per token.
SCORERS: dict[str, Scorer] = {"exact": exact, "number": number, "choice": exact}
VOTES: dict[str, Callable[[str], str]] = {"exact": _line, "number": last_number}  # what the scorer reads of an answer


def scorer(name: str) -> Scorer:
    """One of SCORERS, or FILE.py:FUNCTION, which takes (answer, right) and returns whether it is right."""
    if name in SCORERS:
        return SCORERS[name]
    file, _, function = name.rpartition(":")
    if not file.endswith(".py"):
        raise SharpenError(f"scorer {name!r}: expected {', '.join(SCORERS)}, or FILE.py:FUNCTION")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SharpenError(f"scorer {name!r}: there is no file {file}")
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, function, None)):
        raise SharpenError(f"scorer {name!r}: {file} has no function {function!r}")
    own: Scorer = getattr(module, function)
    return own


def vote_key(name: str) -> Callable[[str], str]:
    """What two answers must share to be one vote; a function of one's own may read all of an answer."""
    return VOTES.get(name, folded)
