"""Greedy, sampling and beam search: three ways to grow the same hypothesis tree through a policy.

All three advance every input of the batch one level at a time and compute a prefix once, however many hypotheses
share it. `limits` is L for each input: a hypothesis that reaches L tokens ends there without EOS and is kept. An input
at which the model gives no numbers ends there, with a log-probability that is none, and the others go on.
`entropies` notes Ent(pi) of every node in its tree. `keep` keeps the distributions themselves, as long as the whole
batch has no more than so many numbers of them; one more, and none is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sharpen.method.entropy import entropy
from sharpen.method.policy import E, P, Policy, S, check_limits
from sharpen.method.tree import Hypothesis, HypothesisTree

BLOCK = 256  # tokens that a draw passes over at once

Rules = Callable[[Tensor, list[list[int]]], Tensor]
"""Narrows log pi by what was said before: (n, V) log-probabilities and the n prefixes -> (n, V), normalised again."""

Choose = Callable[[int, Tensor, list[int], list[int]], Tensor]
"""Picks next tokens for input b: (n, V) log-probabilities, live hypotheses, the row each stands on -> a token each."""


@torch.no_grad()
def greedy(
    policy: Policy[P, E, S],
    encoded: E,
    limits: Sequence[int],
    *,
    rules: Rules | None = None,
    entropies: bool = False,
    keep: int = 0,
) -> list[HypothesisTree]:
    """The most probable token at every step: one hypothesis for each input."""

    def choose(b: int, log_pi: Tensor, live: list[int], rows: list[int]) -> Tensor:
        return log_pi.argmax(-1)[rows]

    return _descend(policy, encoded, limits, 1, choose, rules, entropies, keep)


@torch.no_grad()
def sample(
    policy: Policy[P, E, S],
    encoded: E,
    limits: Sequence[int],
    samples: int,
    generators: Sequence[torch.Generator],
    *,
    temperature: float = 1.0,
    rules: Rules | None = None,
    entropies: bool = False,
    keep: int = 0,
) -> list[HypothesisTree]:
    """G independent draws y ~ pi for each input, exact at temperature 1: no top-k, no top-p.

    Each draw inverts the cumulative distribution at one uniform number. At every level all G numbers are drawn from
    the input's own generator, needed or not, so hypothesis i meets the same numbers whatever its neighbours do.
    """
    if samples < 1 or not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"samples ({samples}) must be at least 1 and temperature ({temperature}) positive and finite")

    def choose(b: int, log_pi: Tensor, live: list[int], rows: list[int]) -> Tensor:
        # The most probable token is left at exp(0): at a low temperature the others, or all, would come out as 0.
        scaled = log_pi if temperature == 1 else (log_pi - log_pi.amax(-1, keepdim=True)) / temperature
        u = torch.rand(samples, generator=generators[b], dtype=torch.float64)  # (G,)
        return _inverted(scaled.exp(), rows, u[live].to(log_pi.device))

    return _descend(policy, encoded, limits, samples, choose, rules, entropies, keep)


def _inverted(pi: Tensor, rows: list[int], u: Tensor) -> Tensor:
    """The token at which the cumulative distribution of its row passes each of (m,) numbers u in [0, 1).

    First the block of tokens, then the token in it, each in proportion to its mass: only the blocks' masses are as
    round as pi itself, the rest is float64.
    """
    n, V = pi.shape
    whole = V // BLOCK
    full = pi[:, : whole * BLOCK].view(n, whole, BLOCK).sum(-1)
    rest = pi[:, whole * BLOCK :].sum(-1, keepdim=True)
    mass = torch.cat([full, rest], dim=1)[rows].double()  # (m, blocks)
    cdf = mass.cumsum(-1)
    block = _passed(cdf, u[:, None])
    share = (u[:, None] * cdf[:, -1:] - (cdf - mass).gather(1, block)) / mass.gather(1, block)
    tokens = block * BLOCK + torch.arange(BLOCK, device=pi.device)  # (m, BLOCK)
    row = torch.tensor(rows, device=pi.device)[:, None]
    inside = pi[row, tokens.clamp(max=V - 1)].double().masked_fill_(tokens >= V, 0.0).cumsum(-1)
    return tokens.gather(1, _passed(inside, share))[:, 0].clamp_(max=V - 1)


def _passed(cdf: Tensor, share: Tensor) -> Tensor:
    """Where each row of a cumulative sum first exceeds a share of its end: (m, k), (m, 1) -> (m, 1).

    Strictly, so what has no mass is never met; where rounding makes the share 1, the last one that has some. A row
    without numbers gives some place in it.
    """
    end = cdf[:, -1:].contiguous()
    place = torch.searchsorted(cdf, share * end, right=True).minimum(torch.searchsorted(cdf, end))
    return place.clamp_(max=cdf.shape[-1] - 1)


def _descend(
    policy: Policy[P, E, S],
    encoded: E,
    limits: Sequence[int],
    count: int,
    choose: Choose,
    rules: Rules | None,
    entropies: bool,
    keep: int,
) -> list[HypothesisTree]:
    """Lets `count` hypotheses for each input walk down its tree, each taking the token that `choose` gives it."""
    limits = check_limits(limits, policy.capacity(encoded))
    trees = [HypothesisTree() for _ in limits]
    ended: list[list[Hypothesis | None]] = [[None] * count for _ in limits]
    at: list[dict[int, int]] = [dict.fromkeys(range(count), 0) for _ in limits]  # live hypothesis -> its node
    frontier: list[list[int]] = [[0] for _ in limits]  # the nodes whose hidden states the state holds, row by row
    notes = _Notes(trees, entropies, keep)
    state, depth = policy.begin(encoded), 0
    while True:
        all_log_pi = _log_pi(policy, state, frontier, depth)
        notes.level(all_log_pi)
        parents: list[list[int]] = []
        for b, tree in enumerate(trees):
            row_of = {node: row for row, node in enumerate(frontier[b])}
            frontier[b] = []
            parents.append([])
            if not at[b]:
                continue
            log_pi = _narrowed(all_log_pi[b], tree, list(row_of), rules)
            notes.take(b, list(row_of), log_pi)
            live, rows = list(at[b]), [row_of[node] for node in at[b].values()]
            tokens = choose(b, log_pi, live, rows)  # (live,)
            logprobs = log_pi[rows, tokens].tolist()
            for i, token, logprob, row in zip(live, tokens.tolist(), logprobs, rows, strict=True):
                node = at[b][i]
                if token == policy.eos or depth + 1 == limits[b] or math.isnan(logprob):
                    ended[b][i] = tree.close(node, token, logprob, finished=token == policy.eos)
                    del at[b][i]
                    continue
                known = len(tree)
                at[b][i] = tree.child(node, token, logprob)
                if len(tree) > known:
                    frontier[b].append(at[b][i])
                    parents[b].append(row)
        if not any(at):
            break
        state = _extend(policy, state, parents, trees, frontier)
        depth += 1
    for tree, hypotheses in zip(trees, ended, strict=True):
        tree.hypotheses = [y for y in hypotheses if y is not None]
    return trees


@torch.no_grad()
def beam(
    policy: Policy[P, E, S],
    encoded: E,
    limits: Sequence[int],
    beams: int,
    *,
    length_penalty: float = 1.0,
    rules: Rules | None = None,
    entropies: bool = False,
    keep: int = 0,
) -> list[HypothesisTree]:
    """The top G hypotheses of a beam search of width G, best first, scored by log pi(y) / |y|^length_penalty.

    Finishing rule: of the best 2G continuations, those among the first G that end are kept as results, and the best G
    that go on form the next beam. An input is done when it has G results and its best open beam, divided by its
    present length, cannot beat the worst of them. An input with fewer than G possible outputs returns those.
    """
    if beams < 1:
        raise ValueError(f"a beam is at least 1 wide, not {beams}")
    limits = check_limits(limits, policy.capacity(encoded))
    trees = [HypothesisTree() for _ in limits]
    results: list[list[Hypothesis]] = [[] for _ in limits]
    frontier: list[list[int]] = [[0] for _ in limits]
    scores: list[list[float]] = [[0.0] for _ in limits]  # log pi of each open beam
    notes = _Notes(trees, entropies, keep)
    state, depth = policy.begin(encoded), 0
    while True:
        all_log_pi = _log_pi(policy, state, frontier, depth)
        notes.level(all_log_pi)
        parents: list[list[int]] = [[] for _ in limits]
        for b, tree in enumerate(trees):
            nodes, open_scores = frontier[b], scores[b]
            frontier[b], scores[b] = [], []
            if not nodes:
                continue
            log_pi = _narrowed(all_log_pi[b], tree, nodes, rules)
            notes.take(b, nodes, log_pi)
            candidates = _best_continuations(log_pi, open_scores, 2 * beams)
            lost = next((row for total, row, _, _ in candidates if math.isnan(total)), None)
            if lost is not None or not (candidates or results[b]):
                results[b] = [tree.close(nodes[lost or 0], policy.eos, math.nan, finished=False, score=-math.inf)]
                continue
            for rank, (total, row, token, logprob) in enumerate(candidates):
                if token == policy.eos or depth + 1 == limits[b]:
                    if rank < beams:
                        score = total / (depth + 1) ** length_penalty
                        finished = token == policy.eos
                        results[b].append(tree.close(nodes[row], token, logprob, finished=finished, score=score))
                elif len(frontier[b]) < beams:
                    frontier[b].append(tree.child(nodes[row], token, logprob))
                    scores[b].append(total)
                    parents[b].append(row)
            results[b] = sorted(results[b], key=lambda y: -y.score)[:beams]  # stable: the earlier result wins a tie
            hopeless = (
                len(results[b]) == beams
                and scores[b]
                and (scores[b][0] / (depth + 1) ** length_penalty <= results[b][-1].score)
            )
            if hopeless:
                frontier[b], scores[b], parents[b] = [], [], []
        if not any(frontier):
            break
        state = _extend(policy, state, parents, trees, frontier)
        depth += 1
    for tree, hypotheses in zip(trees, results, strict=True):
        tree.hypotheses = hypotheses
    return [tree.pruned() for tree in trees]


class _Notes:
    """What a search writes down about the distributions it meets."""

    def __init__(self, trees: list[HypothesisTree], entropies: bool, keep: int) -> None:
        self.trees, self.entropies, self.room = trees, entropies, keep
        for tree in trees:
            tree.log_pi = [] if keep else None

    def level(self, all_log_pi: Sequence[Tensor]) -> None:
        """Hears of a level; whoever keeps a row of it keeps it whole."""
        self.room -= sum(log_pi.numel() for log_pi in all_log_pi)
        if self.room < 0:
            for tree in self.trees:
                tree.log_pi = None

    def take(self, b: int, nodes: list[int], log_pi: Tensor) -> None:
        """Input b's nodes of this level and their (n, V); nodes are visited in the order of their numbers."""
        tree = self.trees[b]
        if tree.log_pi is not None:
            tree.log_pi += log_pi.unbind(0)
        if self.entropies:
            for node, value in zip(nodes, entropy(log_pi).tolist(), strict=True):
                tree.entropies[node] = value


