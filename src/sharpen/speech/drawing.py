"""An episode as pictures: the hypothesis tree of a step and the entropy over the steps, as SVG for a page.

In the tree a branch is an edge: a prefix and its next token. It runs from left to right with its depth, is as wide as
the number of hypotheses that take it, and has the colour of the entropy at the prefix it leaves. At a fork the branch
that most hypotheses take goes straight on, so the first row is the model's main reading and the others hang below.
Columns without a fork are narrow unless there is room: a long trunk takes little space, and its label is shortened.

Colours are the classes e0 … e6 (en: unknown), for the style sheet of the page to fill in.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from sharpen.method.tree import HypothesisTree

LEVELS = (0.05, 0.2, 0.5, 1.0, 2.0, 3.0)  # nats: where the next colour begins

TRUNK = 20.0  # px: width of a branch that all hypotheses take
ROW = 17.0  # px between two rows: a line of text
FORK = 16.0  # px in which a branch swings to its row
ROOM = 830.0  # px that the columns may fill where their text asks for it
NARROW = (4.0, 13.0)  # px of a column without a fork: at least, at most
CHARACTER = 6.3  # px, of 11 px text, on the generous side
MARGIN = 84.0  # px at the right for the probability of a hypothesis

Decode = Callable[[Sequence[int]], str]


def level(entropy: float) -> str:
    """The colour class of an entropy in nats."""
    return "en" if math.isnan(entropy) else f"e{bisect_right(LEVELS, entropy)}"


def columns(text: str) -> int:
    """How many columns the text takes in a fixed-width font: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def percent(logprob: float) -> str:
    """A log-probability for people; what is not known is left empty."""
    if math.isnan(logprob):
        return ""
    p = 100 * math.exp(logprob)
    return f"{p:.0f} %" if p >= 9.5 else f"{p:.1g} %" if p >= 1e-4 else "< 0.0001 %"


@dataclass(frozen=True)
class Branch:
    """An edge of the tree as it is drawn."""

    node: int  # the prefix it leaves
    token: int
    depth: int
    count: int  # hypotheses that take it
    logprob: float  # of the token
    entropy: float  # at the prefix
    child: int | None  # the prefix it leads to, if any hypothesis goes on
    total: float  # log pi of the hypothesis that ends with it, NaN where it does not end one
    finished: bool  # it is an EOS


def branches(tree: HypothesisTree) -> dict[int, list[Branch]]:
    """The edges that leave each prefix, the most used first."""
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
    found: dict[int, list[Branch]] = {}
    for (node, token), count in counts.items():
        edge = node, token
        total, finished = ends.get(edge, (math.nan, False))
        found.setdefault(node, []).append(
            Branch(
                node,
                token,
                tree.depths[node],
                count,
                logprobs[edge],
                tree.entropies[node],
                onward.get(edge),
                total,
                finished,
            )
        )
    return {node: sorted(leaving, key=lambda b: -b.count) for node, leaving in found.items()}  # stable: search order


@dataclass(frozen=True, eq=False)
class _Layout:
    """Where everything stands, in px."""

    leaving: dict[int, list[Branch]]
    rows: dict[Branch, int]
    tops: list[float]  # of each row: the upper edge of its branches, whatever their width
    x: list[float]  # where the tokens of each depth begin, and where the last ends
    unit: float  # width of one hypothesis
    decode: Decode

    def middle(self, b: Branch) -> float:
        return self.tops[self.rows[b]] + b.count * self.unit / 2


def tree_svg(tree: HypothesisTree, decode: Decode, title: str) -> str:
    """The tree of one step."""
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
    at = _Layout(leaving, rows, tops, _columns(leaving, unit, decode), unit, decode)
    width, height = at.x[-1] + MARGIN, tops[-1] - ROW + 8
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
        f'<svg class="tree" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}"><title>{escape(title)}</title><desc>{escape(about)}</desc>'
        f"{''.join(body)}</svg>"
    )


def _rows(leaving: dict[int, list[Branch]]) -> dict[Branch, int]:
    """The row of each branch: the first to leave a prefix stays, the others follow below all that hangs on it."""
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
        if kept is None:  # its turn comes only when everything above it has its rows
            kept, free = free, free + 1
        rows[branch] = row = kept
        node = branch.child


def _columns(leaving: dict[int, list[Branch]], unit: float, decode: Decode) -> list[float]:
    """The x of each depth: text at a fork is legible, the rest shares the room that is left."""
    depth = 1 + max(b.depth for bs in leaving.values() for b in bs)
    narrow = min(NARROW[1], max(NARROW[0], ROOM / 2 / depth))
    least, full = [narrow] * depth, [narrow] * depth
    for bs in leaving.values():
        for b in bs:
            text = 0.0 if b.finished else CHARACTER * min(16, columns(decode([b.token]))) + 4
            swing = FORK + b.count * unit / 2 if len(bs) > 1 else 0.0
            full[b.depth] = max(full[b.depth], swing + text)
            if len(bs) > 1:
                least[b.depth] = max(least[b.depth], swing + text)
    missing = sum(full) - sum(least)
    share = min(1.0, max(0.0, ROOM - sum(least)) / missing) if missing else 0.0
    x = [1.0]
    for low, high in zip(least, full, strict=True):
        x.append(x[-1] + low + share * (high - low))
    return x


