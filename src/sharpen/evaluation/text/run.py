"""Methods over tasks: one row for each item and method, in the same file of rows as a run on speech.

A right answer is no error in one word, a wrong one a substitution: the rate of errors is one minus the accuracy, and
its intervals and paired comparisons are those of `evaluation.report.statistics`.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sharpen import __version__
from sharpen.errors import SharpenError, reason
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import ErrorCounts
from sharpen.evaluation.runs.store import Store
from sharpen.evaluation.text.scorers import scorer, vote_key
from sharpen.evaluation.text.tasks import TextItem, TextTask
from sharpen.method.adaptation import Adaptation
from sharpen.method.objectives import METHODS
from sharpen.options import recorded
from sharpen.text.options import WIDTH, Generation

if TYPE_CHECKING:
    from sharpen.method.trace import Trace
    from sharpen.text.generate import LanguageModel

VOTE = "vote"  # the baseline that samples G answers and takes the most frequent


@dataclass(frozen=True)
class TextRun:
    """What a run computes."""

    model: str
    tasks: tuple[TextTask, ...]
    methods: tuple[str, ...]
    adapt: Adaptation  # of every adapting method, but for the method itself
    options: Generation  # of every method, but for what the method decides: beam and vote search in their own way
    vote_temperature: float = 1.0  # of the method vote
    scorer: str | None = None  # None: each task's own
    threads: int = 1
    limit: int | None = None  # items of each task

    def __post_init__(self) -> None:
        unknown = [name for name in self.methods if name not in METHODS and name != VOTE]
        if unknown:
            raise SharpenError(f"method {unknown[0]!r}: expected some of {VOTE}, {', '.join(METHODS)}")
        self._check_search()
        for task in self.tasks:
            name = self.scorer or task.scorer
            scorer(name)
            if name == "choice" and VOTE in self.methods:
                raise SharpenError(f"{task.name} is scored by log-probabilities: the method {VOTE} does not apply")
            if name == "choice" and not all(item.choices for item in task.items):
                raise SharpenError(f"{task.name}: not every item has choices, which the scorer choice needs")

    def _check_search(self) -> None:
        decode = self.options.decode
        if decode == "vote":
            raise SharpenError(f"decode is 'vote', under the name of another method: use the method {VOTE} instead")
        if decode != "greedy" and all(method in (VOTE, "beam") for method in self.methods):
            raise SharpenError(f"decode is {decode!r}, but {' and '.join(self.methods)} search in their own way")
        if decode != "greedy" and all((self.scorer or task.scorer) == "choice" for task in self.tasks):
            raise SharpenError(f"decode is {decode!r}, but the scorer choice compares log-probabilities: leave it out")
        if self.vote_temperature != 1.0 and VOTE not in self.methods:
            raise SharpenError(f"vote_temperature is {self.vote_temperature}, but the method {VOTE} is not run")

    def generation(self, method: str) -> Generation:
        """How a method answers."""
        seed = self.adapt.seed
        if method in METHODS and METHODS[method].search is not None:
            return replace(self.options, adapt=replace(self.adapt, method=method), seed=seed)
        if method == "source":
            return replace(self.options, seed=seed)
        bare = replace(self.options, decode="greedy", beam_size=WIDTH, temperature=1.0, seed=seed)
        if method == VOTE:
            return replace(bare, decode="vote", votes=self.adapt.samples, temperature=self.vote_temperature)
        return replace(bare, adapt=replace(self.adapt, method=method))


def evaluate_text(
    run: TextRun, store: Store, load: Callable[[], LanguageModel], on_rows: Callable[[int], None] | None = None
) -> list[Row]:
    """Computes the rows that the store lacks; returns all rows of the run, failed ones included."""
    wanted = [(task, method, item) for task in run.tasks for method in run.methods for item in task.items[: run.limit]]
    blanks = {(task.name, method, item.id): _blank(run, task, method, item) for task, method, item in wanted}
    from sharpen.models.weights.text import fingerprint_text

    weights = fingerprint_text(run.model)
    for blank in blanks.values():
        _agree(store, replace(blank, weights=weights))
    model: LanguageModel | None = None
    failed: dict[str, Row] = {}
    for task in run.tasks:
        for method in run.methods:
            missing = [i for i in task.items[: run.limit] if blanks[task.name, method, i.id].key not in store]
            size = run.options.batch_size
            for batch in (missing[start : start + size] for start in range(0, len(missing), size)):
                model = model or load()
                together = [(item, replace(blanks[task.name, method, item.id], weights=weights)) for item in batch]
                rows = [*_rows(run, model, run.scorer or task.scorer, method, together)]
                failed |= {row.key: row for row in rows if row.failed}
                store.add(row for row in rows if not row.failed)
                if on_rows is not None:
                    on_rows(len(rows))
    keys = [blank.key for blank in blanks.values()]
    return [store.rows[key] if key in store else failed[key] for key in keys]


def _agree(store: Store, blank: Row) -> None:
    stored = store.rows.get(blank.key)
    for name in ("reference", "audio", "weights"):
        if stored is not None and getattr(stored, name) != getattr(blank, name):
            what = "prompt" if name == "audio" else name
            raise SharpenError(
                f"{store.path}: {blank.corpus} {blank.id} was computed with another {what}; give another folder to "
                "--out, or remove that row"
            )


def _blank(run: TextRun, task: TextTask, method: str, item: TextItem) -> Row:
    """A row without its answer."""
    import torch

    options = run.generation(method)
    adapts = options.adapt is not None
    settings = {"scorer": run.scorer or task.scorer, "threads": run.threads, "batch_size": run.options.batch_size}
    own = recorded(options, Generation()) | (recorded(options.adapt, Adaptation()) if adapts else {})
    # Fields of a row, and what the method says already.
    own = {key: value for key, value in own.items() if key not in ("method", "samples", "steps", "seed", "votes")}
    counted = {"vote": options.votes, "beam": options.beam_size}.get(method, 0)
    draws = options.decode in ("sample", "vote") or (options.adapt is not None and options.adapt.row.search == "sample")
    return Row(
        corpus=task.name,
        domain=item.domain or task.name,
        id=item.id,
        speaker="",
        language="",
        duration=0.0,
        reference=item.answer,
        model=run.model,
        method=method,
        samples=(1 if method == "greedy-em" else run.adapt.samples) if adapts else counted,
        steps=run.adapt.steps if adapts else 0,
        seed=run.adapt.seed if draws else 0,
        options={**own, **settings},
        versions={"sharpen": __version__, "torch": torch.__version__, "python": platform.python_version()},
        audio=item.fingerprint,
    )


def _rows(
    run: TextRun, model: LanguageModel, name: str, method: str, together: Sequence[tuple[TextItem, Row]]
) -> Iterator[Row]:
    """The rows of a batch; where it fails, each item is tried alone."""
    options, right = run.generation(method), scorer(name)
    try:
        if name == "choice":
            answered = [_choice(model, item, blank, options) for item, blank in together]
        else:
            answered = _generated(model, together, options, name)
    except (SharpenError, RuntimeError, MemoryError) as error:
        if len(together) == 1:
            yield replace(together[0][1], failed=reason(error))
            return
        for one in together:
            yield from _rows(run, model, name, method, [one])
        return
    for row in answered:
        wrong = 0 if right(row.text, row.reference) else 1
        yield replace(row, errors=ErrorCounts(substitutions=wrong, reference=1))


def _generated(
    model: LanguageModel, together: Sequence[tuple[TextItem, Row]], options: Generation, name: str
) -> list[Row]:
    prompts, ids = [item.prompt for item, _ in together], [item.id for item, _ in together]
    rows = []
    for (_, blank), one in zip(together, model.answer(prompts, ids, options, key=vote_key(name)), strict=True):
        after = one.adapted or one.source
        trace = {**_curves(one.trace), "entropy": [_number(one.source.entropy), _number(after.entropy)]}
        rows.append(
            replace(
                blank,
                text=one.text,
                source_text=one.source.text,
                adapted_text="" if one.adapted is None else one.adapted.text,
                refused=one.refused,
                seconds=round(one.seconds, 4),
                trace=trace,
            )
        )
    return rows


def _choice(model: LanguageModel, item: TextItem, blank: Row, options: Generation) -> Row:
    start = time.perf_counter()
    ranking = model.rank(item.prompt, item.choices, item.id, options)
    before, after = (item.choices[max(range(len(r)), key=r.__getitem__)] for r in (ranking.source, ranking.adapted))
    return replace(
        blank,
        text=after,
        source_text=before,
        adapted_text=after if options.adapt is not None else "",
        seconds=round(time.perf_counter() - start, 4),
        trace=_curves(ranking.trace),
    )


def _curves(trace: Trace) -> Mapping[str, Any]:
    if not trace.steps:
        return {}
    curves = {name: [round(getattr(step, name), 5) for step in trace.steps] for name in ("H_tok", "H_seq")}
    counts = {name: [getattr(step, name) for step in trace.steps] for name in ("nodes", "tokens", "truncated")}
    return {**curves, **counts, "stopped": trace.stopped}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 5)
