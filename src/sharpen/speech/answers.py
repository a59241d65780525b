"""From the hypotheses that a search found to the transcript of a window: which of them, whether it is speech, whether
the adapted model's is to be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sharpen.method import guard
from sharpen.method.adaptation import Adaptation
from sharpen.method.consensus import least_risk, posterior
from sharpen.method.trace import Trace
from sharpen.method.tree import Hypothesis, HypothesisTree
from sharpen.models.speech import SpeechModel
from sharpen.speech.options import Options


@dataclass(frozen=True)
class Decoded:
    """The transcript of one window."""

    tokens: tuple[int, ...]  # without EOS, timestamps included where they were decoded
    logprobs: tuple[float, ...]  # of each token, under the distribution it was chosen from
    entropies: tuple[float, ...]  # of that distribution, in nats
    text: str
    language: str
    temperature: float
    avg_logprob: float  # over tokens and EOS
    no_speech_prob: float
    compression_ratio: float
    finished: bool = True  # false: the length limit cut it
    is_speech: bool = True  # false: Whisper's check says that the window is silent, whatever the tokens
    spans: tuple[tuple[float, float], ...] = ()  # start and end of each token, in seconds; empty unless asked for
    beams: tuple[Hypothesis, ...] = field(default=(), repr=False)  # all that its own model's search found
    adaptation: Adapted | None = field(default=None, repr=False)  # where the model was adapted


@dataclass(frozen=True)
class Adapted:
    """How the model was adapted to one window."""

    source: Decoded  # by the source model
    result: Decoded  # by the adapted model
    trace: Trace
    refused: str  # why the guard returned the source's transcript; empty where the adapted one stands
    tree: HypothesisTree | None = field(default=None, repr=False)  # what the adapted model's search found


def answer(
    speech: SpeechModel,
    tree: HypothesisTree,
    language: str,
    temperature: float,
    no_speech: float,
    options: Options,
    other: HypothesisTree | None = None,
    way: Sequence[HypothesisTree] = (),
) -> Decoded:
    """The best hypothesis of a search; with mbr of another one, too, in view of all that was found on the `way`.

    Every search counts alike. A hypothesis that the length limit cut is no whole text: with mbr it counts only where
    there is no other.
    """
    beams = tuple(tree.hypotheses)
    tree, best = _best(speech, [tree, other], way, options, temperature)
    n = len(best.content)
    text = speech.tokenizer.decode(best.content).strip()
    counted = list(best.logprobs)
    if temperature == 0 and options.decode != "greedy":  # there one timestamp stands for all, and says nothing
        stamped = (speech.tokenizer.time(token) is not None for token in best.tokens)
        counted = [value for value, stamp in zip(best.logprobs, stamped, strict=True) if not stamp] or counted
    avg_logprob = math.fsum(counted) / len(counted)
    return Decoded(
        tokens=best.content,
        logprobs=best.logprobs[:n],
        entropies=tuple(tree.entropies[node] for node in best.nodes[:n]),
        text=text,
        language=language,
        temperature=temperature,
        avg_logprob=avg_logprob,
        no_speech_prob=no_speech,
        compression_ratio=guard.compression_ratio(text),
        finished=best.finished,
        is_speech=not _silent(no_speech, avg_logprob, options),
        beams=beams,
    )


def _best(
    speech: SpeechModel,
    trees: Sequence[HypothesisTree | None],
    way: Sequence[HypothesisTree],
    options: Options,
    temperature: float,
) -> tuple[HypothesisTree, Hypothesis]:
    """The answer among the hypotheses, and the tree it is in; only mbr looks beyond the first tree."""
    known = _finite(trees)
    if options.decode == "mbr" and temperature == 0 and known and known[0] is trees[0]:
        whole = any(y.finished for tree in known for y in tree.hypotheses)
        searches = [*known, *_finite(way)]
        groups = [[(tree, y) for y in tree.hypotheses if y.finished or not whole] for tree in searches]
        weights = [w for group in groups for w in posterior([y.logprob for _, y in group])]
        found = [one for group in groups for one in group]
        texts = [speech.tokenizer.decode(y.content) for _, y in found]
        return found[least_risk(texts, weights, sum(map(len, groups[: len(known)])))]
    assert trees[0] is not None
    return trees[0], max(trees[0].hypotheses, key=lambda y: y.logprob / len(y) ** options.length_penalty)


def _finite(trees: Sequence[HypothesisTree | None]) -> list[HypothesisTree]:
    return [tree for tree in trees if tree is not None and all(math.isfinite(y.logprob) for y in tree.hypotheses)]


def _silent(no_speech: float, avg_logprob: float, options: Options) -> bool:
    if options.no_speech_threshold is None or no_speech <= options.no_speech_threshold:
        return False
    return options.logprob_threshold is None or avg_logprob < options.logprob_threshold


def wants_fallback(result: Decoded, options: Options) -> bool:
    """Whether Whisper's checks ask for another attempt at a higher temperature."""
    if not result.is_speech:
        return False
    limit, floor = options.compression_ratio_threshold, options.logprob_threshold
    repeats = limit is not None and result.compression_ratio > limit
    return repeats or (floor is not None and result.avg_logprob < floor)


