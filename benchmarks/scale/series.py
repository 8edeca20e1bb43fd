"""Measured points, and values between them."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity at several sizes, the smallest first."""

    name: str
    what: str
    axis: str
    unit: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def slope(self) -> float:
        """The growth by each more, between the two largest sizes."""
        return max(0.0, (self.values[-1] - self.values[-2]) / (self.sizes[-1] - self.sizes[-2]))

    def at(self, size: float) -> float:
        """The value between the two nearest points, on a straight line; beyond the last one, along it."""
        if size <= self.sizes[0]:
            return self.values[0]
        right = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[right - 1 : right + 1], self.values[right - 1 : right + 1]
        return max(0.0, y0 + (y1 - y0) * (size - x0) / (x1 - x0))
