"""Windows of audio to text, in three calls: decode with the source model, adapt to each window, decode again.

`decode` makes all three. A server that lets windows join and leave an episode makes them one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sharpen.errors import SharpenError
from sharpen.method.adapt import Outcome, StepCallback, adapt
from sharpen.method.norms import adapting
from sharpen.method.policy import Policy, generator
from sharpen.method.search import beam, greedy, sample
from sharpen.method.trace import Text
from sharpen.method.tree import HypothesisTree
from sharpen.models.speech import FrameModel, SpeechModel
from sharpen.speech.allowance import Pool
from sharpen.speech.answers import Decoded, adapted_answer, answer, text_tree, wants_fallback
from sharpen.speech.frames import decode_frames
from sharpen.speech.options import Options
from sharpen.speech.words import token_spans


@dataclass(frozen=True, eq=False)
class Window:
    """A stretch of one recording that fits the model."""

    id: str  # names the random draws, so it must be the same in every run
    samples: np.ndarray  # (N,)
    context: tuple[int, ...] = ()  # tokens of the text before it
    start: int = 0  # the sample of the recording that it begins with


def initial_context(speech: SpeechModel, options: Options) -> tuple[int, ...]:
    """The tokens of the initial prompt, as they precede the first window."""
    text = options.initial_prompt.strip()
    return tuple(speech.tokenizer.encode(f" {text}")) if text else ()


@dataclass(frozen=True, eq=False)
class SourcePass:
    """Windows with their prepared audio and the source model's transcripts."""

    windows: tuple[Window, ...]
    prepared: Any  # the model's own kind of `Prepared`, without prompts
    results: tuple[Decoded, ...]
    trees: tuple[HypothesisTree | None, ...]  # what a beam search found; None where it was another search

    @torch.inference_mode(False)
    def select(self, rows: Sequence[int]) -> SourcePass:
        windows, results = tuple(self.windows[b] for b in rows), tuple(self.results[b] for b in rows)
        return SourcePass(windows, self.prepared.select(rows), results, tuple(self.trees[b] for b in rows))

    @classmethod
    @torch.inference_mode(False)
    def join(cls, passes: Sequence[SourcePass]) -> SourcePass:
        """The windows of several passes that prepared their audio for the same norms."""
        prepared = type(passes[0].prepared).join([one.prepared for one in passes])
        windows, results = (tuple(x for one in passes for x in getattr(one, name)) for name in ("windows", "results"))
        return cls(windows, prepared, results, tuple(tree for one in passes for tree in one.trees))

    @property
    def languages(self) -> list[str]:
        return [result.language for result in self.results]

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        return [window.context for window in self.windows]


@torch.inference_mode(False)  # a caller may be inside of it, and adaptation needs tensors that can have gradients
def decode(
    speech: SpeechModel,
    windows: Sequence[Window],
    options: Options,
    languages: Sequence[str | None],
    on_step: StepCallback | None = None,
    pool: Pool | None = None,
) -> list[Decoded]:
    """Transcribes a batch of windows, adapting the model to each first where the options say so.

    A language of None is detected. Silent windows are not adapted to. Where the guard refuses an adapted transcript,
    the source's is returned. `pool` limits the time that adapting may take.
    """
    if isinstance(speech, FrameModel):
        return decode_frames(speech, windows, options, languages)
    start = time.monotonic()
    source = decode_source(speech, windows, options, languages)
    plain = time.monotonic() - start
    if pool is not None:
        pool.earn([len(window.samples) / speech.sampling_rate for window in windows], plain)
    results = list(source.results)
    speaking = [b for b, result in enumerate(results) if result.is_speech]
    if options.adapt is not None and speaking:
        some = source.select(speaking)
        left = None if pool is None else pool.left
        until = math.inf if left is None else start + left - plain  # the last decode takes as long as the first
        outcome = adapt_windows(speech, some, options, on_step, until)
        for b, result in zip(speaking, decode_adapted(speech, some, outcome, options), strict=True):
            results[b] = result
    if pool is not None:
        pool.spend(time.monotonic() - start)
    return results


