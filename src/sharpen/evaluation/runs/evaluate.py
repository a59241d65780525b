"""A run: the batches of a plan go through the model, as `sharpen transcribe` decodes a window, and into the store.

A row depends on its batch alone. Batches whose rows are all stored are skipped. One that is stored in part is computed
again as a whole, and its missing rows are added.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sharpen.errors import SharpenError, reason
from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.plan import LONGEST, Batch, Plan, Run, too_long
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import word_errors
from sharpen.evaluation.runs.store import Store
from sharpen.speech.fallback import Attempt, attempts

if TYPE_CHECKING:
    from sharpen.evaluation.corpora.corpus import Utterance
    from sharpen.evaluation.runs.settings import Setting
    from sharpen.method.trace import Trace
    from sharpen.speech.answers import Decoded
    from sharpen.speech.decoding import Window
    from sharpen.speech.transcribe import Model

# Computes batches: the run, the batches to compute, and the keys of rows that exist already.
Engine = Callable[[Run, Sequence[Batch], Collection[str]], Iterator[list[Row]]]


def evaluate(plan: Plan, store: Store, engine: Engine, on_rows: Callable[[list[Row]], None] | None = None) -> list[Row]:
    """Computes the rows that the store lacks and writes each batch; returns the plan's rows, failed ones included."""
    _agree(plan, store)
    missing = plan.missing(store)
    if missing:
        for rows in engine(plan.run, missing, frozenset(store.rows)):
            added = store.add(rows)
            if on_rows is not None:
                on_rows(added)
    return plan.rows(store)


def _agree(plan: Plan, store: Store) -> None:
    """Refuses stored rows that have the plan's keys but come from other weights, audio or references."""
    weights, audio = "", {}
    for batch in plan.batches:
        for u in batch.utterances:
            for blank in batch.blanks(plan.run, u):
                stored = store.rows.get(blank.key)
                if stored is None:
                    continue
                if stored.weights and not weights:
                    weights = _weights(plan.run.model)
                if stored.audio and u not in audio:
                    audio[u] = _audio(u)
                now = replace(blank, weights=weights, audio=audio.get(u, ""))
                for name in ("reference", "language", "audio", "weights"):
                    old, new = getattr(stored, name), getattr(now, name)
                    if old and new and old != new:
                        raise SharpenError(
                            f"{store.path}: {blank.corpus} {blank.id} by {blank.model} has the {name} {old!r}, but now "
                            f"it is {new!r}; give another folder to --out, or remove that row"
                        )


def _weights(model: str) -> str:
    """Their fingerprint; empty where they are not installed, since a complete run needs no model."""
    from sharpen.models.weights.load import fingerprint

    try:
        return fingerprint(model)
    except SharpenError:
        return ""


def _audio(utterance: Utterance) -> str:
    """Its fingerprint; empty where the file is gone, since finished rows need no audio."""
    try:
        return utterance.fingerprint
    except SharpenError:
        return ""


def local(run: Run, batches: Sequence[Batch], done: Collection[str]) -> Iterator[list[Row]]:
    """The engine of this process: one model, one batch after the other."""
    import torch

    before = torch.get_num_threads()
    try:
        model = load_model(run, demands(run, batches))
        weights = _weights(run.model)
        for batch in batches:
            yield compute(model, run, batch, done, weights)
    finally:
        torch.set_num_threads(before)


def demands(run: Run, batches: Sequence[Batch]) -> set[tuple[str, str, str]]:
    """What a model must be able to do for these batches: languages, tasks and methods."""
    found: set[tuple[str, str, str]] = set()
    for batch in batches:
        task, method = batch.setting.options(run.preset).task, batch.setting.method
        found |= {(u.language, task, method) for u in batch.utterances}
    return found


def load_model(run: Run, work: Iterable[tuple[str, str, str]]) -> Model:
    """The run's model; refuses languages, tasks and methods that it cannot do before anything is computed."""
    import torch

    from sharpen.speech.frames import check_method
    from sharpen.speech.options import Options
    from sharpen.speech.transcribe import load

    torch.set_num_threads(run.threads)
    model = load(run.model, device=run.device, dtype=cast(Any, run.dtype))
    for language, task, method in sorted(work):
        model.check(Options(language=language or "auto", task=cast(Any, task)))
        check_method(model.speech, method)
    return model


def compute(model: Model, run: Run, batch: Batch, done: Collection[str] = (), weights: str = "") -> list[Row]:
    """The rows of a batch that are not done. `weights` is the fingerprint of the model's, for the rows to keep.

    An utterance that fails gets a row that says why. Where a batch fails as a whole, each utterance is tried alone.
    """
    from sharpen.speech.decoding import Window, initial_context

    rows: list[Row] = []
    readable: list[tuple[Utterance, Window]] = []
    context = initial_context(model.speech, batch.setting.options(run.preset))
    for utterance in batch.utterances:
        try:
            readable.append((utterance, Window(utterance.id, _samples(utterance), context)))
        except Exception as error:
            rows += _failed(run, batch, utterance, error)
    missing = [pair for pair in readable if any(row.key not in done for row in batch.blanks(run, pair[0]))]
    if missing:
        # All of them, since rounding depends on the batch; what is done already is not tried alone.
        for attempt in attempts(readable, lambda some: _answers(model, run, batch, some), retried=missing):
            rows += _rows(run, batch, attempt)
    audio = {u.id: _audio(u) for u, _ in readable}
    return [
        replace(row, audio=audio.get(row.id, ""), weights=weights if not row.failed else "")
        for row in rows
        if row.key not in done
    ]


