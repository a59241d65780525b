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
    batch_error: Exception | None = None  # why the batch failed, where the item was tried alone


def attempts(
    items: Sequence[T], call: Callable[[Sequence[T]], Sequence[R]], retried: Collection[T] | None = None
) -> list[Attempt[T, R]]:
    """Calls with all items at once, which gives one result for each; if that fails, with each of them alone.

    `retried` lists the items to try alone (default: all); the others are left out. Interrupts are not caught.
    """
    try:
        return [Attempt(item, result) for item, result in zip(items, call(items), strict=True)]
    except Exception as error:
        if len(items) == 1:
            return [Attempt(items[0], None, error)]
        batch = error
    attempted: list[Attempt[T, R]] = []
    for item in items if retried is None else retried:
        try:
            (result,) = call([item])
            attempted.append(Attempt(item, result, batch_error=batch))
        except Exception as error:
            attempted.append(Attempt(item, None, error, batch))
    return attempted
