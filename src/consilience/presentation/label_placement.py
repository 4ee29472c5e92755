"""Places labels beside points so that they do not overlap, at several widths of a chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

Place = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""

_NEAR = (12, 18, 25)  # pixels from a point to the center of its label
_ROUND = (0, -45, 45, -90, 90, -135, 135, 180)  # degrees: right is preferred, then above
_POINT = 5  # radius of a point in pixels


def place_labels(points: Sequence[Place], sizes: Sequence[Place], word: Place) -> list[Place]:
    """The offset of each label's center from its point, in pixels right and down, for all sizes of a chart.

    points: as shares of the chart's width and height, from the top left. sizes: in which the chart may be drawn. word:
    width and height of the longest label. Each label takes the nearest offset with the least overlap.
    """
    return _place(points, sizes, [word] * len(points), lambda _: _offsets())


def place_names(
    points: Sequence[Place], sizes: Sequence[Place], words: Sequence[Place], taken: Sequence[Box] = ()
) -> list[Place]:
    """Like `place_labels`, for names of different widths; taken: boxes of other text, in pixels from the top left."""
    return _place(points, sizes, words, _beside, taken)


def text_width(text: str) -> float:
    """About how many pixels a text takes in a chart."""
    return 6.4 * len(text) + 4


def _place(
    points: Sequence[Place],
    sizes: Sequence[Place],
    words: Sequence[Place],
    offsets: Callable[[Place], Iterator[Place]],
    taken: Sequence[Box] = (),
) -> list[Place]:
    """offsets: those to try for a label of this size, the nearest first."""
    charts = [[(x * width, y * height) for x, y in points] for width, height in sizes]
    boxes = [[*taken, *(_around(place, (2 * _POINT, 2 * _POINT)) for place in chart)] for chart in charts]
    found = []
    for i, word in enumerate(words):
        best = min(offsets(word), key=lambda off: _covered(off, i, charts, boxes, sizes, word))
        for chart, there in zip(charts, boxes, strict=True):
            there.append(_around(_moved(chart[i], best), word))
        found.append(best)
    return found


def _beside(word: Place) -> Iterator[Place]:
    """Offsets of a name of this size: right, left, above and below its point, then diagonal, then farther."""
    wide, high = word[0] / 2, word[1] / 2
    for far in (0, 7, 14, 22):
        yield from ((wide + 8, -far), (wide + 8, far), (-wide - 8, -far), (-wide - 8, far))
        yield from ((0, -high - 7 - far), (0, high + 7 + far))


def _offsets() -> Iterator[Place]:
    for far in _NEAR:
        for angle in _ROUND:
            yield round(far * math.cos(math.radians(angle)), 1), round(far * math.sin(math.radians(angle)), 1)


def _covered(
    off: Place,
    which: int,
    charts: Sequence[Sequence[Place]],
    taken: Sequence[Sequence[Box]],
    sizes: Sequence[Place],
    word: Place,
) -> float:
    """The overlap of a label with points, labels and the outside, in pixels, over all sizes of the chart."""
    total = 0.0
    for chart, there, (width, height) in zip(charts, taken, sizes, strict=True):
        box = _around(_moved(chart[which], off), word)
        inside = _shared(box, (0, 0, width, height))
        total += word[0] * word[1] - inside + sum(_shared(box, other) for other in there)
    return round(total, 3)  # ignore rounding, so that the nearer offset wins a tie


def _moved(place: Place, off: Place) -> Place:
    return place[0] + off[0], place[1] + off[1]


def _around(place: Place, size: Place) -> Box:
    (x, y), (width, height) = place, size
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _shared(one: Box, other: Box) -> float:
    """The area of the intersection of two boxes."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)
