"""How much to spend on a recording, in one word: bundles of options whose worth was measured (docs/results.md).

- plain: a beam search of five
- normal: where that leaves the model in doubt, it adapts by one large step; the text of least risk is taken
- high: it adapts by four steps on sixteen beams
- paper: it adapts to every window with the paper's settings, on the whole padding
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation
from sharpen.speech.options import WIDTH, Options

DEFAULT = "normal"
_ONE = Adaptation(samples=WIDTH, steps=1, lr=1e-2, gate=0.9)
_FOUR = Adaptation(samples=16, steps=4, lr=2.5e-3, search_every=2, gate=0.9)

EFFORTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {"adapt": None, "decode": "beam", "padding": "condensed"},
        "normal": {"adapt": _ONE, "decode": "mbr", "padding": "condensed"},
        "high": {"adapt": _FOUR, "decode": "mbr", "padding": "condensed"},
        "paper": {"adapt": Adaptation(guard=False), "decode": "greedy", "padding": "full"},
    }
)


def effort_options(effort: str = DEFAULT, **settings: Any) -> Options:
    """The options of an effort; settings are fields of `Options` that differ from it."""
    if effort not in EFFORTS:
        raise SharpenError(f"effort is {effort!r}; expected one of {', '.join(EFFORTS)}")
    return Options(**{**EFFORTS[effort], **settings})
