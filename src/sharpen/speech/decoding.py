"""Windows of up to 30 seconds to tokens: prompts, language, the search, and Whisper's own checks with fallback."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from sharpen.errors import SharpenError
from sharpen.method import guard
from sharpen.method.adaptation import Adaptation
from sharpen.method.episode import StepListener, Trace, adapt
from sharpen.method.policy import default_limit, generator
from sharpen.method.search import beam, greedy, sample
from sharpen.method.tree import HypothesisTree
from sharpen.models.languages import SPELLED
from sharpen.models.padding import EVERY
from sharpen.models.states import Encoded, Prepared
from sharpen.models.timestamps import TimestampRules
from sharpen.models.tokenizer import WhisperTokenizer
from sharpen.models.whisper import WhisperPolicy
from sharpen.speech.features import log_mel
from sharpen.speech.options import WIDTH, Options

SPELLING = 60  # tokens a second that such a language may take
MAX_CONTEXT = 223  # tokens of earlier text that fit before the prompt: half of the decoder's positions, less one


@dataclass(frozen=True, eq=False)
class Window:
    """A stretch of one recording that fits the model."""

    id: str  # names the random draws, so it must be the same in every run
    samples: np.ndarray  # (N,) at most 30 s
    context: tuple[int, ...] = ()  # tokens of the text before it


@dataclass(frozen=True)
class Decoded:
    """What the model made of one window."""

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
    is_speech: bool = True  # false: Whisper's check says that nothing was said, whatever the tokens
    adaptation: Adapted | None = field(default=None, repr=False)  # how it came about, where the model was adapted


@dataclass(frozen=True)
class Adapted:
    """How the model was adapted to one window."""

    source: Decoded  # what the model as it is makes of the window
    result: Decoded  # what the adapted one makes of it
    trace: Trace
    refused: str  # why the guard returned the source's result; empty where the adapted one stands


@torch.inference_mode(False)  # whoever reads a transcript inside of inference mode: adapting needs gradients
@torch.no_grad()
def decode(
    policy: WhisperPolicy,
    windows: Sequence[Window],
    options: Options,
    languages: Sequence[str | None],
    on_step: StepListener | None = None,
) -> list[Decoded]:
    """Decodes a batch of windows, adapting the model to each first where the options say so.

    A language of None is detected. Windows without speech are not adapted to; where the guard refuses an adapted
    result, the source's stands.
    """
    mel = policy.checkpoint.mel
    features = log_mel([w.samples for w in windows], mel)
    start = [policy.checkpoint.tokenizer.sot]
    if options.padding == "full":
        prepared = policy.prepare(features, [start] * len(windows))
    else:
        speech = [-(-len(w.samples) // mel.hop_length) for w in windows]
        prepared = policy.prepare(features, [start] * len(windows), speech, EVERY[options.padding])
    results = _decode_source(policy, prepared, windows, options, languages)
    heard = [b for b, result in enumerate(results) if result.is_speech]
    if options.adapt is None or not heard:
        return results
    part, chosen = prepared.select(heard), [windows[b] for b in heard]
    adapted = _decode_adapted(policy, part, chosen, options, options.adapt, [results[b] for b in heard], on_step)
    for b, result in zip(heard, adapted, strict=True):
        results[b] = result
    return results


def _decode_adapted(
    policy: WhisperPolicy,
    prepared: Prepared,
    windows: Sequence[Window],
    options: Options,
    adaptation: Adaptation,
    sources: Sequence[Decoded],
    on_step: StepListener | None,
) -> list[Decoded]:
    tokenizer = policy.checkpoint.tokenizer
    plain = replace(options, timestamps=False)  # timestamps appear in the final decode only
    pairs = list(zip(windows, sources, strict=True))
    episode = adapt(
        policy,
        prepared.prompted([prompt(tokenizer, s.language, plain, w.context) for w, s in pairs]),
        adaptation,
        ids=[w.id for w in windows],
        limits=_limits(policy, windows, [s.language for s in sources], options),
        text=lambda tokens: " ".join(tokenizer.decode(tokens).lower().split()),
        on_step=on_step,
    )
    prompts = [prompt(tokenizer, s.language, options, w.context) for w, s in pairs]
    view = policy.adapted(episode.norms)
    encoded = view.encode(prepared.prompted(prompts))
    final = replace(options, decode="beam") if adaptation.row.decode == "beam" else options
    trees = _search(view, encoded, windows, [s.language for s in sources], final, 0.0)
    results = []
    for source, tree, trace in zip(sources, trees, episode.traces, strict=True):
        result = _result(tokenizer, tree, source.language, 0.0, source.no_speech_prob, options)
        refused = guard.check(source.text, result.text) if adaptation.guard else ""
        if not math.isfinite(result.avg_logprob):  # there is no answer, guard or not
            refused = "the adapted model has no numbers any more; a lower learning rate may keep them"
        how = Adapted(source, result, _lightened(trace, adaptation.explain), refused)
        results.append(replace(source if refused else result, is_speech=True, adaptation=how))
    return results


def _decode_source(
    policy: WhisperPolicy,
    prepared: Prepared,
    windows: Sequence[Window],
    options: Options,
    languages: Sequence[str | None],
) -> list[Decoded]:
    tokenizer = policy.checkpoint.tokenizer
    encoded = policy.encode(prepared)
    known = [language or "en" for language in languages]
    unknown = [b for b, language in enumerate(languages) if language is None]
    if unknown and tokenizer.multilingual:
        found = detect_language(policy, encoded.select(unknown))
        for b, probabilities in zip(unknown, found, strict=True):
            known[b] = max(probabilities, key=probabilities.__getitem__)
    encoded = encoded.prompted(
        [prompt(tokenizer, language, options, w.context) for w, language in zip(windows, known, strict=True)]
    )
    no_speech = _no_speech(policy, encoded)
    results: dict[int, Decoded] = {}
    todo = list(range(len(windows)))
    for temperature in options.temperature:
        part = encoded if len(todo) == len(windows) else encoded.select(todo)
        trees = _search(policy, part, [windows[b] for b in todo], [known[b] for b in todo], options, temperature)
        for b, tree in zip(todo, trees, strict=True):
            result = _result(tokenizer, tree, known[b], temperature, no_speech[b], options)
            if not math.isfinite(result.avg_logprob):
                raise SharpenError(
                    f"{windows[b].id}: the model answers with what is no number: its weights are damaged, or overflow "
                    "in this dtype; take float32, or another copy"
                )
            # A text that repeats itself is doubtful, not silence: a guess at a high temperature must not take it away.
            if result.is_speech or b not in results:
                results[b] = result
        todo = [b for b in todo if _doubtful(results[b], options)]
        if not todo:
            break
    return [results[b] for b in range(len(windows))]


def detect_language(policy: WhisperPolicy, encoded: Encoded) -> list[dict[str, float]]:
    """For each utterance the probability of each language, given the start token alone."""
    tokenizer = policy.checkpoint.tokenizer
    start = policy.begin(encoded.prompted([[tokenizer.sot]] * len(encoded.prompts)))
    codes, ids = list(tokenizer.languages), list(tokenizer.languages.values())
    probabilities = policy.logits(start.hidden[:, 0])[:, ids].softmax(-1)  # (B, languages)
    return [dict(zip(codes, row, strict=True)) for row in probabilities.tolist()]


def prompt(tokenizer: WhisperTokenizer, language: str, options: Options, context: Sequence[int] = ()) -> list[int]:
    """What the decoder reads before its first token."""
    tokens = [tokenizer.sot_prev, *context[-MAX_CONTEXT:]] if context else []
    tokens.append(tokenizer.sot)
    if tokenizer.multilingual:
        if language not in tokenizer.languages:
            raise SharpenError(f"this checkpoint does not know the language {language!r}: take a newer one")
        tokens += [tokenizer.languages[language], getattr(tokenizer, options.task)]
    elif language != "en" or options.task != "transcribe":
        raise SharpenError(
            f"an English-only model cannot {options.task} {language!r}: take the multilingual one (without .en)"
        )
    return tokens if options.timestamps else [*tokens, tokenizer.no_timestamps]


def _limits(policy: WhisperPolicy, windows: Sequence[Window], languages: Sequence[str], options: Options) -> list[int]:
    """How many tokens each window's text may have, by how long it sounds and how it is written."""
    limits = []
    for window, language in zip(windows, languages, strict=True):
        seconds = len(window.samples) / policy.checkpoint.mel.sampling_rate
        spelled = language in SPELLED and options.task == "transcribe"  # translations are English
        limits.append(default_limit(seconds, SPELLING) if spelled else default_limit(seconds))
    return limits


