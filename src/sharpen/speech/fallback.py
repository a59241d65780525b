"""A batch that fails is tried again one by one, so that one bad input costs no other its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Attempt(Generic[T, R]):
    """What became of one item: a result, or the error in its place."""

    item: T
    result: R | None
    error: Exception | None = None
    alone: Exception | None = None  # why the batch failed, where the item was tried alone


def attempts(
    items: Sequence[T], call: Callable[[Sequence[T]], Sequence[R]], retried: Collection[T] | None = None
) -> list[Attempt[T, R]]:
    """Calls with all items at once, which gives one result for each; if that fails, with each of them alone.

    `retried` names the items that are worth it; the others then have no attempt. Interrupts are not caught.
    """
    try:
        return [Attempt(item, result) for item, result in zip(items, call(items), strict=True)]
    except Exception as error:
        if len(items) == 1:
            return [Attempt(items[0], None, error)]
        batch = error
    found: list[Attempt[T, R]] = []
    for item in items if retried is None else retried:
        try:
            (result,) = call([item])
            found.append(Attempt(item, result, alone=batch))
        except Exception as error:
            found.append(Attempt(item, None, error, batch))
    return found
