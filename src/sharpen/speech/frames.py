"""Windows to text by a model whose frames are independent (CTC): its greedy text, before and after adapting.

There is no search: what the options say about beams, temperatures and Whisper's checks has no meaning here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sharpen.errors import SharpenError
from sharpen.method import guard
from sharpen.method.adaptation import Adaptation
from sharpen.method.ctc import CTCAdaptation, CTCObjective
from sharpen.method.objectives import CTC_METHODS
from sharpen.method.trace import Step, Trace
from sharpen.models.speech import FrameModel, FrameStep, FrameText, SpeechModel
from sharpen.options import declared
from sharpen.speech.answers import Adapted, Decoded
from sharpen.speech.options import Options

if TYPE_CHECKING:
    from sharpen.speech.decoding import Window

OBJECTIVES: dict[str, CTCObjective] = {"ctc-frame": "frames", "ctc-collapse": "collapse"}
USED = ("method", "steps", "samples", "lr", "weight_decay", "guard", "seed", "greedy_at")  # of an `Adaptation`
BROKEN = "the adapted model's output is NaN; lower --lr"


def check_method(speech: SpeechModel, method: str) -> None:
    """Raises for a method of the other kind of model."""
    if isinstance(speech, FrameModel):
        speech.check_method(method)
    elif method in CTC_METHODS:
        raise SharpenError(
            f"the method {method} is for CTC models, and {speech.name} writes token by token; use em-tok-b, or the "
            "checkpoint of a CTC model"
        )


def check_frames(speech: SpeechModel, options: Options) -> None:
    """Raises for a method of the other kind of model, and for what a CTC model cannot do."""
    check_method(speech, "source" if options.adapt is None else str(options.adapt.method))
    if not isinstance(speech, FrameModel):
        return
    if options.adapt is not None:
        own = {name: getattr(Adaptation(), name) for name in declared(Adaptation) if name not in USED}
        other = [name for name, usual in own.items() if getattr(options.adapt, name) != usual]
        if other:
            raise SharpenError(f"{', '.join(other)} cannot be set for a CTC model: expected {', '.join(USED[1:-1])}")
    asked = {
        "confidence": options.confidence,
        "n_best": options.n_best > 1,
        "budget": options.budget is not None,
        "deadline": options.deadline is not None,
    }
    unknown = [name for name, given in asked.items() if given]
    if unknown:
        raise SharpenError(f"{', '.join(unknown)}: not with {speech.name}, a CTC model; leave it out, or use Whisper")


def decode_frames(
    speech: SpeechModel, windows: Sequence[Window], options: Options, languages: Sequence[str | None]
) -> list[Decoded]:
    """The transcript of each window; where the guard refuses an adapted one, the source's."""
    assert isinstance(speech, FrameModel)
    check_frames(speech, options)
    adapt = options.adapt
    how = None if adapt is None else _adaptation(adapt)
    found = speech.listen([window.samples for window in windows], [window.id for window in windows], how)
    results = []
    for one, language in zip(found, languages, strict=True):
        source = _decoded(speech, one.source, language)
        if not math.isfinite(source.avg_logprob):
            raise SharpenError("the model's output is NaN: its weights are damaged, or overflow in this dtype")
        if adapt is None or one.adapted is None:
            results.append(source)
            continue
        result = _decoded(speech, one.adapted, language)
        refused = guard.check(source.text, result.text) if adapt.guard else ""
        refused = refused if math.isfinite(result.avg_logprob) else BROKEN
        trace = Trace([_step(step) for step in one.steps], one.stopped)
        adapted = Adapted(source, result, trace, refused)
        kept = source if refused else result
        results.append(replace(kept, adaptation=adapted))
    return results


def _adaptation(adapt: Adaptation) -> CTCAdaptation:
    return CTCAdaptation(
        objective=OBJECTIVES[str(adapt.method)],
        steps=adapt.steps,
        samples=adapt.samples,
        lr=adapt.lr,
        weight_decay=adapt.weight_decay,
        seed=adapt.seed,
    )


def _decoded(speech: SpeechModel, found: FrameText, language: str | None) -> Decoded:
    text = " ".join(speech.tokenizer.decode(found.tokens).split())
    return Decoded(
        tokens=found.tokens,
        logprobs=found.logprobs,
        entropies=found.entropies,
        text=text,
        language=language or "en",
        temperature=0.0,
        avg_logprob=found.avg_logprob,
        no_speech_prob=0.0,
        compression_ratio=guard.compression_ratio(text),
    )


def _step(step: FrameStep) -> Step:
    """As other models record theirs; the entropy of a token is that of a frame here, and there is no tree."""
    return Step(
        loss=step.loss,
        H_tok=step.frame_entropy,
        H_seq=math.nan if step.H_seq is None else step.H_seq,
        hypotheses=step.samples,
        distinct=step.distinct,
        distinct_texts=step.distinct,
        nodes=0,
        tokens=0,
        truncated=0,
        best_probability=math.nan,
        gradient_norm=step.gradient_norm,
        seconds=step.seconds,
        batch_seconds=step.seconds,
        tree=None,
    )
