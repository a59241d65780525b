"""What a run will compute: every utterance under every setting, in batches.

The plan comes from the whole list of utterances, so a batch holds the same ones whether a run is new or resumed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, Any

from sharpen import __version__
from sharpen.errors import SharpenError
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.store import Store
from sharpen.method.objectives import METHODS

if TYPE_CHECKING:
    from sharpen.evaluation.corpora.corpus import Corpus, Utterance
    from sharpen.method.adaptation import Adaptation

LONGEST = 30.0  # seconds that fit into a window; an utterance is evaluated in one
ORDER = 0  # the seed that shuffles a corpus before its first N are taken


@dataclass(frozen=True)
class Setting:
    """One method and how it is run. Answers after several numbers of updates come from one episode."""

    method: str
    samples: int  # G; 1 for greedy search, the width for `beam`, 0 for `source`
    at: tuple[int, ...]  # updates after which an answer is kept, rising; the last is the length of the episode
    seed: int = 0
    lr: float = 1e-3
    weight_decay: float = 0.0
    norms: str = "encoder+decoder"
    normalise: str = "tokens"

    @property
    def adapts(self) -> bool:
        return METHODS[self.method].search is not None

    @property
    def options(self) -> dict[str, Any]:
        """What a row says of it besides its own fields."""
        names = ("lr", "weight_decay", "norms", "normalise") if self.adapts else ()
        return {name: getattr(self, name) for name in names}

    def adaptation(self) -> Adaptation | None:
        from sharpen.method.adaptation import Adaptation

        if not self.adapts:
            return None
        options: dict[str, Any] = {"seed": self.seed, **self.options}  # the guard is on: both answers are kept
        samples, (*earlier, steps) = self.samples, self.at
        return Adaptation(method=self.method, steps=steps, samples=samples, greedy_at=tuple(earlier), **options)


@dataclass(frozen=True)
class Run:
    """What all rows of a run have in common."""

    model: str = "base"
    batch_size: int = 1  # windows side by side
    threads: int = 1  # of the CPU
    device: str = "cpu"
    preset: str = "exact"
    dtype: str = "float32"  # what the preset comes to on this device; the same for all workers
    guard: bool = True  # whether its verdict decides which text is the answer; the verdict is kept either way

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("batch_size", "threads", "device", "preset", "dtype")}


@dataclass(frozen=True)
class Part:
    """A corpus under one condition."""

    corpus: Corpus
    noise: str = ""  # what was mixed into it as it is read, such as GS; empty for the recordings as they are
    snr: float | None = None  # dB

    @property
    def options(self) -> dict[str, Any]:
        return {"noise": self.noise, "snr": self.snr} if self.noise else {}


@dataclass(frozen=True)
class Batch:
    """Utterances that go through the model together, under one setting."""

    setting: Setting
    utterances: tuple[Utterance, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # of the condition

    def blank(self, run: Run, utterance: Utterance, steps: int) -> Row:
        """The row before its answer: all that its key is made of."""
        u, setting = utterance, self.setting
        guard = {"guard": run.guard} if setting.adapts else {}
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
            options={**setting.options, **guard, **run.options, **u.mixed, **self.options},
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
    skipped: tuple[str, ...] = ()  # what the corpora's readers left out, and why

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(len(batch.utterances) * len(batch.setting.at) for batch in self.batches)

    def missing(self, store: Store) -> list[Batch]:
        """Batches of which the store lacks a row."""
        return [batch for batch in self.batches if any(key not in store for key in batch.keys(self.run))]

    def rows(self, store: Store) -> list[Row]:
        """Those of its rows that the store has, in the plan's order."""
        keys = (key for batch in self.batches for key in batch.keys(self.run))
        return [store.rows[key] for key in keys if key in store]


def settings(
    methods: Iterable[str],
    samples: Sequence[int] = (16,),
    at: Sequence[int] = (10,),
    seeds: Sequence[int] = (0,),
    **others: Any,
) -> tuple[Setting, ...]:
    """Each method with each G and seed that can make a difference to it."""
    found: dict[Setting, None] = {}
    for name in methods:
        if name not in METHODS:
            raise SharpenError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
        method = METHODS[name]
        steps = tuple(sorted(set(at))) if method.search else (0,)
        counts = (
            samples if method.search in ("sample", "beam") or method.decode == "beam" else (int(bool(method.search)),)
        )
        # What draws nothing has seed 0 whatever the others have: a run with other seeds does not compute it again.
        for G, seed in product(counts, seeds if method.search == "sample" else (0,)):
            found[Setting(name, G, steps, seed, **others)] = None
    for setting in found:
        setting.adaptation()  # refuses impossible settings before anything is computed
    return tuple(found)


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
        # The same order with and without a limit: a later run with a larger one then goes on where this one ended.
        ordered = part.corpus.first(len(part.corpus.utterances) if limit is None else limit, seed=ORDER).utterances
        for u in ordered:
            name = (u.corpus, u.domain, u.id, part.noise, part.snr)
            if name in seen:
                raise SharpenError(
                    f"{u.corpus}: {u.id!r} comes twice in {u.domain}; name a corpus once, and give every "
                    "utterance its own id"
                )
            seen.add(name)
        refused += [f"{u.corpus} {u.id}: {too_long(u.duration)}" for u in ordered if u.duration > LONGEST]
        good = [u for u in ordered if u.duration <= LONGEST]
        for start in range(0, len(good), run.batch_size):
            together = tuple(good[start : start + run.batch_size])
            batches += [Batch(setting, together, part.options) for setting in chosen]
    if not batches:
        raise SharpenError("nothing to evaluate: the corpora hold no usable utterance, or no method was named")
    return Plan(run, tuple(batches), tuple(refused), tuple(skipped))


def too_long(seconds: float) -> str:
    return f"{seconds:.1f} s of audio; at most {LONGEST:.0f} s fit: cut it, or leave such out with --max-seconds"


@cache
def versions() -> dict[str, str]:
    return {"sharpen": __version__, "torch": version("torch"), "python": platform.python_version()}