@torch.inference_mode(False)
@torch.no_grad()
def decode_source(
    speech: SpeechModel, windows: Sequence[Window], options: Options, languages: Sequence[str | None]
) -> SourcePass:
    """Language, silence and transcript of each window, by the source model, with Whisper's fallback temperatures."""
    prepared: Any = speech.prepare([window.samples for window in windows], options.padding)
    if options.adapt is not None:
        prepared = speech.policy.ahead(prepared, [n.name for n in adapting(speech.policy.norms(), options.adapt)])
    contexts = [window.context for window in windows]
    encoded = speech.policy.encode(prepared)
    start = speech.start(encoded, languages, contexts, options.task, options.timestamps)
    results: dict[int, Decoded] = {}
    found: dict[int, HypothesisTree | None] = {}
    todo = list(range(len(windows)))
    state = start.state
    pooling = options.adapt is not None and options.decode == "mbr"  # it is for the beams of both models together
    own = replace(options, decode="beam") if pooling else options
    for temperature in options.temperature:
        everything = len(todo) == len(windows)
        part = start.encoded if everything else start.encoded.select(todo)
        some, spoken = [windows[b] for b in todo], [start.languages[b] for b in todo]
        trees = _search(speech, speech.policy, part, some, spoken, options, temperature, state)
        state = None  # used up
        for b, tree in zip(todo, trees, strict=True):
            result = answer(speech, tree, start.languages[b], temperature, start.no_speech[b], own)
            if not math.isfinite(result.avg_logprob):
                raise SharpenError(
                    f"{windows[b].id}: the model's output is NaN: its weights are damaged, or overflow in this dtype; "
                    "use float32, or another copy of the weights"
                )
            # Text that repeats itself is doubtful, not silence: a silent result at a high temperature must not hide it.
            if result.is_speech or b not in results:
                results[b] = result
                found[b] = tree if temperature == 0 and options.decode != "greedy" else None
        todo = [b for b in todo if wants_fallback(results[b], options)]
        if not todo:
            break
    every = range(len(windows))
    texts = [results[b] for b in every]
    if options.word_timestamps:
        texts = _timed(speech, speech.policy, encoded, windows, texts, options)
    return SourcePass(tuple(windows), prepared, tuple(texts), tuple(found[b] for b in every))


@torch.inference_mode(False)
def adapt_windows(
    speech: SpeechModel,
    source: SourcePass,
    options: Options,
    on_step: StepCallback | None = None,
    until: float = math.inf,
) -> Outcome:
    """Adapts the model to each window, not longer than `until` (`Episode.join`)."""
    assert options.adapt is not None
    prepared, ids, limits = episode_inputs(speech, source, options)
    trees, search_anew = first_hypotheses(speech, source, options)
    return adapt(
        speech.policy,
        prepared,
        options.adapt,
        ids=ids,
        limits=limits,
        trees=trees,
        search_anew=search_anew,
        until=until,
        text=normal_text(speech),
        on_step=on_step,
    )


def normal_text(speech: SpeechModel) -> Text:
    """How an episode compares texts: in lower case, whatever the spaces."""
    return lambda tokens: " ".join(speech.tokenizer.decode(tokens).lower().split())


def episode_inputs(speech: SpeechModel, source: SourcePass, options: Options) -> tuple[Any, list[str], list[int]]:
    """What an `Episode` takes of these windows: prepared audio with prompts, ids, length limits.

    Adaptation runs without timestamps: they appear in the final decode only.
    """
    prepared = speech.prompted(source.prepared, source.languages, source.contexts, options.task, timestamps=False)
    return prepared, [w.id for w in source.windows], _limits(speech, source.windows, source.languages, options)


def first_hypotheses(
    speech: SpeechModel, source: SourcePass, options: Options
) -> tuple[list[HypothesisTree | None], bool]:
    """The best of the source's beams, and whether the first step has to search anew.

    It has not where a search of its own would find about the same. The gate judges by them either way, so that a
    confident window costs no more than a beam search.
    """
    assert options.adapt is not None
    same = options.adapt.row.search == "beam" and options.beam_size >= options.adapt.samples
    most = options.adapt.samples if same else options.beam_size
    found = [None if tree is None else text_tree(speech, tree, most) for tree in source.trees]
    # One text has no other to be compared with: it is searched anew, without timestamps.
    return [tree if tree is not None and len(tree.hypotheses) > 1 else None for tree in found], not same


