"""Points of a curve in the view box of an SVG. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """A view box that shows x from `left` to `right` and y from `bottom` to `top`, with a margin above and below."""

    width: float
    height: float
    left: float
    right: float
    bottom: float
    top: float
    margin: float = 0.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point. A range without extent has its points at its left, at its bottom."""
        across = (x - self.left) / ((self.right - self.left) or 1.0)
        up = (y - self.bottom) / ((self.top - self.bottom) or 1.0)
        return across * self.width, self.height - self.margin - up * (self.height - 2 * self.margin)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        """The line through the points, as the attribute `d` of a path."""
        return path(self.at(x, y) for x, y in points)


def path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
