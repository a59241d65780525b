"""argparse as `sharpen` uses it: flags with - or _, negative numbers as values, switches that leave files alone."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any

NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)  # how a negative number starts


class Switch(argparse.Action):
    """`--name`, or `--name on|off`. What follows it and is neither is the next argument."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: Any = True, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs="?", const=const, **settings)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        if isinstance(values, tuple):  # in a grid several flags add up
            values = (*getattr(namespace, self.dest, ()), *values)
        setattr(namespace, self.dest, values)

    def takes(self, text: str) -> bool:
        try:
            self.type(text)  # type: ignore[operator, misc]
        except argparse.ArgumentTypeError:
            return False
        return True


class Parser(argparse.ArgumentParser):
    """Flags are never abbreviated, so that a new flag cannot change what an old command means."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **settings})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        return super().parse_known_args(self._unambiguous(sys.argv[1:] if args is None else args), namespace)

    def _unambiguous(self, arguments: Sequence[str]) -> list[str]:
        """The same with --name=value wherever argparse would take the value for a flag, or a file for the value."""
        out: list[str] = []
        rest = list(arguments)
        while rest:
            argument = rest.pop(0)
            if argument == "--":
                return [*out, argument, *rest]
            name, equals, value = argument.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")  # Whisper's own command writes the underscore
                action = self._option_string_actions.get(name)
                if isinstance(action, Switch) and not equals and not (rest and action.takes(rest[0])):
                    equals, value = "=", "on"
                elif action is not None and action.nargs is None and rest and not equals and NEGATIVE.match(rest[0]):
                    equals, value = "=", rest.pop(0)
                argument = name + equals + value
            out.append(argument)
        return out
