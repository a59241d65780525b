"""The settings of a run: every combination of the values given for the options of adapting and of decoding.

Which options there are follows from their declarations (sharpen.options): a field of `Adaptation` or of `Options` whose
role is "setting" can be varied here, and its value is part of a row's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from sharpen.errors import SharpenError
from sharpen.evaluation.runs.rows import Row
from sharpen.method.adaptation import Adaptation, applies
from sharpen.method.objectives import CTC_METHODS, EVERY_METHOD, Method
from sharpen.options import Option, declared, recorded
from sharpen.speech.efforts import EFFORTS
from sharpen.speech.options import Options
from sharpen.speech.presets import PRESETS

COLUMNS = frozenset(f.name for f in fields(Row))  # what a row has a field of its own for


@cache
def decoding(preset: str) -> Options:
    """How an utterance is decoded by default: as in the paper, one answer, without Whisper's checks."""
    return Options(
        decode="greedy",
        padding=PRESETS[preset].padding,
        timestamps=False,
        temperature=(0.0,),
        no_speech_threshold=None,
        compression_ratio_threshold=None,
        logprob_threshold=None,
    )


@dataclass(frozen=True)
class Setting:
    """One method and how it runs. Answers after several numbers of updates come from one episode."""

    adapt: Adaptation  # of any method, also one that only decodes; its steps are the last of `at`
    at: tuple[int, ...] = (0,)  # updates after which an answer is kept, rising
    changes: tuple[tuple[str, Any], ...] = ()  # options of decoding that are not `decoding(preset)`'s

    @property
    def method(self) -> str:
        return str(self.adapt.method)

    @property
    def adapts(self) -> bool:
        return self.adapt.row.search is not None

    @property
    def samples(self) -> int:
        """G; 1 for greedy search, the width for `beam`, 0 for `source`."""
        return self.adapt.samples if applies("samples", self.adapt.row) else int(self.adapts)

    @property
    def seed(self) -> int:
        return self.adapt.seed

    def options(self, preset: str) -> Options:
        """How to transcribe. The guard is on whatever the setting says: a row keeps both answers and its verdict."""
        adapt = replace(self.adapt, guard=True, greedy_at=self.at[:-1])
        return replace(decoding(preset), **dict(self.changes), seed=self.seed, adapt=adapt)

    def recorded(self, preset: str) -> dict[str, Any]:
        """What a row says of it besides its own fields."""
        return _recorded(self, preset)


@cache
def _recorded(setting: Setting, preset: str) -> dict[str, Any]:
    base = decoding(preset)
    options = recorded(replace(base, **dict(setting.changes)), base)
    if setting.adapts:
        options = {**recorded(setting.adapt, Adaptation()), **options}
    return {name: value for name, value in options.items() if name not in COLUMNS}


def settings(methods: Iterable[str], **values: Sequence[Any]) -> tuple[Setting, ...]:
    """Each method with every combination of the values that make a difference to it, each once.

    `settings(["em-tok"], samples=(4, 16), steps=(1, 10), stop=((), ("agreed",)))`
    """
    options = varied()
    for name, many in values.items():
        if name not in options:
            raise SharpenError(f"{name} cannot be varied; expected one of {', '.join(options)}")
        for value in many:
            options[name].check(value)
    chosen: dict[Setting, None] = {}
    for method in methods:
        declared(Adaptation)["method"].check(method)
        names = [name for name in options if name in values and name != "steps"]
        for combination in product(*(values[name] for name in names)):
            choice = _effective(dict(zip(names, combination, strict=True)), EVERY_METHOD[method])
            for at in _episodes(method, values.get("steps", (Adaptation().steps,)), choice):
                chosen[_setting(method, at, choice)] = None
    for setting in chosen:
        setting.options("exact")  # refuses impossible settings before anything is computed
    return tuple(chosen)


def of_effort(name: str) -> Setting:
    """The setting that an effort stands for."""
    bundle = dict(EFFORTS[name])
    adapt = bundle.pop("adapt") or Adaptation(method="source")
    at = (adapt.steps,) if adapt.row.search is not None else (0,)
    return Setting(adapt, at, tuple(bundle.items()))


def varied() -> dict[str, Option]:
    """The options that a run can vary, by name; the method comes apart from them."""
    both = {**declared(Options), **declared(Adaptation)}
    order = [*declared(Adaptation), *declared(Options)]
    return {name: both[name] for name in order if both[name].role == "setting" and name != "method"}


def _setting(method: str, at: tuple[int, ...], choice: Mapping[str, Any]) -> Setting:
    own = {name: value for name, value in choice.items() if name in declared(Adaptation)}
    changes = tuple((name, value) for name, value in choice.items() if name not in own)
    return Setting(Adaptation(**{"method": method, "steps": at[-1], **own}), at, changes)


def _effective(choice: Mapping[str, Any], method: Method) -> dict[str, Any]:
    """A combination without the values that make no difference to the answer: the rest then have one row, not many.

    What draws nothing has seed 0 whatever is given: a run with other seeds does not compute it again.
    """
    own = method.search is None and method.decode == "beam"  # its width is its samples
    beam = not own and {"beam", "mbr"} & {choice.get("decode"), method.decode}
    warm = any(choice.get("temperature", (0.0,)))
    idle = {
        "decode": own,
        "beam_size": not beam,
        "length_penalty": not (beam or own or warm),
        "best_of": not warm,
        "seed": not (warm or method.search == "sample"),
    }
    return {
        name: value
        for name, value in choice.items()
        if not idle.get(name, name in declared(Adaptation) and not applies(name, method))
    }


def _episodes(name: str, steps: Sequence[int], choice: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The numbers of updates that one episode answers after.

    An episode on its way decodes greedily and without timestamps, so any other final search needs an episode each, and
    so does a learning rate that depends on the number of steps; that of a CTC model answers only at its end.
    """
    method = EVERY_METHOD[name]
    if method.search is None:
        return [(0,)]
    at = tuple(sorted(set(steps)))
    plain = (
        name not in CTC_METHODS
        and not {"beam", "mbr"} & {choice.get("decode"), method.decode}
        and not choice.get("timestamps")
        and choice.get("schedule", "constant") == "constant"
    )
    return [at] if plain else [(k,) for k in at]
