"""A run: the batches of a plan through the model, the product's own way, and into the store.

A row depends on its batch alone. Batches whose rows are all there are passed over. One that was half written is
computed again as a whole, and its missing rows are added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from sharpen.errors import SharpenError, reason
from sharpen.evaluation.runs.normalisers import normaliser_for
from sharpen.evaluation.runs.plan import LONGEST, Batch, Plan, Run, Setting, too_long
from sharpen.evaluation.runs.rows import Row
from sharpen.evaluation.runs.score import word_errors
from sharpen.evaluation.runs.store import Store
from sharpen.method.objectives import METHODS

if TYPE_CHECKING:
    from sharpen.evaluation.corpora.corpus import Utterance
    from sharpen.method.episode import Trace
    from sharpen.speech.decoding import Decoded, Window
    from sharpen.speech.options import Options
    from sharpen.speech.transcribe import Model

# Computes batches: the run, what is to be done, and the keys that are there already.
Engine = Callable[[Run, Sequence[Batch], Collection[str]], Iterator[list[Row]]]


def evaluate(plan: Plan, store: Store, engine: Engine, on_rows: Callable[[list[Row]], None] | None = None) -> list[Row]:
    """Computes what the store lacks and writes it as it comes; returns the plan's rows, with those that failed."""
    _agree(plan, store)
    missing = plan.missing(store)
    if missing:
        for rows in engine(plan.run, missing, frozenset(store.rows)):
            added = store.add(rows)
            if on_rows is not None:
                on_rows(added)
    return plan.rows(store)


def _agree(plan: Plan, store: Store) -> None:
    """Refuses to take rows as the plan's that were made by other weights, or from other audio or another reference."""
    weights, heard = "", {}
    for batch in plan.batches:
        for u in batch.utterances:
            for blank in batch.blanks(plan.run, u):
                there = store.rows.get(blank.key)
                if there is None:
                    continue
                if there.weights and not weights:
                    weights = _weights(plan.run.model)
                if there.audio and u not in heard:
                    heard[u] = _audio(u)
                now = replace(blank, weights=weights, audio=heard.get(u, ""))
                for name in ("reference", "language", "audio", "weights"):
                    old, new = getattr(there, name), getattr(now, name)
                    if old and new and old != new:
                        raise SharpenError(
                            f"{store.path} has {blank.corpus} {blank.id} by {blank.model} with the {name} {old!r}, and "
                            f"now it is {new!r}: give another folder to --out, or remove its rows"
                        )


def _weights(model: str) -> str:
    """Their fingerprint, or nothing where they are not here: rows that are all there need no model."""
    from sharpen.models.weights.load import fingerprint

    try:
        return fingerprint(model)
    except SharpenError:
        return ""


def _audio(utterance: Utterance) -> str:
    """Its fingerprint, or nothing where it cannot be read any more: what was answered stays answered."""
    try:
        return utterance.fingerprint
    except SharpenError:
        return ""


def local(run: Run, batches: Sequence[Batch], done: Collection[str]) -> Iterator[list[Row]]:
    """The engine of this process: one model, one batch after the other."""
    import torch

    before = torch.get_num_threads()
    try:
        model = load_model(run, {u.language for batch in batches for u in batch.utterances})
        weights = _weights(run.model)
        for batch in batches:
            yield compute(model, run, batch, done, weights)
    finally:
        torch.set_num_threads(before)


def load_model(run: Run, languages: Iterable[str]) -> Model:
    """The run's model, made ready; refuses languages that it does not know before an hour is spent on others."""
    import torch

    from sharpen.speech.options import Options
    from sharpen.speech.transcribe import load

    torch.set_num_threads(run.threads)
    model = load(run.model, device=run.device, dtype=cast(Any, run.dtype))
    for language in sorted(filter(None, languages)):
        model.check(Options(language=language, timestamps=False))
    return model


