"""`LanguageModel.generate`: adapt to a prompt's own continuations, answer, forget."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch

from sharpen.errors import SharpenError
from sharpen.explain.page import TEXT, Explanation
from sharpen.method import guard, search
from sharpen.method.adapt import StepCallback, adapt
from sharpen.method.gradient import score
from sharpen.method.policy import Policy, generator
from sharpen.method.trace import Trace
from sharpen.method.tree import Hypothesis, HypothesisTree
from sharpen.models.load import load_text_model
from sharpen.models.text import TextModel
from sharpen.text.fold import folded
from sharpen.text.options import MODEL, Generation

Key = Callable[[str], str]
"""What two answers must share to be one vote, such as the number they end with; by default `fold.folded`."""


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after a prompt, and what it thought of each token."""

    text: str
    tokens: tuple[int, ...]  # without the end token
    logprobs: tuple[float, ...]  # of each, under the distribution it was chosen from
    entropies: tuple[float, ...]  # of that distribution, in nats
    finished: bool  # false: the length limit cut it

    @property
    def entropy(self) -> float:
        """Mean over its tokens, in nats; NaN where it has none."""
        return math.fsum(self.entropies) / len(self.entropies) if self.entropies else math.nan


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt."""

    id: str
    prompt: str
    text: str
    source: Continuation  # by the source model
    adapted: Continuation | None = None  # by the adapted model, also where the guard refused it
    trace: Trace = field(default_factory=Trace, repr=False)
    refused: str = ""  # why the guard returned the source's answer
    seconds: float = 0.0  # its share of its batch

    @property
    def finished(self) -> bool:
        return self.source.finished if self.adapted is None or self.refused else self.adapted.finished


@dataclass(frozen=True)
class Ranking:
    """log pi of each choice, per token."""

    source: tuple[float, ...]
    adapted: tuple[float, ...]
    trace: Trace = field(repr=False)


class LanguageModel:
    """A language model that adapts to each prompt. The weights are never changed; several threads may share it."""

    def __init__(self, model: TextModel) -> None:
        self.model = model

    @overload
    def generate(self, prompt: str, **options: Any) -> Answer: ...
    @overload
    def generate(self, prompt: Sequence[str], **options: Any) -> list[Answer]: ...
    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        ids: Sequence[str] | None = None,
        on_step: StepCallback | None = None,
        key: Key | None = None,
        **options: Any,
    ) -> Answer | list[Answer]:
        """The answer to a prompt, or to each of several, computed side by side.

        Options are the fields of `Generation`, such as `adapt=sharpen.Adaptation(...)`, `chat=True` and `max_tokens`.
        `ids` name the random draws of each prompt (default: its text).
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        names = prompts if ids is None else list(ids)
        if len(names) != len(prompts):
            raise SharpenError(f"{len(prompts)} prompts and {len(names)} ids; give one per prompt")
        answers = self.answer(prompts, names, Generation(**options), on_step, key)
        return answers[0] if isinstance(prompt, str) else answers

    def answer(
        self,
        prompts: Sequence[str],
        ids: Sequence[str],
        options: Generation,
        on_step: StepCallback | None = None,
        key: Key | None = None,
    ) -> list[Answer]:
        """As `generate`, with the options made."""
        if not prompts:
            return []
        start = time.perf_counter()
        policy, prepared = self.model.policy(options.chat, options.end_with), self.model.prepare(prompts, options.chat)
        before = self._decoded(policy, prepared, ids, options, key)
        plain = [Answer(i, p, s.text, s) for i, p, s in zip(ids, prompts, before, strict=True)]
        if options.adapt is not None:
            plain = self._adapted(policy, prepared, plain, options, on_step, key)
        seconds = (time.perf_counter() - start) / len(prompts)
        return [replace(one, seconds=seconds) for one in plain]

    def _adapted(
        self,
        policy: Policy[Any, Any, Any],
        prepared: Any,
        plain: Sequence[Answer],
        options: Generation,
        on_step: StepCallback | None,
        key: Key | None,
    ) -> list[Answer]:
        assert options.adapt is not None
        ids, limits = [one.id for one in plain], [options.max_tokens] * len(plain)
        outcome = adapt(policy, prepared, options.adapt, ids=ids, limits=limits, text=self._said, on_step=on_step)
        after = self._decoded(policy.adapted(outcome.norms), prepared, ids, options, key)
        answers = []
        for one, own, trace in zip(plain, after, outcome.traces, strict=True):
            refused = guard.check(one.source.text, own.text) if options.adapt.guard else ""
            if not all(map(math.isfinite, own.logprobs)):
                refused = "the adapted model produced NaN; lower --lr"
            kept = trace if options.adapt.explain else _without_trees(trace)
            text = one.source.text if refused else own.text
            answers.append(replace(one, text=text, adapted=own, trace=kept, refused=refused))
        return answers

    @torch.no_grad()
    def _decoded(
        self,
        policy: Policy[Any, Any, Any],
        prepared: Any,
        ids: Sequence[str],
        options: Generation,
        key: Key | None,
    ) -> list[Continuation]:
        encoded, limits = policy.encode(prepared), [options.max_tokens] * len(ids)
        if options.decode == "greedy":
            trees = search.greedy(policy, encoded, limits, entropies=True)
        elif options.decode == "beam":
            trees = search.beam(policy, encoded, limits, options.beam_size, entropies=True)
        else:
            count = options.votes if options.decode == "vote" else 1
            draws = [generator(options.seed, f"answer {name}") for name in ids]
            trees = search.sample(
                policy, encoded, limits, count, draws, temperature=options.temperature, entropies=True
            )
        best = partial(self._most_frequent, key or folded) if options.decode == "vote" else _first
        return [self._continuation(tree, best(tree)) for tree in trees]

    def _most_frequent(self, key: Key, tree: HypothesisTree) -> Hypothesis:
        """The first hypothesis of the most frequent answer; of equally frequent ones, the first."""
        keys = [key(self.model.tokenizer.decode(y.content)) for y in tree.hypotheses]
        counts = Counter(keys)
        return tree.hypotheses[max(range(len(keys)), key=lambda i: (counts[keys[i]], -i))]

    def _continuation(self, tree: HypothesisTree, y: Hypothesis) -> Continuation:
        n = len(y.content)
        entropies = tuple(tree.entropies[node] for node in y.nodes[:n])
        return Continuation(self.model.tokenizer.decode(y.content), y.content, y.logprobs[:n], entropies, y.finished)

    def _said(self, tokens: Sequence[int]) -> str:
        return folded(self.model.tokenizer.decode(tokens))

    def rank(self, prompt: str, choices: Sequence[str], id: str, options: Generation) -> Ranking:
        """How probable each choice is as the whole answer to a prompt, before and after adapting to the prompt."""
        if not choices:
            raise SharpenError(f"prompt {id!r} has no choices; expected one or more")
        policy, prepared = self.model.policy(options.chat, options.end_with), self.model.prepare([prompt], options.chat)
        source = self._ranked(policy, prepared, choices)
        if options.adapt is None:
            return Ranking(source, source, Trace())
        outcome = adapt(policy, prepared, options.adapt, ids=[id], limits=[options.max_tokens], text=self._said)
        trace = _without_trees(outcome.traces[0])
        return Ranking(source, self._ranked(policy.adapted(outcome.norms), prepared, choices), trace)

    @torch.no_grad()
    def _ranked(self, view: Policy[Any, Any, Any], prepared: Any, choices: Sequence[str]) -> tuple[float, ...]:
        tree = HypothesisTree.of([[*self.model.tokenizer.encode(c), view.eos] for c in choices], view.eos)
        scored = score(view, view.encode(prepared), [tree], view.vocabulary.device)
        (renewed,) = scored.renewed(view, [tree], [0], 0)
        return tuple(y.logprob / len(y) for y in renewed.hypotheses)

    def explanation(self, answer: Answer, options: Generation) -> Explanation:
        """What adapting changed, for `sharpen.explain`; the answer comes from a run with `explain`."""
        if answer.adapted is None or options.adapt is None:
            raise SharpenError("nothing was adapted, so there is nothing to explain; use a method such as em-tok-b")
        return Explanation(
            name=answer.id,
            method=str(options.adapt.method),
            source=answer.source,
            adapted=answer.adapted,
            trace=answer.trace,
            tokenizer=self.model.tokenizer,
            guard=answer.refused,
            seconds=answer.seconds,
            wording=TEXT,
        )


def load_text(name: str | Path = MODEL, *, device: str = "cpu", dtype: str = "float32") -> LanguageModel:
    """A language model: a Hugging Face directory or id, a GGUF or llama2.c file, or a name such as smollm2-135m."""
    return LanguageModel(load_text_model(name, device, dtype))


def _first(tree: HypothesisTree) -> Hypothesis:
    """The only one of greedy search, the best of a beam."""
    return tree.hypotheses[0]


def _without_trees(trace: Trace) -> Trace:
    return replace(trace, steps=[replace(step, tree=None) for step in trace.steps])
