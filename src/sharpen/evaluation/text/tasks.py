"""Tasks with known answers: read from JSON lines, or made here from a seed.

A made task has a few hundred items, split into tune (to choose options on) and test (to report). Items differ by their
numbers, words and names, and no prompt appears twice. A task ends with an instruction, for a model that follows it; or
it comes after a few answered questions (-shots), for one that only continues, and its answer ends with the line.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharpen.errors import SharpenError

ITEMS = 200  # of each split of a made task
SPLITS = ("tune", "test")
SHOTS = 3  # answered questions before each question of a task whose name ends with -shots
MADE = "made:"  # how the name of a made task begins


@dataclass(frozen=True)
class TextItem:
    """One prompt with its answer."""

    id: str
    prompt: str
    answer: str
    choices: tuple[str, ...] = ()  # for multiple choice; the answer is one of them
    domain: str = ""  # what a table's column is; the task's name where it is empty

    @property
    def fingerprint(self) -> str:
        """Twelve digits of the checksum of what the model is asked."""
        return hashlib.sha256(json.dumps([self.prompt, self.choices]).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class TextTask:
    """Items under a name."""

    name: str
    items: tuple[TextItem, ...]
    scorer: str = "exact"  # what its answers are scored by unless a run says otherwise


def read_task(name: str) -> TextTask:
    """A JSONL file of {id, prompt, answer} and, if wanted, choices and domain; or made:TASK[:SPLIT]."""
    if name.startswith(MADE):
        kind, _, split = name.removeprefix(MADE).partition(":")
        return made_task(kind, split or "test")
    path = Path(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SharpenError(
            f"cannot read {name}: {error}; expected a JSONL file, or {MADE} and one of {', '.join(MAKERS)}"
        ) from error
    items: dict[str, TextItem] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            item = _item(line, number, f"{name}, line {number}")
            if item.id in items:
                raise SharpenError(f"{name}, line {number}: the id {item.id!r} is taken by an earlier line")
            items[item.id] = item
    if not items:
        raise SharpenError(f"{name}: no items; expected one JSON object on each line")
    return TextTask(path.stem, tuple(items.values()), "choice" if all(i.choices for i in items.values()) else "exact")


def _item(line: str, number: int, where: str) -> TextItem:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise SharpenError(f"{where}: not JSON ({error})") from error
    fields = entry if isinstance(entry, dict) else {}
    prompt, answer, choices = fields.get("prompt"), fields.get("answer"), fields.get("choices", [])
    if not (isinstance(prompt, str) and prompt and isinstance(answer, str | int | float)):
        raise SharpenError(f'{where}: expected an object with "prompt" and "answer", found {line[:60]!r}')
    if not isinstance(choices, list) or (choices and str(answer) not in map(str, choices)):
        raise SharpenError(f"{where}: the answer {answer!r} is not one of the choices {choices!r}")
    name, domain = str(fields.get("id", number)), str(fields.get("domain", ""))
    return TextItem(name, prompt, str(answer), tuple(map(str, choices)), domain)


def made_task(kind: str, split: str, items: int = ITEMS) -> TextTask:
    """One of MAKERS, the same on every machine."""
    if kind not in MAKERS or split not in SPLITS:
        raise SharpenError(f"no task {kind!r} with a split {split!r}; expected {', '.join(MAKERS)}; tune or test")
    make, scorer = MAKERS[kind]
    shown = [make(random.Random(f"{kind} example {n}")) for n in range(SHOTS)] if kind.endswith("-shots") else []
    before = "".join(f"Q: {question}\nA: {answer}\n" for question, _, answer, _ in shown)
    draw = random.Random(f"{kind} 1")  # one sequence for both splits, so that they share no prompt
    seen: dict[str, TextItem] = {}
    while len(seen) < 2 * items:
        question, instruction, answer, choices = make(draw)
        prompt = f"{before}Q: {question}\nA:" if shown else f"{question} {instruction}"
        if question not in {example[0] for example in shown}:
            seen.setdefault(prompt, TextItem(f"{kind}-{len(seen):04}", prompt, answer, tuple(choices)))
    first = SPLITS.index(split) * items
    return TextTask(f"{kind}-{split}", tuple(seen.values())[first : first + items], scorer)


Made = tuple[str, str, str, Sequence[str]]  # question, how to answer, answer, choices

_LISTS = """
apple river stone cloud garden window paper silver summer winter orange bridge candle forest mirror pencil rabbit saddle tunnel violin walnut zebra basket button camera dragon engine feather guitar hammer island jacket
Anna Ben Clara David Emma Frank Grace Henry Iris Jack Kate Leo Mia Noah Olga Paul
ball book cup hat key lamp pen rope shoe toy
red blue green yellow black white brown pink
kitchen garden garage bedroom office cellar attic hall
"""  # noqa: E501
WORDS, NAMES, THINGS, COLOURS, PLACES = (line.split() for line in _LISTS.strip().splitlines())


def _arithmetic(draw: random.Random) -> Made:
    """Two steps with small numbers."""
    a, b, c = draw.randint(2, 30), draw.randint(2, 30), draw.randint(2, 9)
    first, second = draw.choice("+-"), draw.choice("+-")
    if first == "-" and b > a:
        a, b = b, a
    value = a + b if first == "+" else a - b
    if second == "-" and c > value:
        second = "+"
    value = value + c if second == "+" else value - c
    return f"What is {a} {first} {b} {second} {c}?", "Answer with the number only.", str(value), ()


def _copying(draw: random.Random) -> Made:
    words = " ".join(draw.sample(WORDS, draw.randint(3, 6)))
    return f"Repeat: {words}.", "Write these words and nothing else.", words, ()


def _sorting(draw: random.Random) -> Made:
    numbers = draw.sample(range(1, 60), draw.randint(3, 4))
    asked = ", ".join(map(str, numbers))
    answer = ", ".join(map(str, sorted(numbers)))
    return f"Sort from smallest to largest: {asked}.", "Write the numbers and nothing else.", answer, ()


def _reading(draw: random.Random) -> Made:
    """A closed question about three sentences; the choices are what the text names."""
    people, things = draw.sample(NAMES, 3), draw.sample(THINGS, 3)
    colours, places = draw.sample(COLOURS, 3), draw.sample(PLACES, 3)
    facts = zip(people, colours, things, places, strict=True)
    text = " ".join(f"{who} put the {colour} {thing} in the {place}." for who, colour, thing, place in facts)
    n = draw.randrange(3)
    question, answers = draw.choice(
        [
            (f"Where is the {things[n]}?", places),
            (f"What colour is the {things[n]}?", colours),
            (f"Who put something in the {places[n]}?", people),
        ]
    )
    return f"{text} {question}", "Answer with one word.", answers[n], sorted(answers)


MAKERS: dict[str, tuple[Callable[[random.Random], Made], str]] = {
    "arithmetic": (_arithmetic, "number"),
    "copying": (_copying, "exact"),
    "sorting": (_sorting, "exact"),
    "reading": (_reading, "exact"),
    "reading-choice": (_reading, "choice"),
    "arithmetic-shots": (_arithmetic, "number"),
    "copying-shots": (_copying, "exact"),
    "sorting-shots": (_sorting, "exact"),
    "reading-shots": (_reading, "exact"),
}
