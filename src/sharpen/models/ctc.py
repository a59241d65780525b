"""transformers' CTC models (`Wav2Vec2ForCTC`, `HubertForCTC` and similar), adapted to one input at a time.

An episode runs a copy of the model's modules that shares every tensor with them, in eval mode (no dropout, no
SpecAugment). Each call replaces the adapted parameters with the input's own. The model itself is never written. Inputs
run one by one and without padding, because many of these models (those with `feat_extract_norm="group"`) give other
outputs for padded inputs. So an input's result cannot depend on other inputs.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sharpen.errors import SharpenError
from sharpen.method import ctc
from sharpen.method.ctc import CTCAdaptation, Output
from sharpen.method.entropy import entropy
from sharpen.method.gradient import require_gradients
from sharpen.method.optimiser import Moments, adamw
from sharpen.method.policy import generator
from sharpen.method.trace import NOT_FINITE


@dataclass(frozen=True)
class CTCStep:
    """What one step saw of one input, before its update."""

    loss: float
    frame_entropy: float  # mean over all frames, in nats, at the options' temperature
    H_seq: float | None  # mean -log pi(y) of the samples, in nats; None for "frames"
    samples: int
    distinct: int  # different outputs after collapsing
    gradient_norm: float
    seconds: dict[str, float]  # forward, backward


@dataclass(frozen=True)
class CTCEpisode:
    """The result for one input."""

    source: Output  # greedy decode of the source model
    output: Output  # greedy decode with the adapted parameters
    parameters: Mapping[str, Tensor]  # the input's own, by their names in the model; at least float32
    steps: tuple[CTCStep, ...]
    stopped: str  # why it stopped early; empty if it did not
    source_log_p: Tensor = field(repr=False)  # (frames, symbols) of each frame, by the source model
    log_p: Tensor = field(repr=False)  # and with the adapted parameters


def adapt_ctc(
    model: Any,
    inputs: Sequence[Tensor],
    options: CTCAdaptation,
    *,
    ids: Sequence[str] | None = None,
    on_step: Callable[[int, int, CTCStep], None] | None = None,
) -> list[CTCEpisode]:
    """Adapts the model to each input separately, and decodes it greedily.

    An input is what the model takes, without the batch axis: a waveform (samples,) from its feature extractor. `ids`
    seed the inputs' random draws (default: their numbers). `on_step` is called with the number of the input, the number
    of the step and the step.
    """
    require_gradients()
    ids = [str(b) for b in range(len(inputs))] if ids is None else ids
    if len(ids) != len(inputs):
        raise SharpenError(f"{len(inputs)} inputs and {len(ids)} ids: give one for every input")
    blank = _blank(model, inputs)
    names = _adapted_names(model, options)
    return [
        _episode(_SharedCopy(model, names), x, blank, options, i, None if on_step is None else _numbered(on_step, b))
        for b, (x, i) in enumerate(zip(inputs, ids, strict=True))
    ]


class _SharedCopy:
    """The model's modules with its own tensors, except for the parameters that an input adapts."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        tensors = {id(t): t for t in chain(model.parameters(), model.buffers())}
        self.module: Any = copy.deepcopy(model, tensors).eval()
        for module in self.module.modules():
            if type(module) is nn.LayerNorm:
                module.__class__ = _WideNorm  # of the copy; both classes have the same fields
        self.frozen = {name: p.detach() for name, p in model.named_parameters()}  # views: no gradient, same memory
        self.sizes = {name: self.frozen[name].shape for name in names}
        first = self.frozen[names[0]]
        self.dtype, self.device = first.dtype, first.device

    def initial(self) -> Tensor:
        """theta (1, P), at least float32."""
        flat = torch.cat([self.frozen[name].flatten() for name in self.sizes])
        return flat.to(torch.promote_types(flat.dtype, torch.float32))[None]

    def own(self, theta: Tensor) -> dict[str, Tensor]:
        """The parts of theta by name, differentiable in theta."""
        parts = torch.split(theta[0], [math.prod(size) for size in self.sizes.values()])
        return {name: part.view(size) for (name, size), part in zip(self.sizes.items(), parts, strict=True)}

    @torch.no_grad()
    def keep_features(self, x: Tensor) -> None:
        """Computes the convolutions once if none of their parameters adapts: they precede the first adapted norm."""
        base = self.module.base_model
        prefix = f"{self.module.base_model_prefix}.feature_extractor."
        if not hasattr(base, "feature_extractor") or any(name.startswith(prefix) for name in self.sizes):
            return
        base.feature_extractor = _Precomputed(base.feature_extractor(x.to(self.device, self.dtype)[None]))
        self.frozen = {name: p for name, p in self.frozen.items() if not name.startswith(prefix)}

    def logits(self, x: Tensor, own: Mapping[str, Tensor]) -> Tensor:
        """(1, frames, symbols)."""
        x = x.to(self.device, self.dtype)[None]
        return functional_call(self.module, {**self.frozen, **own}, (x,)).logits  # type: ignore[no-any-return]


class _WideNorm(nn.LayerNorm):
    """Normalises in the dtype of its parameters: half precision would round an update away."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype)).to(input.dtype)


class _Precomputed(nn.Module):
    """Replaces the feature extractor and returns its output."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features

    def forward(self, input_values: Tensor) -> Tensor:
        return self.features


