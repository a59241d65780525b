"""The straightforward episode: a careful implementation with transformers alone, which ours is compared to.

Each step encodes the audio once, finds G hypotheses with `GenerationMixin.generate` (key/value cache, encoder outputs
handed over), scores them as G padded rows of one teacher-forced pass over expanded encoder states with full logits,
and lets autograd and AdamW move every LayerNorm. No audio is encoded twice for a token, and no model is loaded twice.
It is never used to transcribe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sharpen.benchmarks.stock import import_transformers, stock_model
from sharpen.errors import SharpenError
from sharpen.models.weights.checkpoint import Checkpoint

SEARCHES = {"greedy-em": "greedy", "em-tok": "sample", "em-tok-b": "beam"}


@dataclass
class ReferenceStep:
    """What one step did, and how long its stages took."""

    loss: float
    hypotheses: list[list[int]]  # token by token, EOS included where it was reached
    gradient: Tensor  # (parameters,) of all norms, in the order of the model
    seconds: dict[str, float] = field(default_factory=dict)


class Reference:
    """transformers' Whisper, whose LayerNorms are trained on one utterance and then reset."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.transformers: Any = import_transformers()
        self.model: Any = stock_model(checkpoint)
        self.eos = checkpoint.tokenizer.eot
        norms = [m for m in self.model.model.modules() if isinstance(m, nn.LayerNorm)]
        self.parameters: list[nn.Parameter] = [p for norm in norms for p in (norm.weight, norm.bias)]
        for parameter in self.parameters:
            parameter.requires_grad_()
        V = self.model.config.vocab_size
        self.forbidden = torch.zeros(2, V, dtype=torch.bool)  # row 0: later steps, row 1: the first one
        self.forbidden[:, list(checkpoint.suppress)] = True
        self.forbidden[:, self.eos + 1 :] = True  # specials and timestamps
        self.forbidden[1, list(checkpoint.suppress_first)] = True

    def episode(
        self, features: Tensor, prompt: Sequence[int], method: str, samples: int, steps: int, limit: int, seed: int
    ) -> list[ReferenceStep]:
        """Adapts to one utterance, (1, mels, frames), decodes it greedily, and resets the model."""
        source = [parameter.detach().clone() for parameter in self.parameters]
        optimiser = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.0)
        torch.manual_seed(seed)
        trail = []
        try:
            for _ in range(steps):
                step = self.step(features, prompt, method, samples, limit)
                start = time.perf_counter()
                optimiser.step()
                step.seconds["optimiser"] = time.perf_counter() - start
                trail.append(step)
            start = time.perf_counter()
            with torch.no_grad():
                states = self.model.model.encoder(features).last_hidden_state
                self._generate(states, prompt, "greedy", 1, limit)
            trail[-1].seconds["decode"] = time.perf_counter() - start
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, source, strict=True):
                    parameter.copy_(value)
                    parameter.grad = None
        return trail

    def step(
        self,
        features: Tensor,
        prompt: Sequence[int],
        method: str,
        samples: int,
        limit: int,
        hypotheses: list[list[int]] | None = None,
        softmax: torch.dtype = torch.float32,
    ) -> ReferenceStep:
        """Loss and gradient of one step; given hypotheses are scored instead of searched.

        Over a large vocabulary a float32 softmax sums to 1 only to about 1e-5, and its gradient is no
        more exact; `softmax` sets a wider type, for comparing.
        """
        if method not in SEARCHES:
            raise SharpenError(f"the reference knows {', '.join(SEARCHES)}, not {method!r}")
        seconds = {}
        start = time.perf_counter()
        states = self.model.model.encoder(features).last_hidden_state  # (1, S, d)
        seconds["encode"] = time.perf_counter() - start
        if hypotheses is None:
            start = time.perf_counter()
            with torch.no_grad():
                hypotheses = self._generate(states.detach(), prompt, SEARCHES[method], samples, limit)
            seconds["search"] = time.perf_counter() - start
        start = time.perf_counter()
        loss = self._loss(states, prompt, hypotheses, method != "greedy-em", softmax)
        seconds["score"] = time.perf_counter() - start
        start = time.perf_counter()
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        seconds["backward"] = time.perf_counter() - start
        gradient = torch.cat([p.grad for p in self.parameters if p.grad is not None])
        return ReferenceStep(loss.item(), hypotheses, gradient, seconds)

    def _generate(
        self, states: Tensor, prompt: Sequence[int], search: str, samples: int, limit: int
    ) -> list[list[int]]:
        allowed = self.transformers.LogitsProcessorList([_Forbid(self.forbidden, len(prompt))])
        how: dict[str, Any] = {"do_sample": False}
        if search == "sample":
            how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": samples}
        elif search == "beam":
            how = {"do_sample": False, "num_beams": samples, "num_return_sequences": samples, "early_stopping": False}
        out = self.transformers.GenerationMixin.generate(
            self.model,
            encoder_outputs=self._output(states),
            decoder_input_ids=torch.tensor([list(prompt)], device=states.device),
            max_new_tokens=limit,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            eos_token_id=self.eos,
            pad_token_id=self.eos,
            logits_processor=allowed,
            **how,
        )
        rows = [row[: row.index(self.eos) + 1] if self.eos in row else row for row in out[:, len(prompt) :].tolist()]
        return [list(row) for row in rows]

    def _loss(
        self,
        states: Tensor,
        prompt: Sequence[int],
        hypotheses: list[list[int]],
        with_policy_gradient: bool,
        softmax: torch.dtype,
    ) -> Tensor:
        G, T, P = len(hypotheses), max(map(len, hypotheses)), len(prompt)
        y = torch.full((G, T), self.eos)
        inside = torch.zeros(G, T, dtype=softmax)
        for i, tokens in enumerate(hypotheses):
            y[i, : len(tokens)] = torch.tensor(tokens)
            inside[i, : len(tokens)] = 1.0
        y, inside = y.to(states.device), inside.to(states.device)
        read = torch.cat([torch.tensor(list(prompt), device=y.device).expand(G, P), y[:, :-1]], dim=1)
        out = self.model(encoder_outputs=self._output(states.expand(G, -1, -1)), decoder_input_ids=read)
        logits: Tensor = out.logits[:, P - 1 :].to(softmax)  # (G, T, V)
        lowest = torch.finfo(logits.dtype).min
        first = torch.arange(T, device=y.device)[:, None] == 0  # (T, 1)
        forbidden = torch.where(first, self.forbidden[1].to(y.device), self.forbidden[0].to(y.device))  # (T, V)
        log_pi = logits.masked_fill(forbidden, lowest).log_softmax(-1)
        entropies = -(log_pi.exp() * log_pi).sum(-1) * inside  # (G, T)
        logprobs = log_pi.gather(2, y[:, :, None])[:, :, 0] * inside
        H = entropies.sum(1)  # (G,)
        if not with_policy_gradient:
            return H.sum() / inside.sum()
        A = H.detach()
        if G > 1:
            A = A - (A.sum() - A) / (G - 1)
        return (A * logprobs.sum(1) + H).sum() / inside.sum()

    def _output(self, states: Tensor) -> Any:
        return self.transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)


class _Forbid:
    """A logits processor that removes what decoding forbids.

    transformers' beam search takes its log-softmax before, which hardly changes a rank.
    """

    def __init__(self, forbidden: Tensor, prompt: int) -> None:
        self.forbidden, self.prompt = forbidden, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        first = input_ids.shape[1] == self.prompt
        return scores.masked_fill(self.forbidden[int(first)].to(scores.device), -torch.inf)
