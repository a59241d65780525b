"""Prompts and answers as JSON lines: {"id": …, "prompt": …} in, the same with "answer" and more out.

Answers are flushed as they come. A run that was stopped continues: prompts that have an answer in the output are not
answered again, and a line that a crash left incomplete is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sharpen.errors import SharpenError
from sharpen.files import unwritable
from sharpen.options import as_text, declared
from sharpen.text.generate import Answer
from sharpen.text.options import Generation


@dataclass(frozen=True)
class Prompt:
    """One prompt of a file."""

    id: str
    text: str


def read_prompts(path: str | Path, lines: Iterable[str] | None = None) -> list[Prompt]:
    """The prompts of a JSONL file; the number of a line, from 1, is the id of a prompt without one."""
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(_lines(path) if lines is None else lines, 1):
        if not line.strip():
            continue
        entry = _parsed(line, f"{path}, line {number}")
        text, name = entry.get("prompt"), str(entry.get("id", number))
        if not isinstance(text, str) or not text:
            raise SharpenError(f'{path}, line {number}: expected an object with a text "prompt", found {line[:60]!r}')
        if name in prompts:
            raise SharpenError(f"{path}, line {number}: the id {name!r} is taken by an earlier line")
        prompts[name] = Prompt(name, text)
    if not prompts:
        raise SharpenError(f'{path}: no prompts; expected one JSON object with "prompt" on each line')
    return list(prompts.values())


class AnswerFile:
    """The answers of a run, open for appending. `weights` is the checksum of what `model` names."""

    def __init__(self, path: str | Path, model: str, weights: str, options: Generation) -> None:
        self.path, self._settings = Path(path), _settings(model, weights, options)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.done = self._repair()
            self._file: IO[bytes] = self.path.open("ab")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()

    def missing(self, prompts: Iterable[Prompt]) -> list[Prompt]:
        """The prompts that have no answer yet; refuses an output that answers other prompts under the same ids."""
        left = []
        for prompt in prompts:
            if prompt.id not in self.done:
                left.append(prompt)
            elif self.done[prompt.id] != prompt.text:
                raise SharpenError(
                    f"{self.path} has an answer to another prompt with the id {prompt.id!r}; give another --output"
                )
        return left

    def add(self, answer: Answer) -> None:
        line = json.dumps({**as_entry(answer), "settings": self._settings}, ensure_ascii=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _repair(self) -> dict[str, str]:
        """The ids and prompts that are answered."""
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        done = {}
        for number, line in enumerate(whole.decode("utf-8", "replace").splitlines(), 1):
            entry = _parsed(line, f"{self.path}, line {number}")
            self._agree(entry.get("settings"), f"{self.path}, line {number}")
            done[str(entry.get("id"))] = str(entry.get("prompt"))
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        return done

    def _agree(self, stored: Any, where: str) -> None:
        if stored == self._settings:
            return
        held = stored.get("weights") if isinstance(stored, dict) else None
        if held and {**stored, "weights": ""} == {**self._settings, "weights": ""}:
            model, ours = self._settings["model"], self._settings["weights"]
            raise SharpenError(
                f"{where}: an answer of other weights: {model} had the checksum {held} then, and has {ours} now; give "
                "another --output"
            )
        raise SharpenError(f"{where}: an answer with other settings ({stored}); give another --output")


def as_entry(answer: Answer) -> dict[str, Any]:
    """An answer as a JSON object."""
    entry: dict[str, Any] = {
        "id": answer.id,
        "prompt": answer.prompt,
        "answer": answer.text,
        "finished": answer.finished,
        "seconds": round(answer.seconds, 3),
    }
    if answer.adapted is not None:
        steps = answer.trace.steps
        entry |= {
            "source": answer.source.text,
            "adapted": answer.adapted.text,
            "refused": answer.refused,
            "H_tok": [round(step.H_tok, 4) for step in steps],
            "H_seq": [round(step.H_seq, 4) for step in steps],
            "stopped": answer.trace.stopped,
        }
    return entry


def _settings(model: str, weights: str, options: Generation) -> dict[str, Any]:
    """What an answer depends on, in the words of the command line."""
    own = {
        name: as_text(getattr(options, name))
        for name, one in declared(Generation).items()
        if one.role == "setting" and getattr(options, name) != getattr(Generation(), name)
    }
    if options.adapt is not None:
        own |= {
            name: as_text(getattr(options.adapt, name))
            for name, one in declared(type(options.adapt)).items()
            if one.role == "setting"
        }
    return {"model": model, "weights": weights, **own}


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SharpenError(f"cannot read {path}: {error}") from error


def _parsed(line: str, where: str) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise SharpenError(f"{where}: not JSON ({error}): {line[:60]!r}") from error
    if not isinstance(entry, dict):
        raise SharpenError(f"{where}: expected a JSON object, found {line[:60]!r}")
    return entry
