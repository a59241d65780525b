"""The episode: search, score, step, repeat; then forget.

An `Episode` minimises the entropy of pi(. | q) for each of its inputs q, on that input's own copy of the norms. Inputs
join between steps and leave when they are done, and an answer can be had after any step. Each input has its own
options, step count, moments, hypotheses, loss, normaliser and random draws. Several inputs share one search and one
scoring pass, but no number of one enters another's: an input gets what it would get alone.

`method.adapt.adapt` is one loop over an episode, for a batch that starts together. A server is another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic

import torch
from torch import Tensor

from sharpen.errors import SharpenError
from sharpen.method import search
from sharpen.method.adaptation import Adaptation
from sharpen.method.gradient import require_gradients, score, tree_loss
from sharpen.method.norms import Affine, Norm, adapting, affine, initial
from sharpen.method.optimiser import Moments
from sharpen.method.policy import LONGEST, E, P, Policy, S, check_limits, generator
from sharpen.method.row import EpisodeRow, Sharing, update_rows
from sharpen.method.trace import OUT_OF_TIME, Step, Text, Trace, confident, stop_reason, summary
from sharpen.method.tree import HypothesisTree

KEPT = 1 << 26  # numbers of distributions that a search keeps for its gradient: 256 MB in float32


@dataclass(frozen=True)
class _Batch(Generic[P, E]):
    """The joined inputs of rows that share their computation."""

    ids: tuple[str, ...]
    prepared: P
    encoded: E | None  # where no encoder norm adapts: computed once


class Episode(Generic[P, E, S]):
    """Inputs that adapt side by side over one policy. The model is never written.

    `text` normalises the text of tokens for the "agreed" rule and `Step.distinct_texts`. Every input starts at the
    model's own norms (`Policy.norms`), whatever a view of it was adapted to before. Not thread-safe; several episodes
    over one policy may run in different threads.
    """

    def __init__(self, policy: Policy[P, E, S], text: Text | None = None) -> None:
        self.policy, self.text = policy, text
        self._rows: dict[str, EpisodeRow[P]] = {}
        self._batches: dict[Sharing, _Batch[P, E]] = {}

    @property
    def ids(self) -> list[str]:
        """All inputs, in the order they joined."""
        return list(self._rows)

    @property
    def live(self) -> list[str]:
        """The inputs that the next `step` will update."""
        return [row.id for row in self._rows.values() if row.live]

    def join(
        self,
        prepared: P,
        ids: Sequence[str],
        limits: Sequence[int] | None = None,
        options: Adaptation | Sequence[Adaptation] = Adaptation(),  # noqa: B008, it is frozen
        *,
        draws: Sequence[str] | None = None,
        trees: Sequence[HypothesisTree | None] | None = None,
        search_anew: bool = False,
        until: float = math.inf,
    ) -> None:
        """Adds inputs, which the next `step` updates for the first time.

        `ids` name them in this episode, `limits` are their length limits in tokens, `options` are common or one for
        each input. `draws` name their random draws where those must not follow from the id. `trees` are hypotheses that
        were searched already under the model's own norms: the gate judges by them, and the first step scores them
        instead of searching, unless it shall `search_anew`. `until` is a time of `time.monotonic()`: no step is begun
        that would end later, if it takes as long as the one before.
        """
        require_gradients()
        B = len(prepared)
        limits = [LONGEST] * B if limits is None else limits
        every = [options] * B if isinstance(options, Adaptation) else list(options)
        draws = ids if draws is None else draws
        trees = [None] * B if trees is None else trees
        if not len(ids) == len(limits) == len(every) == len(draws) == len(trees) == B:
            raise SharpenError(
                f"{B} inputs, {len(ids)} ids, {len(limits)} limits, {len(every)} options, {len(draws)} names of "
                f"draws and {len(trees)} trees: give one per input"
            )
        check_limits(limits, [LONGEST] * B)  # here, not in a step that others share
        taken = [i for n, i in enumerate(ids) if i in self._rows or i in ids[:n]]
        if taken:
            raise SharpenError(f"input {taken[0]!r} is in this episode already; choose another id, or let it leave")
        new: dict[str, EpisodeRow[P]] = {}
        given = zip(ids, limits, every, draws, trees, strict=True)
        for index, (i, limit, option, draw, tree) in enumerate(given):
            chosen = adapting(self.policy.norms(), option)
            theta = initial(chosen, 1)[0] if chosen else torch.empty(0)
            new[i] = EpisodeRow(
                i, prepared, index, limit, option, chosen, generator(option.seed, draw), theta, theta,
                Moments.zeros(theta), until, tree, search_anew,
            )  # fmt: skip
        self._rows |= new

    def step(self) -> dict[str, Step]:
        """Updates every live input once; returns what the step saw of each, and nothing when none is live.

        If one group of inputs fails, the groups before it have advanced; their steps are in `trace`.
        """
        require_gradients()
        self._look()
        together: dict[Sharing, list[EpisodeRow[P]]] = {}
        for row in self._rows.values():
            if row.live and time.monotonic() + _expected(row) > row.until:
                row.trace.stopped = OUT_OF_TIME
            elif row.live:
                together.setdefault(row.sharing, []).append(row)
        steps: dict[str, Step] = {}
        for sharing, rows in together.items():
            steps |= self._advance(rows, self._batch(sharing, rows))
        return steps

    @torch.inference_mode(False)  # what stays must still be able to have gradients
    def leave(self, ids: Sequence[str]) -> None:
        """Removes inputs, finished or not; what is left of them is forgotten."""
        gone = {self._row(i).id for i in ids}  # an unknown id is an error before anything is removed
        for i in gone:
            del self._rows[i]
        for sharing, batch in list(self._batches.items()):
            if gone & set(batch.ids):
                del self._batches[sharing]
                stay = [n for n, i in enumerate(batch.ids) if i in self._rows]
                if stay:
                    self._batches[sharing] = _select(batch, stay)

    def norms(self, ids: Sequence[str]) -> Mapping[str, Affine]:
        """The present norms of some inputs, one row each, for `Policy.adapted`; nothing where none of them adapts.

        Where inputs adapt different norms, each has the model's own parameters for the rest.
        """
        rows = [self._row(i) for i in ids]
        own = [affine(row.chosen, row.theta[None]) for row in rows]
        union = {norm.name: norm for row in rows for norm in row.chosen}
        values: dict[str, Affine] = {}
        for name, norm in union.items():
            model = affine([norm], initial([norm], 1))[name]
            values[name] = Affine.cat([one.get(name, model) for one in own])
        return values

    def theta(self, ids: Sequence[str]) -> Tensor:
        """The same as one matrix (len(ids), parameters), for inputs that adapt the same norms."""
        return torch.stack([self._row(i).theta for i in ids]) if ids else torch.empty(0, 0)

    def trace(self, id: str) -> Trace:
        """The steps of an input so far."""
        return self._row(id).trace

    def _row(self, id: str) -> EpisodeRow[P]:
        if id not in self._rows:
            raise SharpenError(f"no input {id!r} in this episode; it has {', '.join(self._rows) or 'none'}")
        return self._rows[id]

    @torch.no_grad()
    def _look(self) -> None:
        """Searches new inputs that have a gate, and stops those that are confident before their first update."""
        for row in self._rows.values():
            if not row.live or row.options.gate <= 0 or row.trace.steps:
                continue
            if row.tree is None:
                prepared = row.source.select([row.index])
                (tree,) = _search(self.policy, self.policy.encode(prepared), [row])
                row.tree = replace(tree, log_pi=None)
            row.trace.stopped = confident(row.tree, row.options.gate)

    def _batch(self, sharing: Sharing, rows: list[EpisodeRow[P]]) -> _Batch[P, E]:
        """The joined inputs of these rows, reusing what was joined at the step before."""
        ids = tuple(row.id for row in rows)
        held = self._batches.get(sharing)
        if held is not None and held.ids != ids:  # rows that finished are dropped
            stay = [n for n, i in enumerate(held.ids) if i in ids]
            held = _select(held, stay) if stay else None
        fresh = rows if held is None else rows[len(held.ids) :]  # rows are in the order they joined
        if fresh:
            new = self._joined(fresh)
            held = new if held is None else _join([held, new])
        assert held is not None
        self._batches[sharing] = held
        return held

    def _joined(self, rows: list[EpisodeRow[P]]) -> _Batch[P, E]:
        sources: list[tuple[P, list[int]]] = []
        for row in rows:
            if not sources or sources[-1][0] is not row.source:
                sources.append((row.source, []))
            sources[-1][1].append(row.index)
        parts = [source.select(indices) for source, indices in sources]
        prepared = parts[0] if len(parts) == 1 else type(parts[0]).join(parts)
        encoded = None
        chosen = rows[0].chosen
        prepared = self.policy.ahead(prepared, [norm.name for norm in chosen])
        encoder = any(norm.side == "encoder" for norm in self.policy.norms())  # else `encode` may use any norm
        if encoder and all(norm.side == "decoder" for norm in chosen):
            with torch.no_grad():
                encoded = self.policy.encode(prepared)
        return _Batch(tuple(row.id for row in rows), prepared, encoded)

    @torch.enable_grad()
    def _advance(self, rows: list[EpisodeRow[P]], batch: _Batch[P, E]) -> dict[str, Step]:
        """One update of rows that share their computation.

        The encoder runs once, with its gradient; the search sees the same values without it.
        """
        chosen, seconds = rows[0].chosen, dict[str, float]()
        theta = torch.stack([row.theta for row in rows]).requires_grad_()  # (B, parameters)
        view = self.policy.adapted(affine(chosen, theta))
        with _timed(seconds, "encode"):
            encoded = view.encode(batch.prepared) if batch.encoded is None else batch.encoded
        with torch.no_grad():
            values = encoded.detach()
            with _timed(seconds, "search"):
                trees = self._trees(chosen, theta.detach(), values, rows)
            greedy = dict[str, tuple[int, ...]]()
            if any(row.wants_greedy for row in rows):
                with _timed(seconds, "greedy"):
                    greedy = _greedy(self.policy, chosen, theta.detach(), values, rows)
        with _timed(seconds, "score"):
            scored = score(view, encoded, trees, theta.device)
            trees = scored.renewed(view, trees, [b for b, row in enumerate(rows) if not row.searches], KEPT)
            objectives = [row.options.row.objective for row in rows]
            loss = tree_loss(trees, [o for o in objectives if o is not None], [row.options.normalise for row in rows])
        with _timed(seconds, "backward"):
            gradient = scored.gradient(view, loss, theta)
        with _timed(seconds, "optimiser"):
            reasons = update_rows(rows, gradient, loss.values)
        sizes = gradient.norm(dim=1).tolist()
        shares = {**dict.fromkeys(seconds, len(rows)), "greedy": len(greedy)}
        for b, row in enumerate(rows):
            step = summary(
                trees[b], loss.groups[b], loss.values[b], sizes[b], seconds, shares, self.text, greedy.get(row.id)
            )
            row.tree = trees[b] if row.options.search_every > 1 else None
            row.trace.steps.append(step)
            row.trace.stopped = reasons[b] or stop_reason(row.trace.steps, row.options.stop)
        return {row.id: row.trace.steps[-1] for row in rows}

    def _trees(self, chosen: list[Norm], theta: Tensor, encoded: E, rows: list[EpisodeRow[P]]) -> list[HypothesisTree]:
        """The hypotheses of each row: searched under its norms theta, or those of the step before."""
        searching = [b for b, row in enumerate(rows) if row.searches]
        found: dict[int, HypothesisTree] = {}
        if searching:
            view = self.policy.adapted(affine(chosen, theta[searching]))
            new = _search(view, encoded.select(searching), [rows[b] for b in searching])
            found = dict(zip(searching, new, strict=True))
        trees = [found.get(b, row.tree) for b, row in enumerate(rows)]
        return [tree for tree in trees if tree is not None]


def _search(policy: Policy[P, E, S], encoded: E, rows: Sequence[EpisodeRow[P]]) -> list[HypothesisTree]:
    limits, sharing = [row.limit for row in rows], rows[0].sharing
    if sharing.search == "greedy":
        return search.greedy(policy, encoded, limits, entropies=True, keep=KEPT)
    if sharing.search == "sample":
        draws = [row.draws for row in rows]
        return search.sample(policy, encoded, limits, sharing.samples, draws, entropies=True, keep=KEPT)
    return search.beam(policy, encoded, limits, sharing.samples, entropies=True, keep=KEPT)


def _expected(row: EpisodeRow[P]) -> float:
    """Seconds that the next step will take, judged by the one before; the first may take any time."""
    return sum(row.trace.steps[-1].batch_seconds.values()) if row.trace.steps else 0.0


def _greedy(
    policy: Policy[P, E, S], chosen: list[Norm], theta: Tensor, encoded: E, rows: Sequence[EpisodeRow[P]]
) -> dict[str, tuple[int, ...]]:
    """The greedy output of the rows that want it, under their norms theta."""
    wanting = [b for b, row in enumerate(rows) if row.wants_greedy]
    view = policy.adapted(affine(chosen, theta[wanting]))
    trees = search.greedy(view, encoded.select(wanting), [rows[b].limit for b in wanting])
    return {rows[b].id: tree.hypotheses[0].tokens for b, tree in zip(wanting, trees, strict=True)}


def _select(batch: _Batch[P, E], rows: Sequence[int]) -> _Batch[P, E]:
    encoded = None if batch.encoded is None else batch.encoded.select(rows)
    return _Batch(tuple(batch.ids[n] for n in rows), batch.prepared.select(rows), encoded)


def _join(batches: Sequence[_Batch[P, E]]) -> _Batch[P, E]:
    prepared = type(batches[0].prepared).join([batch.prepared for batch in batches])
    encoded = [batch.encoded for batch in batches if batch.encoded is not None]
    ids = tuple(i for batch in batches for i in batch.ids)
    return _Batch(ids, prepared, type(encoded[0]).join(encoded) if encoded else None)


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - start
