"""Greedy, sampling and beam search: three ways to grow the same hypothesis tree through a policy.

All three advance every input of the batch one level at a time and compute a prefix once, however many hypotheses
share it. `limits` is L for each input: a hypothesis that reaches L tokens ends there without EOS and is kept. An input
whose output is NaN stops, with a NaN log-probability; the others continue.

`state` is a search already begun by `policy.begin(encoded)`; it is used up. `rules` narrow pi by the prefix. With
`entropies` every node of a tree gets its Ent(pi). `keep` is the memory budget for distributions, in numbers for the
whole batch: they are kept in the trees until one level exceeds it, and then all are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sharpen.method.entropy import entropy
from sharpen.method.policy import E, P, Policy, S, check_limits, log_pi
from sharpen.method.tree import Hypothesis, HypothesisTree

BLOCK = 256  # tokens per block of the two-stage draw

Rules = Callable[[Tensor, list[list[int]]], Tensor]
"""Narrows log pi by the prefix: (n, V) log-probabilities and the n prefixes -> (n, V), normalised again."""

Choose = Callable[[int, Tensor, list[int], list[int]], Tensor]
"""Picks next tokens for input b: (n, V) log-probabilities, live hypotheses, the row of each -> one token each."""


@torch.no_grad()
def greedy(
    policy: Policy[P, E, S],
    encoded: E,
    limits: Sequence[int],
    *,
    state: S | None = None,
    rules: Rules | None = None,
    entropies: bool = False,
    keep: int = 0,
) -> list[HypothesisTree]:
    """The most probable token at every step: one hypothesis for each input."""

    def choose(b: int, logprobs: Tensor, live: list[int], rows: list[int]) -> Tensor:
        return logprobs.argmax(-1)[rows]

    return _descend(policy, encoded, limits, 1, choose, state, rules, entropies, keep)


@torch.no_grad()
def sample(
    policy: Policy[P, E, S],
    encoded: E,
    limits: Sequence[int],
    samples: int,
    generators: Sequence[torch.Generator],
    *,
    state: S | None = None,
    temperature: float = 1.0,
    rules: Rules | None = None,
    entropies: bool = False,
    keep: int = 0,
) -> list[HypothesisTree]:
    """G independent draws y ~ pi for each input, exact at temperature 1: no top-k, no top-p.

    Each draw inverts the cumulative distribution at one uniform number. At every level all G numbers are drawn from
    the input's own generator, needed or not, so hypothesis i gets the same numbers whatever its neighbours do.
    """
    if samples < 1 or not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"samples ({samples}) must be at least 1 and temperature ({temperature}) positive and finite")

    def choose(b: int, logprobs: Tensor, live: list[int], rows: list[int]) -> Tensor:
        # Scaled so that the best token is at exp(0): at a low temperature all would underflow otherwise.
        scaled = logprobs if temperature == 1 else (logprobs - logprobs.amax(-1, keepdim=True)) / temperature
        u = torch.rand(samples, generator=generators[b], dtype=torch.float64)  # (G,)
        return _inverted(scaled.exp(), rows, u[live].to(logprobs.device))

    return _descend(policy, encoded, limits, samples, choose, state, rules, entropies, keep)


def _inverted(pi: Tensor, rows: list[int], u: Tensor) -> Tensor:
    """The token at which the cumulative distribution of its row exceeds each of (m,) numbers u in [0, 1).

    First the block of tokens, then the token inside it. The masses of blocks are summed in the precision of pi, the
    rest in float64.
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

    The comparison is strict, so an entry without mass is never drawn; where rounding makes the share 1, the last entry
    with mass is. A row of NaN gives some index within it.
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
    state: S | None,
    rules: Rules | None,
    entropies: bool,
    keep: int,
) -> list[HypothesisTree]:
    """Extends `count` hypotheses per input level by level, each with the token that `choose` picks for it."""
    limits = check_limits(limits, policy.capacity(encoded))
    trees = [HypothesisTree() for _ in limits]
    ended: list[list[Hypothesis | None]] = [[None] * count for _ in limits]
    at: list[dict[int, int]] = [dict.fromkeys(range(count), 0) for _ in limits]  # live hypothesis -> its node
    frontier: list[list[int]] = [[0] for _ in limits]  # the nodes of the state's rows
    record = _Record(trees, entropies, keep)
    state, depth = policy.begin(encoded) if state is None else state, 0
    while True:
        level = _level(policy, state, frontier, depth)
        record.charge(level)
        parents: list[list[int]] = []
        for b, tree in enumerate(trees):
            row_of = {node: row for row, node in enumerate(frontier[b])}
            frontier[b] = []
            parents.append([])
            if not at[b]:
                continue
            distributions = _narrowed(level[b], tree, list(row_of), rules)
            record.take(b, list(row_of), distributions)
            live, rows = list(at[b]), [row_of[node] for node in at[b].values()]
            tokens = choose(b, distributions, live, rows)  # (live,)
            logprobs = distributions[rows, tokens].tolist()
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
    state: S | None = None,
    rules: Rules | None = None,
    entropies: bool = False,
    keep: int = 0,
) -> list[HypothesisTree]:
    """The top G hypotheses of a beam search of width G, best first, scored by log pi(y) / |y|^length_penalty.

    Finishing rule: of the best 2G continuations, those among the first G that end become results, and the best G that
    continue form the next beam. An input is done when it has G results and its best open beam, scored at its present
    length, cannot beat the worst of them. An input with fewer than G possible outputs returns those.
    """
    if beams < 1:
        raise ValueError(f"a beam is at least 1 wide, not {beams}")
    limits = check_limits(limits, policy.capacity(encoded))
    trees = [HypothesisTree() for _ in limits]
    results: list[list[Hypothesis]] = [[] for _ in limits]
    frontier: list[list[int]] = [[0] for _ in limits]
    scores: list[list[float]] = [[0.0] for _ in limits]  # log pi of each open beam
    record = _Record(trees, entropies, keep)
    state, depth = policy.begin(encoded) if state is None else state, 0
    while True:
        level = _level(policy, state, frontier, depth)
        record.charge(level)
        parents: list[list[int]] = [[] for _ in limits]
        for b, tree in enumerate(trees):
            nodes, open_scores = frontier[b], scores[b]
            frontier[b], scores[b] = [], []
            if not nodes:
                continue
            distributions = _narrowed(level[b], tree, nodes, rules)
            record.take(b, nodes, distributions)
            candidates = _best_continuations(distributions, open_scores, 2 * beams)
            nan_row = next((row for total, row, _, _ in candidates if math.isnan(total)), None)
            if nan_row is not None or not (candidates or results[b]):
                results[b] = [tree.close(nodes[nan_row or 0], policy.eos, math.nan, finished=False, score=-math.inf)]
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
            results[b] = sorted(results[b], key=lambda y: -y.score)[:beams]  # stable: the earlier result wins ties
            full = len(results[b]) == beams and scores[b]
            if full and scores[b][0] / (depth + 1) ** length_penalty <= results[b][-1].score:
                frontier[b], scores[b], parents[b] = [], [], []
        if not any(frontier):
            break
        state = _extend(policy, state, parents, trees, frontier)
        depth += 1
    for tree, hypotheses in zip(trees, results, strict=True):
        tree.hypotheses = hypotheses
    return [tree.pruned() for tree in trees]


