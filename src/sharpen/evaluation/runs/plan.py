"""What a run will compute: every utterance under every setting, in batches.

The plan comes from the whole list of utterances, so a batch holds the same ones whether a run is new or resumed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sharpen import __version__
from sharpen.errors import SharpenError
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.settings import Setting
from sharpen.evaluation.runs.store import Store

if TYPE_CHECKING:
    from sharpen.evaluation.corpora.corpus import Corpus, Utterance

LONGEST = 30.0  # seconds that fit into a window; an utterance is evaluated in one
ORDER = 0  # the seed that shuffles a corpus before its first N are taken


@dataclass(frozen=True)
class Run:
    """What all rows of a run have in common."""

    model: str = "base"
    batch_size: int = 1  # windows side by side
    threads: int = 1  # of the CPU
    device: str = "cpu"
    preset: str = "exact"
    dtype: str = "float32"  # of the weights, the same for all workers

    @property
    def options(self) -> dict[str, Any]:
        """What a row records of it besides the model."""
        return {name: getattr(self, name) for name in ("batch_size", "threads", "device", "preset", "dtype")}


@dataclass(frozen=True)
class Part:
    """A corpus under one condition."""

    corpus: Corpus
    noise: str = ""  # the code of the noise that is mixed in while reading; empty: none
    snr: float | None = None  # dB
    draw: int = 0  # of the noise

    @property
    def options(self) -> dict[str, Any]:
        """What a row records of it; the first draw is not named."""
        drawn = {"noise_draw": self.draw} if self.draw else {}
        return {"noise": self.noise, "snr": self.snr, **drawn} if self.noise else {}


@dataclass(frozen=True)
class Batch:
    """Utterances that go through the model together, under one setting."""

    setting: Setting
    utterances: tuple[Utterance, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the condition

    def blank(self, run: Run, utterance: Utterance, steps: int) -> Row:
        """The row without its answer: everything that its key depends on."""
        u, setting = utterance, self.setting
        return Row(
            corpus=u.corpus,
            domain=u.domain,
            id=u.id,
            speaker=u.speaker,
            language=u.language,
            duration=u.duration,
            reference=u.reference,
            model=run.model,
            method=setting.method,
            samples=setting.samples,
            steps=steps,
            seed=setting.seed,
            options={**setting.recorded(run.preset), **run.options, **u.mixed, **self.options},
            versions=versions(),
        )

    def blanks(self, run: Run, utterance: Utterance) -> list[Row]:
        return [self.blank(run, utterance, steps) for steps in self.setting.at]

    def keys(self, run: Run) -> list[str]:
        return [row.key for utterance in self.utterances for row in self.blanks(run, utterance)]


@dataclass(frozen=True)
class Plan:
    run: Run
    batches: tuple[Batch, ...]
    refused: tuple[str, ...] = ()  # utterances that cannot be evaluated, and why
    skipped: tuple[str, ...] = ()  # entries that the corpora's readers skipped, and why

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(len(batch.utterances) * len(batch.setting.at) for batch in self.batches)

    def missing(self, store: Store) -> list[Batch]:
        """Batches of which the store lacks a row."""
        return [batch for batch in self.batches if any(key not in store for key in batch.keys(self.run))]

    def rows(self, store: Store) -> list[Row]:
        """The plan's rows that the store has, in the plan's order."""
        keys = (key for batch in self.batches for key in batch.keys(self.run))
        return [store.rows[key] for key in keys if key in store]


def plan(parts: Iterable[Part], chosen: Sequence[Setting], run: Run, limit: int | None = None) -> Plan:
    """Batches of each part's first `limit` utterances; each batch goes through all settings before the next one.

    So whenever a run stops, all methods have answered nearly the same utterances.
    """
    batches: list[Batch] = []
    refused: list[str] = []
    skipped: dict[str, None] = {}
    seen: set[tuple[Any, ...]] = set()
    for part in parts:
        skipped.update(dict.fromkeys(part.corpus.skipped))
        # The same order with and without a limit: a later run with a larger one then adds to this one.
        ordered = part.corpus.first(len(part.corpus.utterances) if limit is None else limit, seed=ORDER).utterances
        for u in ordered:
            name = (u.corpus, u.domain, u.id, part.noise, part.snr, part.draw)
            if name in seen:
                raise SharpenError(
                    f"{u.corpus}: {u.id!r} appears twice in {u.domain}; name each corpus once, and give every "
                    "utterance its own id"
                )
            seen.add(name)
        refused += [f"{u.corpus} {u.id}: {too_long(u.duration)}" for u in ordered if u.duration > LONGEST]
        good = [u for u in ordered if u.duration <= LONGEST]
        for start in range(0, len(good), run.batch_size):
            together = tuple(good[start : start + run.batch_size])
            batches += [Batch(setting, together, part.options) for setting in chosen]
    if not batches:
        raise SharpenError("nothing to evaluate: the corpora have no usable utterance, or no method was given")
    return Plan(run, tuple(batches), tuple(refused), tuple(skipped))


def too_long(seconds: float) -> str:
    return f"{seconds:.1f} s of audio; at most {LONGEST:.0f} s fit: cut it, or skip long ones with --max-seconds"


@cache
def versions() -> dict[str, str]:
    return {"sharpen": __version__, "torch": version("torch"), "python": platform.python_version()}