def compute(model: Model, run: Run, batch: Batch, done: Collection[str] = (), weights: str = "") -> list[Row]:
    """The rows of a batch that are not done. `weights` is the fingerprint of the model's, for the rows to keep.

    What goes wrong is written into a row and stops nothing. Where a batch fails as a whole, each of its utterances is
    tried alone.
    """
    from sharpen.speech.decoding import Window

    rows: list[Row] = []
    heard: list[tuple[Utterance, Window]] = []
    for utterance in batch.utterances:
        try:
            heard.append((utterance, Window(utterance.id, _samples(utterance))))
        except Exception as error:
            rows += _failed(run, batch, utterance, error)
    wanted = [any(row.key not in done for row in batch.blanks(run, utterance)) for utterance, _ in heard]
    if any(wanted):
        try:
            rows += _answers(model, run, batch, heard)
        except Exception as error:
            for pair in (pair for pair, needed in zip(heard, wanted, strict=True) if needed):
                rows += _alone(model, run, batch, pair, error)
    audio = {u.id: _audio(u) for u, _ in heard}
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
        raise SharpenError(f"{len(samples)} samples, not all of them finite numbers; expected audio: remove or mend it")
    return samples


def _failed(run: Run, batch: Batch, utterance: Utterance, error: Exception) -> list[Row]:
    return [replace(row, failed=reason(error)) for row in batch.blanks(run, utterance)]


def _alone(model: Model, run: Run, batch: Batch, pair: tuple[Utterance, Window], error: Exception) -> list[Row]:
    try:
        rows = _answers(model, run, batch, [pair])
    except Exception as own:
        return _failed(run, batch, pair[0], own)
    # Alone it may round differently, and its seconds are its own: whoever looks at the row should know.
    return [replace(row, trace={**row.trace, "alone": f"the batch failed: {error}"}) for row in rows]


def _answers(model: Model, run: Run, batch: Batch, heard: Sequence[tuple[Utterance, Window]]) -> list[Row]:
    from sharpen.speech.decoding import decode

    setting, n = batch.setting, len(heard)
    ended: dict[int, float] = {}  # step -> seconds from the start
    start = time.perf_counter()
    results = decode(
        model.policy,
        [window for _, window in heard],
        _options(setting, run),
        [utterance.language or None for utterance, _ in heard],
        lambda number, _: ended.__setitem__(number, time.perf_counter() - start),
    )
    total = time.perf_counter() - start
    adapted = max(ended.values(), default=0.0)
    rows = []
    for (utterance, _), result in zip(heard, results, strict=True):
        for k in setting.at:
            row = _answer(model, run, batch.blank(run, utterance, k), result, last=k == setting.at[-1], share=n)
            # Had the episode ended after k updates: what came before, and the final decode.
            rows.append(replace(row, seconds=round((ended.get(k, adapted) + total - adapted) / n, 4)))
    return rows


def _options(setting: Setting, run: Run) -> Options:
    """Whisper's own second attempts are off, as in the paper: one answer at temperature 0."""
    from sharpen.speech.options import Options
    from sharpen.speech.presets import PRESETS

    return Options(
        adapt=setting.adaptation(),
        decode=METHODS[setting.method].decode,
        beam_size=max(1, setting.samples),
        padding=PRESETS[run.preset].padding,
        timestamps=False,
        temperature=(0.0,),
        no_speech_threshold=None,
        compression_ratio_threshold=None,
        logprob_threshold=None,
    )


def _answer(model: Model, run: Run, blank: Row, result: Decoded, last: bool, share: int) -> Row:
    """The row with its answer: the episode's own, or what was said after fewer updates."""
    from sharpen.method import guard

    text, source, adapted, refused = result.text, "", "", ""
    trace: Mapping[str, Any] = {}
    if result.adaptation is not None:
        how, steps = result.adaptation, result.adaptation.trace.steps
        source, adapted, refused = how.source.text, how.result.text, how.refused
        if not last and len(steps) > blank.steps:  # an episode that ended earlier says the same from there on
            adapted = model.checkpoint.tokenizer.decode(steps[blank.steps].greedy or ()).strip()
            refused = guard.check(source, adapted)
        text = source if refused and run.guard else adapted
        trace = _summary(how.trace, blank.steps, share)
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


def _summary(trace: Trace, k: int, share: int) -> dict[str, Any]:
    """The first k steps: what each saw before its update, and the utterance's share of the seconds of each stage."""
    steps = trace.steps[:k]
    seconds = steps[0].seconds if steps else {}
    curves = {name: [round(getattr(step, name), 5) for step in steps] for name in ("H_tok", "H_seq")}
    counts = {name: [getattr(step, name) for step in steps] for name in ("nodes", "tokens", "distinct", "truncated")}
    stages = {stage: round(sum(step.seconds[stage] for step in steps) / share, 4) for stage in seconds}
    return {**curves, **counts, "stopped": trace.stopped if len(trace.steps) <= k else "", "seconds": stages}
