"""An option is a dataclass field that is declared once: its default, its meaning and the values it may take.

    @dataclass(frozen=True)
    class Adaptation:
        steps: int = option(10, "updates of the norms", least=0, label="{} steps")

Everything else about the option follows from that line: validation (`validate`), the command-line flag with its help
(sharpen.cli.flags), the values that `sharpen evaluate` can vary, what a result row records (`recorded`), and the words
of a report (`Option.said`).
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sharpen.errors import SharpenError

Role = Literal[
    "setting",  # changes the answer: part of a result row's key, and `evaluate` can vary it
    "machine",  # changes rounding and speed: every row of a run has the same, and records it
    "recording",  # belongs to one recording: `evaluate` takes it from the corpus, or has no use for it
    "output",  # asks for more output and changes no answer: never part of a key
]
WORDS = {True: ("on", "true", "yes", "1"), False: ("off", "false", "no", "0")}


@dataclass(frozen=True)
class Option:
    """A declared field."""

    name: str
    default: Any
    kind: Any  # the field's type
    meaning: str
    choices: Collection[str] = ()  # empty: any value of the kind
    pattern: str = ""  # a regular expression that a text must match
    example: str = ""  # what its values look like, in words
    least: float | None = None  # the smallest value
    above: float | None = None  # values must be larger than this
    most: float | None = None  # the largest value
    role: Role = "setting"
    flag: str | None = None  # on the command line; None: it has none
    label: str = ""  # how a report names a value: "G {}"
    always: bool = False  # a row records it even at its default, as rows did before options were declared

    @property
    def several(self) -> bool:
        """Whether a value is a tuple."""
        return any(get_origin(part) is tuple for part in _parts(self.kind))

    @property
    def optional(self) -> bool:
        return NoneType in _parts(self.kind)

    @property
    def scalar(self) -> Any:
        """The type of a value, or of its parts: int, float, bool or str."""
        part = next(part for part in _parts(self.kind) if part is not NoneType)
        part = get_args(part)[0] if get_origin(part) is tuple else part
        return str if get_origin(part) is Literal else part

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            what = f"one of {', '.join(self.choices)}"
        elif self.example:
            what = self.example
        else:
            what = {bool: "on or off", int: "a whole number", float: "a finite number"}.get(self.scalar, "text")
        bounds = [("at least", self.least), ("above", self.above), ("at most", self.most)]
        limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        what += f", {limits}" if limits else ""
        what = f"a tuple, each part {what}" if self.several else what
        return what + (", or none" if self.optional else "")

    def check(self, value: Any) -> None:
        """Raises an error that names the option unless the value is allowed."""
        if not self._allows(value):
            raise SharpenError(f"{self.name} is {value!r}; expected {self.expected}")

    def parse(self, text: str) -> Any:
        """The value that a text on the command line stands for; the parts of a tuple are joined by +."""
        try:
            empty = ("none", "off") if self.optional else ("none",)
            if text.lower() in empty and (self.several or self.optional):
                return () if self.several else None
            value = tuple(map(self._part, text.split("+"))) if self.several else self._part(text)
        except ValueError:
            value = MISSING
        if value is MISSING or not self._allows(value):
            expected = self.expected.replace("a tuple, each part", "parts joined by +, each")
            raise SharpenError(f"{text!r}: expected {expected}")
        return value

    def plain(self, value: Any) -> Any:
        """The value as a row keeps it in JSON: a tuple is text, and 1 is 1.0 where the option is a float."""
        if isinstance(value, tuple | list):
            return as_text(value)
        if isinstance(value, bool) or value is None or self.scalar not in (int, float):
            return value
        return self.scalar(value)

    def said(self, value: Any) -> str:
        """The value in the words of a report."""
        return self.label.format(as_text(value))

    def _part(self, text: str) -> Any:
        if self.scalar is bool:
            return next((value for value, words in WORDS.items() if text.lower() in words), MISSING)
        return self.scalar(text)

    def _allows(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if self.several:
            return isinstance(value, tuple | list) and all(map(self._allows_part, value))
        return self._allows_part(value)

    def _allows_part(self, value: Any) -> bool:
        others = tuple(part for part in _parts(self.kind) if isinstance(part, type) and part is not self.scalar)
        if isinstance(value, others):
            return True
        if self.choices or self.scalar is str:
            listed = not self.choices or value in self.choices
            return isinstance(value, str) and listed and bool(re.fullmatch(self.pattern or ".*", value, re.DOTALL))
        if self.scalar is bool or isinstance(value, bool):
            return self.scalar is bool and isinstance(value, bool)
        number: Any = value if isinstance(value, numbers.Integral if self.scalar is int else numbers.Real) else math.nan
        return (
            (isinstance(number, numbers.Integral) or math.isfinite(number))
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        )


def option(default: Any, meaning: str, *, choices: Collection[str] = (), flag: str | None = "", **details: Any) -> Any:
    """A dataclass field with its declaration. Details are the other fields of `Option`.

    The flag is the field's name with dashes unless given; None: no flag.
    """
    return field(
        default=default, metadata={"option": {"meaning": meaning, "choices": choices, "flag": flag, **details}}
    )


def declared(cls: type) -> Mapping[str, Option]:
    """The options of a dataclass by name, in the order of its fields."""
    return _declared(cls)


@cache
def _declared(cls: Any) -> dict[str, Option]:
    kinds, options = get_type_hints(cls), {}
    for f in dataclasses.fields(cls):
        details = dict(f.metadata.get("option", ()))
        if details:
            name, words = f.name, f.name.replace("_", " ")
            details["flag"] = f"--{words.replace(' ', '-')}" if details["flag"] == "" else details["flag"]
            details["choices"] = details["choices"] or _literals(kinds[name])
            options[name] = Option(name, f.default, kinds[name], **{"label": words + " {}", **details})
    return options


def validate(values: Any) -> None:
    """Checks every option of a dataclass instance."""
    for one in declared(type(values)).values():
        one.check(getattr(values, one.name))


def recorded(values: Any, base: Any) -> dict[str, Any]:
    """What a result row records: the settings that differ from those of `base`, and those that every row has."""
    return {
        name: one.plain(getattr(values, name))
        for name, one in declared(type(values)).items()
        if one.role == "setting" and (one.always or getattr(values, name) != getattr(base, name))
    }


def as_text(value: Any) -> str:
    """A value as it is written on the command line and in labels."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return WORDS[value][0]
    if isinstance(value, tuple | list):
        return "+".join(map(as_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).replace("\n", "\\n")


def _parts(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _literals(kind: Any) -> tuple[str, ...]:
    """The choices of a Literal, also inside of a tuple or beside None."""
    for part in _parts(kind):
        part = get_args(part)[0] if get_origin(part) is tuple else part
        if get_origin(part) is Literal:
            return tuple(get_args(part))
    return ()
