"""Power laws through measured points, and values between the points."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """`factor * size ** exponent`. `residual`: the largest deviation of a point, as a ratio of at least 1."""

    factor: float
    exponent: float
    residual: float

    def at(self, size: float) -> float:
        return float(self.factor * size**self.exponent)


def power_law(sizes: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """The least squares line through the logarithms. Needs two sizes and positive values."""
    if len(set(sizes)) < 2 or min(*sizes, *values) <= 0:
        raise ValueError("A power law needs at least two different sizes, and positive sizes and values.")
    xs, ys = [math.log(size) for size in sizes], [math.log(value) for value in values]
    middle_x, middle_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - middle_x) ** 2 for x in xs)
    exponent = math.fsum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread
    offset = middle_y - exponent * middle_x
    worst = max(abs(y - offset - exponent * x) for x, y in zip(xs, ys, strict=True))
    return PowerLaw(math.exp(offset), exponent, math.exp(worst))


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
    def law(self) -> PowerLaw | None:
        """The law through all points; None where a value is 0."""
        return power_law(self.sizes, self.values) if min(self.values) > 0 else None

    @property
    def last_exponent(self) -> float | None:
        """The exponent between the two largest sizes: what remains once the constant part is small."""
        law = power_law(self.sizes[-2:], self.values[-2:]) if min(self.values[-2:]) > 0 else None
        return law.exponent if law is not None else None

    def at(self, size: float) -> float:
        """The value between the two nearest points, on a straight line; beyond the last one, along it."""
        if size <= self.sizes[0]:
            return self.values[0]
        right = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
        (x0, x1), (y0, y1) = self.sizes[right - 1 : right + 1], self.values[right - 1 : right + 1]
        return max(0.0, y0 + (y1 - y0) * (size - x0) / (x1 - x0))