def _chains(leaving: dict[int, list[Branch]]) -> list[list[Branch]]:
    """The stretches between forks, each of which carries one label."""
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
    y, x0, x1 = at.middle(b), at.x[b.depth], at.x[b.depth + 1] + 0.4  # a hair longer, so that no seam shows
    if siblings[0] is b:
        d = f"M{x0:.1f} {y:.1f}H{x1:.1f}"
    else:  # it leaves where it lay in the common trunk, below its more used siblings
        above = sum(s.count for s in siblings[: siblings.index(b)])
        start = at.tops[at.rows[siblings[0]]] + (above + b.count / 2) * at.unit
        bend = x0 + FORK / 2
        d = f"M{x0:.1f} {start:.1f}C{bend:.1f} {start:.1f} {bend:.1f} {y:.1f} {x0 + FORK:.1f} {y:.1f}H{x1:.1f}"
    facts = ["end" if b.finished else f"“{at.decode([b.token])}”"]
    facts.append(f"{b.count} of {sum(s.count for s in at.leaving[0])} hypotheses")
    facts += [f"probability {percent(b.logprob)}"] if percent(b.logprob) else []
    facts += [] if math.isnan(b.entropy) else [f"entropy {b.entropy:.2f} nats"]
    return (
        f'<path class="b {level(b.entropy)}" d="{d}" stroke-width="{b.count * at.unit:.3g}">'
        f"<title>{escape(' · '.join(facts))}</title></path>"
    )


def _end(at: _Layout, b: Branch) -> str:
    """How a hypothesis ends: a dot for EOS, an open one for the length limit; then how probable and how often."""
    x, y, r = at.x[b.depth + 1], at.middle(b), max(2.5, b.count * at.unit / 2)
    words = " ".join(word for word in (percent(b.total), f"×{b.count}" if b.count > 1 else "") if word)
    kind = "dot" if b.finished else "dot cut"
    text = f'<text class="p" x="{x + r + 5:.1f}" y="{y + 3.5:.1f}">{escape(words)}</text>' if words else ""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>{text}'


def _label(at: _Layout, chain: list[Branch]) -> str:
    """The text of a stretch above it, as far as it fits."""
    first, last = chain[0], chain[-1]
    swings = at.leaving[first.node][0] is not first
    x = at.x[first.depth] + (FORK + first.count * at.unit / 2 if swings else 2)
    whole = at.decode([b.token for b in chain if not b.finished]).strip()
    text = fit(whole, int((at.x[last.depth + 1] - x) / CHARACTER), ends=last.child is None)
    return f'<text x="{x:.1f}" y="{at.tops[at.rows[first]] - 3.5:.1f}">{escape(text)}</text>' if text else ""


def fit(text: str, room: int, *, ends: bool) -> str:
    """The text in at most `room` columns: its middle gives way, or its end where nothing follows."""
    if columns(text) <= room:
        return text
    if room < 3:
        return ""
    head = room - 1 if ends else room // 2
    start, stop = "", ""
    while columns(start + text[len(start)]) <= head:
        start += text[len(start)]
    while columns(start + stop) + 1 < room and columns(start + stop + text[-len(stop) - 1]) < room:
        stop = text[-len(stop) - 1 :]
    return f"{start.rstrip()}…{stop.lstrip()}"


def curve_svg(H_tok: Sequence[float], H_seq: Sequence[float]) -> str:
    """Both entropies over the updates, first and last value written out."""
    width, height, left, right, top, bottom = 380.0, 205.0, 34.0, 96.0, 14.0, 42.0
    n = len(H_tok)
    peak = max([v for v in (*H_tok, *H_seq) if math.isfinite(v)], default=0.0) or 1.0
    step = next(s for s in (m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5)) if peak / s <= 4)
    highest = step * math.ceil(peak / step)

    def place(i: int, value: float) -> tuple[float, float]:
        across = i / (n - 1) if n > 1 else 0.5
        return left + across * (width - left - right), top + (1 - value / highest) * (height - top - bottom)

    parts = []
    for k in range(round(highest / step) + 1):
        y = place(0, k * step)[1]
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width - right}"/>')
        parts.append(f'<text class="p" text-anchor="end" x="{left - 5}" y="{y + 3.5:.1f}">{k * step:g}</text>')
    for i in sorted({0, n // 2, n - 1} if n > 5 else {0, n - 1}):
        parts.append(f'<text class="p" text-anchor="middle" x="{place(i, 0)[0]:.1f}" y="{height - 23}">{i}</text>')
    middle = (left + width - right) / 2
    parts.append(f'<text class="p" text-anchor="middle" x="{middle}" y="{height - 5}">updates made</text>')
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
        f'<svg class="curve" role="img" viewBox="0 0 {width:.0f} {height:.0f}"><title>Entropy over the updates</title>'
        f"<desc>{about}</desc>{''.join(parts)}</svg>"
    )