@torch.inference_mode(False)
@torch.no_grad()
def decode_adapted(speech: SpeechModel, source: SourcePass, outcome: Outcome, options: Options) -> list[Decoded]:
    """The transcript of each window by the model adapted to it, or the source's where the guard refuses it.

    A window that was left alone keeps the source's, which is not searched again.
    """
    changed = [b for b, trace in enumerate(outcome.traces) if trace.steps]
    answers = _adapted_answers(speech, source.select(changed), outcome.select(changed), options)
    found = dict(zip(changed, answers, strict=True))
    return [
        found[b] if b in found else adapted_answer(speech, before, None, None, trace, options)
        for b, (before, trace) in enumerate(zip(source.results, outcome.traces, strict=True))
    ]


def _adapted_answers(speech: SpeechModel, source: SourcePass, outcome: Outcome, options: Options) -> list[Decoded]:
    """Those for windows that were not left alone."""
    if not source.windows:
        return []
    prepared: Any = speech.prompted(
        source.prepared, source.languages, source.contexts, options.task, options.timestamps
    )
    view = speech.policy.adapted(outcome.norms)
    encoded = view.encode(prepared)
    final = replace(options, decode=options.final_decode)
    trees = _search(speech, view, encoded, source.windows, source.languages, final, 0.0)
    rows = zip(source.results, source.trees, trees, outcome.traces, strict=True)
    results = [adapted_answer(speech, before, old, tree, trace, options) for before, old, tree, trace in rows]
    if not options.word_timestamps:
        return results
    timed = _timed(speech, view, encoded, source.windows, results, options)
    refused = [result.adaptation is not None and bool(result.adaptation.refused) for result in results]
    # The source's text has its times already.
    return [old if kept else new for old, new, kept in zip(results, timed, refused, strict=True)]


def _timed(
    speech: SpeechModel,
    policy: Policy[Any, Any, Any],
    encoded: Any,
    windows: Sequence[Window],
    results: Sequence[Decoded],
    options: Options,
) -> list[Decoded]:
    """The transcripts with the time of each token: where the policy listens while it writes it."""
    texts = [[token for token in result.tokens if speech.tokenizer.is_text(token)] for result in results]
    seconds = [len(window.samples) / speech.sampling_rate for window in windows]
    languages = [result.language for result in results]
    found = speech.attention(policy, encoded, texts, languages, options.task, seconds)
    return [
        replace(result, spans=token_spans(speech.tokenizer, result.tokens, attention))
        for result, attention in zip(results, found, strict=True)
    ]


def _limits(speech: SpeechModel, windows: Sequence[Window], languages: Sequence[str], options: Options) -> list[int]:
    seconds = [len(window.samples) / speech.sampling_rate for window in windows]
    return [speech.length_limit(s, spoken, options.task) for s, spoken in zip(seconds, languages, strict=True)]


def _search(
    speech: SpeechModel,
    policy: Policy[Any, Any, Any],
    encoded: Any,
    windows: Sequence[Window],
    languages: Sequence[str],
    options: Options,
    temperature: float,
    state: Any = None,
) -> list[HypothesisTree]:
    beams = temperature == 0 and options.decode != "greedy"
    view, rules = speech.grammar(policy, options.timestamps, beams)
    limits = _limits(speech, windows, languages, options)
    how: dict[str, Any] = {"state": state, "rules": rules, "entropies": True}
    if temperature > 0:
        draws = [generator(options.seed, f"{w.id} at {temperature}") for w in windows]
        return sample(view, encoded, limits, options.best_of, draws, temperature=temperature, **how)
    if beams:
        return beam(view, encoded, limits, options.beam_size, length_penalty=options.length_penalty, **how)
    return greedy(view, encoded, limits, **how)