def _best_continuations(log_pi: Tensor, scores: list[float], k: int) -> list[tuple[float, int, int, float]]:
    """The k best (total, row, token, log pi) over all rows, best first, before them what is not a number.

    What pi forbids is left out.
    """
    top, tokens = log_pi.topk(min(k, log_pi.shape[-1]), dim=-1)  # (n, k): no row can contribute more than k
    totals = top + torch.tensor(scores, dtype=top.dtype, device=top.device)[:, None]
    best, flat = totals.flatten().topk(min(k, totals.numel()))
    rows = (flat // top.shape[-1]).tolist()
    picked = tokens.flatten()[flat].tolist()
    logprobs = top.flatten()[flat].tolist()
    found = zip(best.tolist(), rows, picked, logprobs, strict=True)
    return [candidate for candidate in found if candidate[0] != -math.inf]


def _log_pi(policy: Policy[P, E, S], state: S, frontier: list[list[int]], depth: int) -> Sequence[Tensor]:
    """The distributions at each input's frontier, (n, V) each; none is computed for padding or an ended input."""
    sizes = [len(nodes) for nodes in frontier]
    rows = torch.cat([state.hidden[b, :n] for b, n in enumerate(sizes)])  # (sum of n, d)
    return torch.split(policy.log_pi(rows, depth), sizes)


def _narrowed(log_pi: Tensor, tree: HypothesisTree, nodes: list[int], rules: Rules | None) -> Tensor:
    return log_pi if rules is None else rules(log_pi, [tree.prefix(node) for node in nodes])


def _extend(
    policy: Policy[P, E, S],
    state: S,
    parents: list[list[int]],
    trees: list[HypothesisTree],
    frontier: list[list[int]],
) -> S:
    """One level deeper: the new frontier's nodes as a padded (B, n) batch."""
    device = state.hidden.device
    tokens = [[tree.tokens[node] for node in nodes] for tree, nodes in zip(trees, frontier, strict=True)]
    return policy.extend(state, _padded(parents, -1, device), _padded(tokens, 0, device))


def _padded(rows: list[list[int]], fill: int, device: torch.device) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=torch.int64, device=device)  # (B, n)