def _episode(
    shared: _SharedCopy,
    x: Tensor,
    blank: int,
    options: CTCAdaptation,
    name: str,
    on_step: Callable[[int, CTCStep], None] | None,
) -> CTCEpisode:
    shared.keep_features(x)
    theta = before = shared.initial()
    source, source_log_p = _decode(shared, x, theta, blank)
    moments = Moments.zeros(theta)
    draws = generator(options.seed, name)
    steps: list[CTCStep] = []
    stopped = ""
    for number in range(1, options.steps + 1):
        step, gradient = _step(shared, x, theta, blank, options, draws)
        steps.append(step)
        if on_step is not None:
            on_step(number, step)
        if not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm)):
            theta, stopped = before, NOT_FINITE.format(number)
            break
        before = theta
        theta, moments = adamw(theta, moments, gradient, [number], [options.lr], [options.weight_decay])
    output, log_p = _decode(shared, x, theta, blank)
    return CTCEpisode(source, output, shared.own(theta), tuple(steps), stopped, source_log_p, log_p)


def _step(
    shared: _SharedCopy, x: Tensor, theta: Tensor, blank: int, options: CTCAdaptation, draws: torch.Generator
) -> tuple[CTCStep, Tensor]:
    """One step under theta, and the gradient of its loss: (1, P)."""
    leaf = theta.clone().requires_grad_()
    start = time.perf_counter()
    with torch.enable_grad():
        log_p = ctc.distributions(shared.logits(x, shared.own(leaf)), options.temperature)  # (1, T, V)
        lengths = [log_p.shape[1]]
        cost, samples, distinct = None, 0, 0
        if options.objective == "frames":
            loss = ctc.frame_entropy(log_p, lengths, blank, non_blank=options.non_blank)[0]
        else:
            paths = ctc.sample_paths(log_p, lengths, options.samples, [draws])
            collapsed = ctc.Collapsed.of(paths, blank)
            nll = ctc.negative_log_likelihood(log_p, lengths, collapsed, blank)  # (N,)
            loss = ctc.reinforce(nll, collapsed.drawn[0])
            cost = nll.detach()[collapsed.drawn[0]].mean().item()
            samples, distinct = options.samples, len(collapsed.outputs)
        middle = time.perf_counter()
        (gradient,) = torch.autograd.grad(loss, leaf)
    step = CTCStep(
        loss=loss.item(),
        frame_entropy=entropy(log_p.detach()).mean().item(),
        H_seq=cost,
        samples=samples,
        distinct=distinct,
        gradient_norm=gradient.norm().item(),
        seconds={"forward": middle - start, "backward": time.perf_counter() - middle},
    )
    return step, gradient


@torch.no_grad()
def _decode(shared: _SharedCopy, x: Tensor, theta: Tensor, blank: int) -> tuple[Output, Tensor]:
    logits = shared.logits(x, shared.own(theta))
    return ctc.greedy(logits, [logits.shape[1]], blank)[0], ctc.distributions(logits[0])


def _numbered(on_step: Callable[[int, int, CTCStep], None], b: int) -> Callable[[int, CTCStep], None]:
    return lambda number, step: on_step(b, number, step)


def _blank(model: Any, inputs: Sequence[Tensor]) -> int:
    """The model's blank symbol; raises if the model or an input cannot be used."""
    kind = type(model).__name__
    if not any(c.__name__.endswith("ForCTC") for c in type(model).__mro__):
        raise SharpenError(f"{kind} is not a CTC model; expected a …ForCTC of transformers, such as Wav2Vec2ForCTC")
    blank = model.config.pad_token_id
    if blank is None:
        raise SharpenError(f"this {kind} has no blank symbol in its configuration; set config.pad_token_id to it")
    frames = getattr(model, "_get_feat_extract_output_lengths", None)
    waveform = hasattr(model.base_model, "feature_extractor")
    for b, x in enumerate(inputs):
        if waveform and x.dim() != 1:
            raise SharpenError(f"input {b} has shape {tuple(x.shape)}; expected a waveform (samples,), no batch axis")
        if waveform and frames is not None and int(frames(torch.tensor(len(x)))) < 1:
            raise SharpenError(f"input {b} has {len(x)} samples, too few for one frame of this {kind}; leave it out")
    return int(blank)


def _adapted_names(model: Any, options: CTCAdaptation) -> list[str]:
    """The parameters that adapt: of every LayerNorm and, with "norms+features", of the feature extractor."""
    prefix = f"{model.base_model_prefix}.feature_extractor."
    norms = {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for own, _ in module.named_parameters(recurse=False)
    }
    features = {name for name, _ in model.named_parameters() if name.startswith(prefix)}
    if not norms:
        raise SharpenError(f"this {type(model).__name__} has no LayerNorm to adapt; expected at least one")
    if options.parameters == "norms+features" and not features:
        raise SharpenError(f"this {type(model).__name__} has no feature extractor; use parameters='norms'")
    if options.parameters == "norms+features" and model.dtype.itemsize < 4:
        raise SharpenError(
            f"convolutions in {model.dtype} would round updates away: load the model in float32, or use "
            "parameters='norms'"
        )
    chosen = norms | features if options.parameters == "norms+features" else norms
    return [name for name, _ in model.named_parameters() if name in chosen]
