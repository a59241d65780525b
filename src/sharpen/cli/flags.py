"""Command-line flags from declared options (sharpen.options)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sharpen.cli.parser import Switch
from sharpen.cli.values import words
from sharpen.errors import SharpenError
from sharpen.method.adaptation import Adaptation, applies
from sharpen.method.objectives import Method
from sharpen.options import Option, as_text, declared

SHORT = 32  # characters of choices that a flag shows in place of a value


def add_options(
    group: Any,
    base: Any,
    *,
    grid: bool = False,
    skip: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    defaults: Mapping[str, tuple[Any, ...] | str] | None = None,
) -> None:
    """Adds a flag for every option of `base`, a dataclass instance whose values are the defaults that help shows.

    With `grid` only settings get a flag, and each takes several values, with commas between them or in several flags;
    `defaults` are the values, or words, that help shows instead. Nothing is set for a flag that is not given.
    """
    for one in declared(type(base)).values():
        if one.flag is None or one.name in skip or (grid and one.role != "setting"):
            continue
        values = (defaults or {}).get(one.name, (getattr(base, one.name),))
        flags = [one.flag, *filter(None, [(aliases or {}).get(one.name)])]
        common: dict[str, Any] = {"dest": one.name, "default": argparse.SUPPRESS}
        parse = _several(one) if grid else _parser(one.parse)
        if one.scalar is bool:
            yes, no = ((True,), (False,)) if grid else (True, False)
            group.add_argument(*flags, action=Switch, const=yes, type=parse, metavar=_metavar(one, grid),
                               help=_help(one, values), **common)  # fmt: skip
            group.add_argument(f"--no-{one.flag[2:]}", action="store_const", const=no, help=argparse.SUPPRESS, **common)
        else:
            group.add_argument(*flags, action="extend" if grid or one.several else "store", type=parse,
                               metavar=_metavar(one, grid), help=_help(one, values), **common)  # fmt: skip


def given(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The options of a class that the command line gives a value, or several, to."""
    values = {name: getattr(args, name) for name in declared(cls) if hasattr(args, name)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def flag(cls: type, name: str) -> str:
    return declared(cls)[name].flag or name


def check_adaptation(own: Iterable[str], methods: Collection[Method], example: str = "--method em-tok-b") -> None:
    """Refuses flags of `Adaptation` that no method uses; a seed is harmless.

    Also what makes no difference to an adapting method, such as the samples of greedy search, is let through.
    """
    used = {name for name in own for row in methods if row.search is not None or applies(name, row)}
    unused = [flag(Adaptation, name) for name in own if name not in {"seed", *used}]
    if unused:
        need = "needs" if len(unused) == 1 else "need"
        raise SharpenError(f"{', '.join(unused)} {need} an adapting method, e.g. {example}")


def _parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """For argparse, which shows the message of no other error than its own."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except SharpenError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _several(one: Option) -> Callable[[str], tuple[Any, ...]]:
    """Values with commas between them; a text is one value, since it may have commas of its own."""
    if one.scalar is str and not one.choices and not one.pattern:
        return lambda text: (_parser(one.parse)(text),)
    return lambda text: tuple(_parser(one.parse)(word) for word in words(text))


def _metavar(one: Option, grid: bool) -> str:
    kinds = {bool: "on|off", int: "N", float: "X", str: "TEXT"}
    choices = "|".join(one.choices)
    name = (choices if len(choices) <= SHORT else "NAME") if choices else kinds[one.scalar]
    return name if not grid or name == "TEXT" else f"{name},…"


def _help(one: Option, values: tuple[Any, ...] | str) -> str:
    choices = f": {', '.join(one.choices)}" if len("|".join(one.choices)) > SHORT else ""
    default = values if isinstance(values, str) else ",".join(map(as_text, values))
    more = "; none: off" if one.optional else "; join several with +" if one.several else ""
    text = f"{one.meaning}{choices}{more}" + (f" (default: {default})" if default else "")
    return text.replace("%", "%%")
