"""Drawings of an episode, as SVG: the hypothesis tree of a step, and the entropy over the steps.

A branch of the drawn tree is an edge: a prefix and its next token. Depth runs from left to right. A branch is as wide
as the number of hypotheses that take it and has the colour of the entropy at its prefix. At a fork the branch with the
most hypotheses continues straight, so the first row is the most common text and the others are below it. Columns
without a fork are narrow unless there is room: a long trunk takes little space, and its label is shortened.

Colours are the classes e0 … e6 (en: unknown), which the page's style sheet defines.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from zlib import crc32

from sharpen.method.tree import HypothesisTree
from sharpen.terminal import cut, width

LEVELS = (0.05, 0.2, 0.5, 1.0, 2.0, 3.0)  # nats: lower bounds of the colours e1 … e6

TRUNK = 20.0  # px: width of a branch that all hypotheses take
ROW = 17.0  # px between two rows: a line of text
FORK = 16.0  # px in which a branch bends to its row
ROOM = 830.0  # px that the columns may fill if their text needs it
NARROW = (4.0, 13.0)  # px of a column without a fork: minimum, maximum
CHARACTER = 6.3  # px, upper estimate for 11 px text
MARGIN = 84.0  # px on the right, for the probability of a hypothesis

Decode = Callable[[Sequence[int]], str]


def level(entropy: float) -> str:
    """The colour class of an entropy in nats."""
    return "en" if math.isnan(entropy) else f"e{bisect_right(LEVELS, entropy)}"


def percent(logprob: float) -> str:
    """A log-probability as a percentage; empty for NaN."""
    if math.isnan(logprob):
        return ""
    p = 100 * math.exp(logprob)
    return f"{p:.0f} %" if p >= 9.5 else f"{p:.1g} %" if p >= 1e-4 else "< 0.0001 %"


@dataclass(frozen=True)
class Branch:
    """An edge of the tree, as drawn."""

    node: int  # its prefix
    token: int
    depth: int
    count: int  # hypotheses that take it
    logprob: float  # of the token
    entropy: float  # at the prefix
    child: int | None  # the prefix it leads to; None where every hypothesis ends here
    total: float  # log pi of the hypothesis that ends here; NaN if none does
    finished: bool  # the token is EOS


def branches(tree: HypothesisTree) -> dict[int, list[Branch]]:
    """The edges of each prefix, those with the most hypotheses first."""
    counts: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], tuple[float, bool]] = {}
    onward: dict[tuple[int, int], int] = {}
    logprobs: dict[tuple[int, int], float] = {}
    for y in tree.hypotheses:
        edges = list(zip(y.nodes, y.tokens, strict=True))
        for edge, logprob in zip(edges, y.logprobs, strict=True):
            counts[edge] = counts.get(edge, 0) + 1
            logprobs[edge] = logprob
        onward |= dict(zip(edges, y.nodes[1:], strict=False))
        ends[edges[-1]] = y.logprob, y.finished
    leaving: dict[int, list[Branch]] = {}
    for (node, token), count in counts.items():
        edge = node, token
        total, finished = ends.get(edge, (math.nan, False))
        branch = Branch(
            node=node,
            token=token,
            depth=tree.depths[node],
            count=count,
            logprob=logprobs[edge],
            entropy=tree.entropies[node],
            child=onward.get(edge),
            total=total,
            finished=finished,
        )
        leaving.setdefault(node, []).append(branch)
    return {node: sorted(bs, key=lambda b: -b.count) for node, bs in leaving.items()}  # stable: ties in search order


@dataclass(frozen=True, eq=False)
class _Layout:
    """Positions, in px."""

    leaving: dict[int, list[Branch]]
    rows: dict[Branch, int]
    tops: list[float]  # upper edge of the branches of each row
    x: list[float]  # start of the column of each depth, and the end of the last
    unit: float  # width of one hypothesis
    decode: Decode
    keys: dict[int, int]  # of each prefix a number that it has in every tree

    def middle(self, b: Branch) -> float:
        return self.tops[self.rows[b]] + b.count * self.unit / 2


def tree_svg(tree: HypothesisTree, decode: Decode, title: str) -> str:
    """The tree of one step as an SVG element; `decode` gives the text of tokens."""
    leaving = branches(tree)
    drawn = [b for bs in leaving.values() for b in bs]
    unit = TRUNK / len(tree.hypotheses)
    rows = _rows(leaving)
    thickest: dict[int, float] = {}
    for b in drawn:
        thickest[rows[b]] = max(thickest.get(rows[b], 0.0), b.count * unit)
    tops = [ROW]
    for r in range(len(thickest)):
        tops.append(tops[-1] + thickest[r] + ROW)
    at = _Layout(leaving, rows, tops, _columns(leaving, unit, decode), unit, decode, _keys(leaving))
    w, h = at.x[-1] + MARGIN, tops[-1] - ROW + 8
    body = [_path(at, b) for b in drawn]
    body += [_end(at, b) for b in drawn if b.child is None]
    body += [_label(at, chain) for chain in _chains(leaving)]
    best = max(tree.hypotheses, key=lambda y: y.logprob if not math.isnan(y.logprob) else -math.inf)
    distinct = len({y.tokens for y in tree.hypotheses})
    about = (
        f"{len(tree.hypotheses)} hypotheses, {distinct} distinct, over {len(tree)} prefixes. "
        f"The most probable: {decode(best.content).strip()}"
    )
    return (
        f'<svg class="tree" role="img" width="{w:.0f}" height="{h:.0f}" '
        f'viewBox="0 0 {w:.0f} {h:.0f}"><title>{escape(title)}</title><desc>{escape(about)}</desc>'
        f"{''.join(body)}</svg>"
    )


def _key(prefix: int, token: int) -> int:
    return crc32(token.to_bytes(4, "little"), prefix)


def _keys(leaving: dict[int, list[Branch]]) -> dict[int, int]:
    """A page that shows one tree after the other knows by them which branches are the same."""
    keys = {0: 0}
    for b in sorted((b for bs in leaving.values() for b in bs), key=lambda b: b.depth):
        if b.child is not None:
            keys[b.child] = _key(keys[b.node], b.token)
    return keys


def _rows(leaving: dict[int, list[Branch]]) -> dict[Branch, int]:
    """The row of each branch: the first branch of a prefix keeps its row, the others go below its whole subtree."""
    rows: dict[Branch, int] = {}
    free = 1
    stack: list[tuple[Branch, int | None]] = []
    node: int | None = 0
    row = 0
    while True:
        here = leaving.get(node, []) if node is not None else []
        stack += [(b, row if i == 0 else None) for i, b in reversed(list(enumerate(here)))]
        if not stack:
            return rows
        branch, kept = stack.pop()
        if kept is None:  # assigned only now, when everything above it has its rows
            kept, free = free, free + 1
        rows[branch] = row = kept
        node = branch.child


def _columns(leaving: dict[int, list[Branch]], unit: float, decode: Decode) -> list[float]:
    """The x of each depth: columns at a fork are as wide as their text, the others share what is left of ROOM."""
    depth = 1 + max(b.depth for bs in leaving.values() for b in bs)
    narrow = min(NARROW[1], max(NARROW[0], ROOM / 2 / depth))
    least, full = [narrow] * depth, [narrow] * depth
    for bs in leaving.values():
        for b in bs:
            text = 0.0 if b.finished else CHARACTER * min(16, width(decode([b.token]))) + 4
            bend = FORK + b.count * unit / 2 if len(bs) > 1 else 0.0
            full[b.depth] = max(full[b.depth], bend + text)
            if len(bs) > 1:
                least[b.depth] = max(least[b.depth], bend + text)
    missing = sum(full) - sum(least)
    share = min(1.0, max(0.0, ROOM - sum(least)) / missing) if missing else 0.0
    x = [1.0]
    for low, high in zip(least, full, strict=True):
        x.append(x[-1] + low + share * (high - low))
    return x


def _chains(leaving: dict[int, list[Branch]]) -> list[list[Branch]]:
    """The runs of branches between forks; each has one label."""
    chains = []
    starts = [b for node, bs in leaving.items() if node == 0 or len(bs) > 1 for b in bs]
    for b in starts:
        chain = [b]
        while (child := chain[-1].child) is not None and len(leaving[child]) == 1:
            chain.append(leaving[child][0])
        chains.append(chain)
    return chains


def _path(at: _Layout, b: Branch) -> str:
    siblings = at.leaving[b.node]
    y, x0, x1 = at.middle(b), at.x[b.depth], at.x[b.depth + 1] + 0.4  # slightly longer, so that no seam shows
    if siblings[0] is b:
        d = f"M{x0:.1f} {y:.1f}H{x1:.1f}"
    else:  # it leaves the common trunk below the siblings that more hypotheses take
        above = sum(s.count for s in siblings[: siblings.index(b)])
        start = at.tops[at.rows[siblings[0]]] + (above + b.count / 2) * at.unit
        bend = x0 + FORK / 2
        d = f"M{x0:.1f} {start:.1f}C{bend:.1f} {start:.1f} {bend:.1f} {y:.1f} {x0 + FORK:.1f} {y:.1f}H{x1:.1f}"
    facts = ["end" if b.finished else f"“{at.decode([b.token])}”"]
    facts.append(f"{b.count} of {sum(s.count for s in at.leaving[0])} hypotheses")
    facts += [f"probability {percent(b.logprob)}"] if percent(b.logprob) else []
    facts += [] if math.isnan(b.entropy) else [f"entropy {b.entropy:.2f} nats"]
    return (
        f'<path class="b {level(b.entropy)}" data-key="{_key(at.keys[b.node], b.token):x}" d="{d}" '
        f'stroke-width="{b.count * at.unit:.3g}">'
        f"<title>{escape(' · '.join(facts))}</title></path>"
    )


def _end(at: _Layout, b: Branch) -> str:
    """The end of a hypothesis: a dot for EOS, an open one for the length limit, then its probability and count."""
    x, y, r = at.x[b.depth + 1], at.middle(b), max(2.5, b.count * at.unit / 2)
    words = " ".join(word for word in (percent(b.total), f"×{b.count}" if b.count > 1 else "") if word)
    kind = "dot" if b.finished else "dot cut"
    text = f'<text class="p" x="{x + r + 5:.1f}" y="{y + 3.5:.1f}">{escape(words)}</text>' if words else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>{text}'


def _label(at: _Layout, chain: list[Branch]) -> str:
    """The text of a run of branches, above it, as far as it fits."""
    first, last = chain[0], chain[-1]
    bends = at.leaving[first.node][0] is not first
    x = at.x[first.depth] + (FORK + first.count * at.unit / 2 if bends else 2)
    whole = at.decode([b.token for b in chain if not b.finished]).strip()
    text = fit(whole, int((at.x[last.depth + 1] - x) / CHARACTER), ends=last.child is None)
    return f'<text x="{x:.1f}" y="{at.tops[at.rows[first]] - 3.5:.1f}">{escape(text)}</text>' if text else ""


def fit(text: str, room: int, *, ends: bool) -> str:
    """The text in at most `room` columns: "…" replaces its middle, or its end if `ends`."""
    if width(text) <= room:
        return text
    if room < 3:
        return ""
    start = cut(text, room - 1 if ends else room // 2)
    stop = cut(text, room - 1 - width(start), end=True)
    return f"{start.rstrip()}…{'' if ends else stop.lstrip()}"


def curve_svg(H_tok: Sequence[float], H_seq: Sequence[float]) -> str:
    """Both entropies over the updates as an SVG element; the last values are written out, the first are in its text."""
    w, h, left, right, top, bottom = 380.0, 205.0, 34.0, 96.0, 14.0, 42.0
    n = len(H_tok)
    peak = max([v for v in (*H_tok, *H_seq) if math.isfinite(v)], default=0.0) or 1.0
    step = next(s for s in (m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5)) if peak / s <= 4)
    highest = step * math.ceil(peak / step)

    def place(i: int, value: float) -> tuple[float, float]:
        across = i / (n - 1) if n > 1 else 0.5
        return left + across * (w - left - right), top + (1 - value / highest) * (h - top - bottom)

    parts = []
    for k in range(round(highest / step) + 1):
        y = place(0, k * step)[1]
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{w - right}"/>')
        parts.append(f'<text class="p" text-anchor="end" x="{left - 5}" y="{y + 3.5:.1f}">{k * step:g}</text>')
    for i in sorted({0, n // 2, n - 1} if n > 5 else {0, n - 1}):
        parts.append(f'<text class="p" text-anchor="middle" x="{place(i, 0)[0]:.1f}" y="{h - 23}">{i}</text>')
    middle = (left + w - right) / 2
    parts.append(f'<text class="p" text-anchor="middle" x="{middle}" y="{h - 5}">updates made</text>')
    labels = []
    for name, values in (("seq", H_seq), ("tok", H_tok)):
        points = [place(i, v) for i, v in enumerate(values) if math.isfinite(v)]
        if not points:
            continue
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="{name}" points="{line}"/>')
        parts += [f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points]
        labels.append((points[-1][1], points[-1][0], name, values))
    labels.sort()
    heights = [y for y, *_ in labels]
    if any(b - a < 15 for a, b in pairwise(heights)):  # the two labels would touch
        heights = [heights[0] - (15 - heights[1] + heights[0]) / 2, heights[1] + (15 - heights[1] + heights[0]) / 2]
    for y, (_, x, name, values) in zip(heights, labels, strict=True):
        parts.append(f'<text class="{name}" x="{x + 8:.1f}" y="{y + 4.5:.1f}">H_{name} {values[-1]:.2f}</text>')
    about = ", ".join(f"H_{name} from {v[0]:.2f} to {v[-1]:.2f} nats" for name, v in (("tok", H_tok), ("seq", H_seq)))
    return (
        f'<svg class="curve" role="img" viewBox="0 0 {w:.0f} {h:.0f}"><title>Entropy over the updates</title>'
        f"<desc>{about}</desc>{''.join(parts)}</svg>"
    )