def adapted_answer(
    speech: SpeechModel,
    before: Decoded,
    old: HypothesisTree | None,
    tree: HypothesisTree | None,
    trace: Trace,
    options: Options,
) -> Decoded:
    """The answer for one window: the source model found `old`, the adapted one `tree`, or nothing was adapted."""
    assert options.adapt is not None
    if tree is None:
        return replace(before, is_speech=True, adaptation=Adapted(before, before, trace, ""))
    way = _searched(trace, options.adapt)
    result = answer(speech, tree, before.language, 0.0, before.no_speech_prob, options, old, way)
    refused = guard.check(before.text, result.text) if options.adapt.guard else ""
    if not math.isfinite(result.avg_logprob):  # there is no transcript, guard or not
        refused = "the adapted model produced NaN; lower --lr"
    how = Adapted(before, result, _without_trees(trace, options.adapt.explain), refused, tree)
    return replace(before if refused else result, is_speech=True, adaptation=how)


def _searched(trace: Trace, adapt: Adaptation) -> list[HypothesisTree]:
    """The beams that were searched between the source's, at the first step, and the last."""
    if adapt.row.search != "beam":
        return []
    later = [step.tree for k, step in enumerate(trace.steps) if k > 0 and k % adapt.search_every == 0]
    return [tree for tree in later if tree is not None]


def _without_trees(trace: Trace, explain: bool) -> Trace:
    """Drops trees that nobody will look at: they would pile up over the windows of a long recording."""
    shown = {0, len(trace.steps) - 1} if explain else set()
    steps = [step if i in shown else replace(step, tree=None) for i, step in enumerate(trace.steps)]
    return replace(trace, steps=steps)


def text_tree(speech: SpeechModel, tree: HypothesisTree, most: int) -> HypothesisTree:
    """The best hypotheses without timestamps, each text once, with what the search saw at their text tokens."""
    text_only, seen = HypothesisTree(), set[tuple[int, ...]]()
    for y in tree.hypotheses:
        seen_at = zip(y.tokens, y.nodes, y.logprobs, strict=True)
        kept = [(t, n, logprob) for t, n, logprob in seen_at if speech.tokenizer.time(t) is None]
        tokens = tuple(token for token, *_ in kept)
        if not kept or tokens in seen or len(seen) == most:
            continue
        seen.add(tokens)
        node = 0
        for i, (token, old, logprob) in enumerate(kept):
            text_only.entropies[node] = tree.entropies[old]
            if i == len(kept) - 1:
                text_only.hypotheses.append(text_only.close(node, token, logprob, finished=y.finished))
            else:
                node = text_only.child(node, token, logprob)
    return text_only