class _Record:
    """Entropies and distributions that a search leaves in its trees."""

    def __init__(self, trees: list[HypothesisTree], entropies: bool, keep: int) -> None:
        self.trees, self.entropies, self.room = trees, entropies, keep
        for tree in trees:
            tree.log_pi = [] if keep else None

    def charge(self, level: Sequence[Tensor]) -> None:
        """Charges one level to the memory budget; a kept row pins the whole tensor."""
        self.room -= sum(log_pi.numel() for log_pi in level)
        if self.room < 0:
            for tree in self.trees:
                tree.log_pi = None

    def take(self, b: int, nodes: list[int], log_pi: Tensor) -> None:
        """Records the distributions (n, V) of input b's nodes, which come in the order of their numbers."""
        tree = self.trees[b]
        if tree.log_pi is not None:
            tree.log_pi += log_pi.unbind(0)
        if self.entropies:
            for node, value in zip(nodes, entropy(log_pi).tolist(), strict=True):
                tree.entropies[node] = value


def _best_continuations(distributions: Tensor, scores: list[float], k: int) -> list[tuple[float, int, int, float]]:
    """The k best (total, row, token, log pi) over all rows, best first, NaN before all; no forbidden tokens."""
    # No row can contribute more than k.
    top, tokens = distributions.topk(min(k, distributions.shape[-1]), dim=-1)  # (n, k)
    totals = top + torch.tensor(scores, dtype=top.dtype, device=top.device)[:, None]
    best, flat = totals.flatten().topk(min(k, totals.numel()))
    rows = (flat // top.shape[-1]).tolist()
    picked = tokens.flatten()[flat].tolist()
    logprobs = top.flatten()[flat].tolist()
    candidates = zip(best.tolist(), rows, picked, logprobs, strict=True)
    return [candidate for candidate in candidates if candidate[0] != -math.inf]


def _level(policy: Policy[P, E, S], state: S, frontier: list[list[int]], depth: int) -> Sequence[Tensor]:
    """The distributions at each input's frontier, (n, V) each; none is computed for padding or an ended input."""
    sizes = [len(nodes) for nodes in frontier]
    rows = torch.cat([state.hidden[b, :n] for b, n in enumerate(sizes)])  # (sum of n, d)
    return torch.split(log_pi(policy, rows, depth), sizes)


def _narrowed(distributions: Tensor, tree: HypothesisTree, nodes: list[int], rules: Rules | None) -> Tensor:
    return distributions if rules is None else rules(distributions, [tree.prefix(node) for node in nodes])


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