def _lightened(trace: Trace, explain: bool) -> Trace:
    """Without the hypotheses that nobody will look at: they would pile up over the windows of a long recording."""
    shown = {0, len(trace.steps) - 1} if explain else set()
    steps = [step if i in shown else replace(step, tree=None) for i, step in enumerate(trace.steps)]
    return replace(trace, steps=steps)


def _search(
    policy: WhisperPolicy,
    encoded: Encoded,
    windows: Sequence[Window],
    languages: Sequence[str],
    options: Options,
    temperature: float,
) -> list[HypothesisTree]:
    rules = TimestampRules.of(policy.checkpoint.tokenizer) if options.timestamps else None
    view = policy.timestamped() if options.timestamps else policy
    limits = _limits(policy, windows, languages, options)
    if temperature > 0:
        draws = [generator(options.seed, f"{w.id} at {temperature}") for w in windows]
        return sample(
            view, encoded, limits, options.best_of, draws, temperature=temperature, rules=rules, entropies=True
        )
    if options.decode == "beam":
        return beam(view, encoded, limits, options.beam_size or WIDTH, rules=rules, entropies=True)
    return greedy(view, encoded, limits, rules=rules, entropies=True)


def _result(
    tokenizer: WhisperTokenizer,
    tree: HypothesisTree,
    language: str,
    temperature: float,
    no_speech: float,
    options: Options,
) -> Decoded:
    best = max(tree.hypotheses, key=lambda y: y.logprob / len(y))
    n = len(best.content)
    text = tokenizer.decode(best.content).strip()
    avg_logprob = best.logprob / len(best)
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
    )


def _no_speech(policy: WhisperPolicy, encoded: Encoded) -> list[float]:
    """The probability of <|nospeech|> right after the start token, whatever text stands before it."""
    tokenizer = policy.checkpoint.tokenizer
    upto = [p[: p.index(tokenizer.sot) + 1] for p in encoded.prompts]
    start = policy.begin(encoded.prompted(upto))
    probabilities: list[float] = policy.logits(start.hidden[:, 0]).softmax(-1)[:, tokenizer.no_speech].tolist()
    return probabilities


def _silent(no_speech: float, avg_logprob: float, options: Options) -> bool:
    if options.no_speech_threshold is None or no_speech <= options.no_speech_threshold:
        return False
    return options.logprob_threshold is None or avg_logprob < options.logprob_threshold


def _doubtful(result: Decoded, options: Options) -> bool:
    """Whether Whisper's checks ask for another attempt at a higher temperature."""
    if not result.is_speech:
        return False
    limit, floor = options.compression_ratio_threshold, options.logprob_threshold
    repeats = limit is not None and result.compression_ratio > limit
    return repeats or (floor is not None and result.avg_logprob < floor)
