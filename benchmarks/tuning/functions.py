"""Functions to minimize by a study: their parameters, the regret of a point, and the curve of a trial.

The nets are formulas with the shape of a small training: conditional parameters, an optimal learning rate that depends
on others, noise in the metric, and curves that cross, since small learning rates converge late.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Point = Mapping[str, str]
"""The parameters of a trial, as its program gets them."""

_HARTMANN = (  # weight, widths, centers
    (1.0, (10, 3, 17, 3.5, 1.7, 8), (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886)),
    (1.2, (0.05, 10, 17, 0.1, 8, 14), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991)),
    (3.0, (3, 3.5, 1.7, 10, 17, 8), (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650)),
    (3.2, (17, 8, 0.05, 10, 0.1, 14), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381)),
)


@dataclass(frozen=True, slots=True)
class Function:
    """A function: `regret` is the distance of its value from the minimum. `noise`: the standard deviation of what is
    measured. `scale`: what the metric of an untrained trial is worse by. `slowness`: how many times longer than the
    fastest a trial of this point takes to converge."""

    name: str
    params: Sequence[Mapping[str, Any]]
    regret: Callable[[Point], float]
    noise: float = 0.0
    scale: float = 1.0
    slowness: Callable[[Point], float] = lambda _: 1.0

    def curve(self, point: Point, part: float) -> float:
        """The regret of a trial after this part of its steps, 0 to 1, without noise."""
        return self.regret(point) + self.scale * math.exp(-8 * part / self.slowness(point))


def _double(name: str, low: float, high: float, *, log: bool = False, **fields: Any) -> dict[str, Any]:
    scale = "UNIT_LOG_SCALE" if log else "UNIT_LINEAR_SCALE"
    return {"parameterName": name, "type": "DOUBLE", "minValue": low, "maxValue": high, "scaleType": scale, **fields}


def _discrete(name: str, *values: float, **fields: Any) -> dict[str, Any]:
    return {"parameterName": name, "type": "DISCRETE", "discreteValues": values, **fields}


def _choice(name: str, children: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """A CATEGORICAL parameter, and those that exist with each of its values."""
    below = [
        {**child, "parentCategoricalValues": {"values": [value]}}
        for value, specs in children.items()
        for child in specs
    ]
    values = list(children)
    return {"parameterName": name, "type": "CATEGORICAL", "categoricalValues": values, "childParameterSpecs": below}


def _branin(point: Point) -> float:
    x, y = map(float, point.values())
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def _hartmann(point: Point) -> float:
    at = [float(value) for value in point.values()]
    return 3.32237 - sum(
        weight * math.exp(-sum(w * (x - c) ** 2 for w, x, c in zip(widths, at, centers, strict=True)))
        for weight, widths, centers in _HARTMANN
    )


def _quadratic(point: Point) -> float:
    return sum((float(value) - 0.3) ** 2 for value in point.values())


def _decades(point: Point, name: str, optimum: float) -> float:
    """Powers of ten that a parameter is away from its optimum."""
    return math.log10(float(point[name])) - optimum


def _optimizer_net(point: Point) -> float:
    if point["optimizer"] == "sgd":
        momentum = float(point["momentum"])
        off = _decades(point, "learning-rate", -1 + math.log10(1 - momentum))
        regret = 0.02 + 0.1 * (momentum - 0.9) ** 2
    else:
        off = _decades(point, "learning-rate", -2.7)
        regret = 0.01 * _decades(point, "weight-decay", -3.5) ** 2
    capacity = math.log2(float(point["width"])) + math.log2(float(point["layers"]))
    regret += 0.12 * off**2 * (1.6 if off > 0 else 1) + 0.02 * (capacity - 9) ** 2
    return min(regret + 0.4 * (float(point["dropout"]) - max(0.0, 0.08 * (capacity - 6))) ** 2, 2.0)


def _architecture_net(point: Point) -> float:
    kind, batch = point["architecture"], math.log2(float(point["batch-size"])) - 7
    regret, optimum = {"mlp": (0.3, -2.0), "cnn": (0.05, -2.5), "transformer": (0.0, -3.3)}[kind]
    if kind == "cnn":
        regret += 0.0125 * (float(point["kernel"]) - 3) ** 2 + 0.05 * (math.log2(float(point["channels"])) - 6) ** 2
    elif kind == "transformer":
        regret += 0.06 * (math.log2(float(point["heads"])) - 3) ** 2 + 2 * (float(point["warmup"]) - 0.1) ** 2
    off = _decades(point, "learning-rate", optimum + 0.15 * batch)
    return min(regret + 0.15 * off**2 + 0.02 * batch**2, 2.0)


def _late(smallest: float) -> Callable[[Point], float]:
    """Convergence takes longer with each power of ten that the learning rate is below the largest ones."""

    def slowness(point: Point) -> float:
        return 1 + 0.5 * max(0.0, -_decades(point, "learning-rate", smallest))

    return slowness


_RATE = "learning-rate"
FUNCTIONS = (
    Function("Branin", [_double("x", -5, 10), _double("y", 0, 15)], _branin, scale=30.0),
    Function("Hartmann 6", [_double(f"x{number}", 0, 1) for number in range(6)], _hartmann),
    Function("noisy quadratic", [_double(f"x{number}", -1, 1) for number in range(4)], _quadratic, noise=0.1),
    Function(
        "noisy net, optimizers",
        [
            _choice(
                "optimizer",
                {"adam": [_double("weight-decay", 1e-6, 0.1, log=True)], "sgd": [_double("momentum", 0, 0.99)]},
            ),
            _double(_RATE, 1e-5, 1, log=True),
            {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 8},
            _discrete("width", 16, 32, 64, 128, 256, 512),
            _double("dropout", 0, 0.7),
        ],
        _optimizer_net,
        noise=0.03,
        slowness=_late(-2),
    ),
    Function(
        "noisy net, architectures",
        [
            _choice(
                "architecture",
                {
                    "mlp": [],
                    "cnn": [_discrete("kernel", 1, 3, 5, 7), _double("channels", 8, 256, log=True)],
                    "transformer": [_discrete("heads", 1, 2, 4, 8, 16), _double("warmup", 0, 0.5)],
                },
            ),
            _double(_RATE, 1e-6, 0.3, log=True),
            _discrete("batch-size", 32, 64, 128, 256, 512),
        ],
        _architecture_net,
        noise=0.03,
        slowness=_late(-3),
    ),
)