def _samples(utterance: Utterance) -> np.ndarray:
    samples = utterance.samples()
    if len(samples) > LONGEST * 16000:
        raise SharpenError(too_long(len(samples) / 16000))
    if not len(samples) or not np.isfinite(samples).all():
        raise SharpenError(f"{len(samples)} samples, not all finite; expected audio: remove the file or repair it")
    return samples


def _rows(run: Run, batch: Batch, attempt: Attempt[tuple[Utterance, Window], list[Row]]) -> list[Row]:
    if attempt.error is not None:
        return _failed(run, batch, attempt.item[0], attempt.error)
    if attempt.batch_error is None:
        return attempt.result or []
    # Alone it may round differently, and its seconds are not a share of a batch: the row says so.
    note = {"alone": f"the batch failed: {attempt.batch_error}"}
    return [replace(row, trace={**row.trace, **note}) for row in attempt.result or []]


def _failed(run: Run, batch: Batch, utterance: Utterance, error: Exception) -> list[Row]:
    return [replace(row, failed=reason(error)) for row in batch.blanks(run, utterance)]


def _answers(model: Model, run: Run, batch: Batch, together: Sequence[tuple[Utterance, Window]]) -> list[list[Row]]:
    """For each utterance its rows, one for each number of updates."""
    from sharpen.method.trace import Trace
    from sharpen.speech.decoding import decode

    setting = batch.setting
    windows = [window for _, window in together]
    languages = [utterance.language or None for utterance, _ in together]
    start = time.perf_counter()
    results = decode(model.speech, windows, setting.options(run.preset), languages)
    total = time.perf_counter() - start
    traces = [result.adaptation.trace if result.adaptation is not None else Trace() for result in results]
    in_steps = sum(sum(step.seconds.values()) for trace in traces for step in trace.steps)
    share = (total - in_steps) / len(together)  # of the source's decode and the final one
    answers = []
    for (utterance, _), result, trace in zip(together, results, traces, strict=True):
        rows = []
        for k in setting.at:
            row = _answer(model, setting, batch.blank(run, utterance, k), result, last=k == setting.at[-1])
            # Had the episode ended after k updates; the greedy answers in between are extra output.
            own = sum(step.seconds[stage] for step in trace.steps[:k] for stage in step.seconds if stage != "greedy")
            rows.append(replace(row, seconds=round(share + own, 4)))
        answers.append(rows)
    return answers


def _answer(model: Model, setting: Setting, blank: Row, result: Decoded, last: bool) -> Row:
    """The row with its answer: the episode's final one, or its greedy one after fewer updates."""
    from sharpen.method import guard

    text, source, adapted, refused = result.text if result.is_speech else "", "", "", ""
    trace: Mapping[str, Any] = {}
    if result.adaptation is not None:
        how, steps = result.adaptation, result.adaptation.trace.steps
        source, adapted, refused = how.source.text, how.result.text, how.refused
        if not last and len(steps) > blank.steps:  # an episode that stopped earlier has its final answer from there on
            adapted = model.speech.tokenizer.decode(steps[blank.steps].greedy or ()).strip()
            refused = guard.check(source, adapted)
        text = source if refused and setting.adapt.guard else adapted
        trace = _summary(how.trace, blank.steps)
    elif blank.method == "source":
        source = text
    language = blank.language or result.language
    normalise = normaliser_for(language)
    return replace(
        blank,
        language=language,
        text=text,
        source_text=source,
        adapted_text=adapted,
        refused=refused,
        normaliser=normalise.label,
        errors=word_errors(normalise(blank.reference), normalise(text)),
        trace=trace,
    )


def _summary(trace: Trace, k: int) -> dict[str, Any]:
    """Of the first k steps: what each measured before its update, and the utterance's share of each stage's seconds."""
    steps = trace.steps[:k]
    names = [n for n in ("H_tok", "H_seq") if not steps or not math.isnan(getattr(steps[0], n))]  # frames have no H_seq
    curves = {name: [round(getattr(step, name), 5) for step in steps] for name in names}
    counts = {name: [getattr(step, name) for step in steps] for name in ("nodes", "tokens", "distinct", "truncated")}
    found = dict.fromkeys(stage for step in steps for stage in step.seconds)
    stages = {stage: round(sum(step.seconds.get(stage, 0.0) for step in steps), 4) for stage in found}
    return {**curves, **counts, "stopped": trace.stopped if len(trace.steps) <= k else "", "seconds": stages}
