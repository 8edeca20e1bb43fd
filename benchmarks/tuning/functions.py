"""Functions with a known minimum: Branin, Hartmann in six dimensions, and a quadratic that is measured with noise."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainyard_protocol.job.hyperparameters import HyperparameterSpec

_HARTMANN_WEIGHTS = (1.0, 1.2, 3.0, 3.2)
_HARTMANN_WIDTHS = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
_HARTMANN_CENTERS = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)
_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class TestFunction:
    """A function to minimize. `bounds`: of each of its parameters."""

    __test__ = False  # no test, whatever pytest makes of the name

    name: str
    bounds: Sequence[tuple[float, float]]
    value: Callable[[Sequence[float]], float]
    minimum: float
    noise: float = 0.0

    def spec(self, algorithm: str, trials: int) -> HyperparameterSpec:
        params = [
            {
                "parameterName": f"x{number}",
                "type": "DOUBLE",
                "minValue": low,
                "maxValue": high,
                "scaleType": "UNIT_LINEAR_SCALE",
            }
            for number, (low, high) in enumerate(self.bounds)
        ]
        return HyperparameterSpec.model_validate(
            {"goal": "MINIMIZE", "params": params, "algorithm": algorithm, "maxTrials": trials}
        )

    def regret(self, point: Sequence[float]) -> float:
        """Distance to the minimum, without noise."""
        return self.value(point) - self.minimum

    def measured(self, point: Sequence[float], noise: random.Random) -> float:
        return self.value(point) + (noise.gauss(0, self.noise) if self.noise else 0.0)


def _branin(point: Sequence[float]) -> float:
    x, y = point
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def _hartmann(point: Sequence[float]) -> float:
    return -sum(
        weight * math.exp(-sum(w * (x - c) ** 2 for w, x, c in zip(widths, point, centers, strict=True)))
        for weight, widths, centers in zip(
            _HARTMANN_WEIGHTS, _HARTMANN_WIDTHS, _HARTMANN_CENTERS, strict=True
        )
    )


def _quadratic(point: Sequence[float]) -> float:
    return sum((x - 0.3) ** 2 for x in point)


FUNCTIONS = (
    TestFunction("Branin", ((-5, 10), (0, 15)), _branin, 0.397887),
    TestFunction("Hartmann 6", ((0, 1),) * 6, _hartmann, -3.32237),
    TestFunction("noisy quadratic", ((-1, 1),) * 4, _quadratic, 0.0, _NOISE),
)
