"""Lines of a picture: the few of many that are shown, and places for their names clear of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_LINES = 5


def shown_lines(
    values: Mapping[str, ArrayLike], chosen: Sequence[str] | None = None, *, known: str = "lru"
) -> list[str]:
    """Return up to five names, those with the smallest sums first.

    ``chosen``, if given; else the smallest, ``known``, and those whose sums differ most from them.
    """
    sums = {name: float(np.sum(value)) for name, value in values.items()}
    ranked = sorted(sums, key=lambda name: (sums[name], name))
    if chosen:
        return [name for name in ranked if name in chosen][:MOST_LINES]
    if len(ranked) <= MOST_LINES:
        return ranked
    kept = [ranked[0], *([known] if known in ranked[1:] else [])]
    while len(kept) < MOST_LINES:
        left = [name for name in ranked if name not in kept]
        kept.append(max(left, key=lambda name: min(abs(sums[name] - sums[one]) for one in kept)))
    return [name for name in ranked if name in kept]


Array = NDArray[np.float64]

SAME = 0.035
"""Lines that are nowhere further apart than this share of the height have one label."""
GAP = 0.02
NEAR = 0.15


@dataclass(frozen=True)
class TextSize:
    """Of a text, in shares of the drawn area."""

    character: float = 0.0225
    """Width; the default is that of 12 px text on a phone."""
    line: float = 0.085
    """Height."""


@dataclass(frozen=True)
class Box:
    """A rectangle, in shares of the drawn area."""

    left: float
    right: float
    bottom: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Return whether both cover some place."""
        aside = self.right <= other.left or other.right <= self.left
        return not (aside or self.top <= other.bottom or other.top <= self.bottom)


@dataclass(frozen=True)
class LineLabel:
    """Names beside a line, or beside several that lie together; places in shares of the drawn area."""

    names: tuple[str, ...]
    box: Box

    @property
    def x(self) -> float:
        """The middle of the text, 0 (left) to 1."""
        return (self.box.left + self.box.right) / 2

    @property
    def y(self) -> float:
        """The middle of the text, 0 (bottom) to 1."""
        return (self.box.bottom + self.box.top) / 2


def place_labels(
    x: ArrayLike,
    lines: Mapping[str, ArrayLike],
    texts: Mapping[str, str],
    *,
    size: TextSize | None = None,
    taken: Sequence[Box] = (),
) -> list[LineLabel]:
    """Return a label for each line, or group of lines that lie together.

    Parameters
    ----------
    x
        Rising, shape (points,), in shares of the width.
    lines
        Per name, most important first, the heights in shares of the drawn area, shape (points,).
    texts
        Per name what is written; lines without are kept clear, and have no label.
    taken
        Places of other texts and marks; they may lie above the drawn area.
    """
    across = np.asarray(x, np.float64)
    heights = {name: np.asarray(line, np.float64) for name, line in lines.items()}
    size = size or TextSize()
    occupied = list(taken)
    found = []
    for group in _groups({name: heights[name] for name in texts}):
        text = ", ".join(texts[name] for name in group)
        own = [heights[name] for name in group]
        # A line that lies on this one is no obstacle: nothing could be written beside either.
        others = [heights[name] for name in heights if name not in group and not _close(heights[name], own)]
        box = _best(across, own, others, (text, size), occupied)
        occupied.append(box)
        found.append(LineLabel(group, box))
    return found


def _groups(lines: Mapping[str, Array]) -> list[tuple[str, ...]]:
    groups: list[list[str]] = []
    for name, line in lines.items():
        for group in groups:
            if _close(line, [lines[one] for one in group]):
                group.append(name)
                break
        else:
            groups.append([name])
    return [tuple(group) for group in groups]


def _close(line: Array, others: Sequence[Array]) -> bool:
    return all(float(np.abs(line - one).max(initial=0)) <= SAME for one in others)


def _best(
    x: Array, own: Sequence[Array], others: Sequence[Array], text: tuple[str, TextSize], taken: Sequence[Box]
) -> Box:
    words, size = text
    width, height = min((len(words) + 1.5) * size.character, 0.96), size.line
    boxes = list(_candidates(x, own, width, height))
    costs = [_cost(box, x, own, others, taken) for box in boxes]
    return boxes[int(np.argmin(costs))]


def _candidates(x: Array, own: Sequence[Array], width: float, height: float) -> Iterator[Box]:
    for left in np.linspace(0.01, max(0.99 - width, 0.01), 40).tolist():
        within = np.linspace(left, left + width, 9)
        tops = [np.interp(within, x, line) for line in own]
        above, below = float(np.max(tops)) + GAP, float(np.min(tops)) - GAP
        yield Box(left, left + width, above, above + height)
        yield Box(left, left + width, below - height, below)


def _cost(box: Box, x: Array, own: Sequence[Array], others: Sequence[Array], taken: Sequence[Box]) -> float:
    within = np.linspace(box.left, box.right, 9)
    cost = 20.0 * (box.bottom < 0) + 20.0 * (box.top > 1)
    cost += 10.0 * sum(box.overlaps(other) for other in taken)
    middle = (box.bottom + box.top) / 2
    cost += float(np.abs(np.interp(within, x, own[0]) - middle).max())
    cost += 6.0 * float(((within < x[0]) | (within > x[-1])).mean())  # where the line itself is not
    nearest = NEAR
    for line in others:
        heights = np.interp(within, x, line)
        crossed = (heights > box.bottom - GAP / 2) & (heights < box.top + GAP / 2)
        cost += 6.0 * float(crossed.mean())
        nearest = min(nearest, float(np.abs(heights - middle).min()))
    return cost - 2.0 * nearest
