"""Labels of points in a figure, written where they cover neither each other nor a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ANGLES = np.deg2rad(np.arange(0.0, 360.0, 15.0))
GAPS = (5.0, 9.0, 14.0, 20.0, 27.0, 35.0, 44.0, 54.0, 66.0, 80.0, 96.0, 114.0, 134.0)  # from point to label
MARKER = 5.0  # half the side of the square around a point that labels avoid
PASSES = 4  # a label is placed anew once the others are known
BETWEEN = 2.0  # free space around a label
FAR = 10.0  # a label farther than this from its point has a leader: a line between them
# costs; a distance of one unit costs one
COVERED, CROSSED, TOUCHED = 1_000.0, 60.0, 4.0
UPRIGHT = 25.0  # of a leader that cannot be told from the bar of an interval

Corners = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class PointLabel:
    x: float  # of its point, as y
    y: float
    text: str
    colour: str
    bold: bool = False


def write(
    axes: Any,
    labels: Sequence[PointLabel],
    lines: Sequence[Corners],
    bars: Sequence[Corners],
    *,
    leader: str,
    ground: str,
) -> None:
    """Writes the labels, each beside its point (x, y) or with a line that leads to it; the layout must be final.

    They avoid `lines`, given by their corners, and less so `bars`. `leader` and `ground` are colours: of the lines to
    the labels, and of what is behind them.
    """
    per_point = 72 / axes.figure.dpi  # from pixels to points, which stay the same whatever the resolution of the file

    def at(corners: Corners) -> Array:  # (N, 2), in points
        return np.asarray(axes.transData.transform(list(corners)) * per_point)

    styles = [{"fontsize": 8, "color": one.colour, "weight": "bold" if one.bold else "normal"} for one in labels]
    sizes = []
    for one, style in zip(labels, styles, strict=True):
        measured = axes.text(one.x, one.y, wrapped(one.text), parse_math=False, **style)
        sizes.append(measured.get_window_extent().size * per_point)
        measured.remove()
    points, within = at([(one.x, one.y) for one in labels]), axes.get_window_extent().extents * per_point
    avoided = np.concatenate([_sampled([at(line) for line in lines], 4.0), _sampled([at(bar) for bar in bars], 12.0)])
    corners = place(points, np.array(sizes), within, avoided)
    for one, style, here, size, corner in zip(labels, styles, points, sizes, corners, strict=True):
        nearest = _nearest(here, np.concatenate([corner, corner + size]))
        arrow = {"arrowstyle": "-", "color": leader, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        axes.annotate(
            wrapped(one.text),
            (one.x, one.y),
            xytext=tuple(corner - here),
            textcoords="offset points",
            verticalalignment="bottom",
            arrowprops={**arrow, "relpos": (nearest - corner) / size} if np.hypot(*(nearest - here)) > FAR else None,
            bbox={"facecolor": ground, "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            parse_math=False,
            zorder=5,
            **style,
        )


def wrapped(text: str, most: int = 26) -> str:
    """The text in lines of about that many characters, broken between its parts."""
    lines: list[str] = []
    for part in text.split(" · "):
        if lines and len(lines[-1]) + len(part) + 3 <= most:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return "\n".join(lines)


def place(points: Array, sizes: Array, within: Array, lines: Array) -> Array:
    """The lower left corner of each label, (N, 2), in the units of the arguments; made for points of 1/72 inch.

    `points` (N, 2) are labelled, `sizes` (N, 2) are width and height of the labels, `within` (4,) is the area (left,
    bottom, right, top) that they must not leave, and `lines` (M, 2) are points on lines that they had better not touch.
    Labels are placed in the given order, the earlier ones nearer to their points.
    """
    markers = np.concatenate([points - MARKER, points + MARKER], axis=1)  # (N, 4)
    placed: dict[int, Array] = {}
    for _ in range(PASSES):
        for i in range(len(points)):
            boxes = _candidates(points[i], sizes[i], within)
            others = [placed[j] for j in placed if j != i]
            taken = np.array(others).reshape(-1, 4)
            leaders = np.array([(points[j], _nearest(points[j], placed[j])) for j in placed if j != i])
            cost = _costs(points[i], boxes, taken, leaders.reshape(-1, 2, 2), markers, lines)
            placed[i] = boxes[int(cost.argmin())]
    return np.array([placed[i][:2] for i in range(len(points))]).reshape(-1, 2)


def _candidates(point: Array, size: Array, within: Array) -> Array:
    """Boxes around the point, (C, 4), moved into the area where they would leave it."""
    gaps = np.array(GAPS)[:, None]
    x = point[0] + np.cos(ANGLES) * (size[0] / 2 + gaps)  # (gaps, angles)
    y = point[1] + np.sin(ANGLES) * (size[1] / 2 + gaps)
    low = np.stack([x, y], axis=-1).reshape(-1, 2) - size / 2
    low = np.maximum(np.minimum(low, within[2:] - size), within[:2])
    return np.concatenate([low, low + size], axis=1)


def _costs(point: Array, boxes: Array, taken: Array, leaders: Array, markers: Array, lines: Array) -> Array:
    """(C,): what each candidate costs; `leaders` (L, 2, 2) are the lines from other points to their labels."""
    wide = boxes + np.array([-BETWEEN, -BETWEEN, BETWEEN, BETWEEN])
    covered = _overlaps(wide, taken).sum(1) + _overlaps(wide, markers).sum(1)
    nearest = _nearest(point, boxes)
    own = _along(np.broadcast_to(point, nearest.shape), nearest)  # (C, S, 2)
    others = markers[(np.abs(markers[:, :2] + MARKER - point) > 0.5).any(1)]
    crossed = _holds(np.concatenate([taken, others]), own.reshape(-1, 2)).any(0).reshape(own.shape[:2]).sum(1)
    crossed = crossed + _holds(wide, _along(leaders[:, 0], leaders[:, 1]).reshape(-1, 2)).sum(1)
    crossed = crossed + _cross(point, nearest, leaders).sum(1)
    across, up = np.abs(nearest - point).T
    distance = np.hypot(across, up)
    upright = (distance > FAR) & (across < up / 5)
    touched = _holds(wide, lines).sum(1)
    return np.asarray(COVERED * covered + CROSSED * crossed + TOUCHED * touched + UPRIGHT * upright + distance)


def _nearest(point: Array, boxes: Array) -> Array:
    """(…, 4) -> (…, 2): where a box is nearest to the point."""
    return np.clip(point, boxes[..., :2], boxes[..., 2:])


def _along(a: Array, b: Array, parts: int = 12) -> Array:
    """(N, 2), (N, 2) -> (N, parts - 1, 2): points between a and b."""
    t = np.arange(1, parts)[:, None] / parts
    return np.asarray(a[:, None] + t * (b - a)[:, None])


def _cross(point: Array, ends: Array, leaders: Array) -> Mask:
    """(C, 2), (L, 2, 2) -> (C, L): whether the line from the point to an end crosses a leader."""

    def side(a: Array, b: Array, c: Array) -> Array:
        """On which side of the line from a to b the point c is: the sign of a cross product."""
        u, v = b - a, c - a
        return np.asarray(u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])

    q, a, b = ends[:, None], leaders[None, :, 0], leaders[None, :, 1]
    return np.asarray((side(point, q, a) * side(point, q, b) < 0) & (side(a, b, point) * side(a, b, q) < 0))


def _overlaps(a: Array, b: Array) -> Mask:
    """(A, 4), (B, 4) -> (A, B): whether two boxes overlap."""
    a, b = a[:, None], b[None]
    return np.asarray(((a[..., :2] < b[..., 2:]) & (b[..., :2] < a[..., 2:])).all(-1))


def _holds(boxes: Array, points: Array) -> Mask:
    """(B, 4), (P, 2) -> (B, P): whether a box holds a point."""
    boxes, points = boxes[:, None], points[None]
    return np.asarray(((boxes[..., :2] < points) & (points < boxes[..., 2:])).all(-1))


def _sampled(corners: Sequence[Array], every: float) -> Array:
    """Points along polylines, each of whose corners are (K, 2), about `every` apart: (M, 2)."""
    found = [np.zeros((0, 2))]
    for line in corners:
        for a, b in pairwise(line):
            steps = max(2, int(np.linalg.norm(b - a) / every) + 1)
            found.append(a + np.linspace(0.0, 1.0, steps)[:, None] * (b - a))
    return np.concatenate(found)
