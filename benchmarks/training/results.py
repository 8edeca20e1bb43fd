"""What was measured, as tables for reading and as data."""

import dataclasses
import os
import platform
import re
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Of two medians, and between which values it lay from round to round."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(above: Sequence[float], below: Sequence[float], by: float = 1.0) -> Ratio:
    """above / (by * below); what stands at the same place was measured one right after the other."""
    rounds = [a / (by * b) for a, b in zip(above, below, strict=True)]
    return Ratio(statistics.median(above) / (by * statistics.median(below)), min(rounds), max(rounds))


@dataclasses.dataclass(frozen=True)
class Table:
    """One measurement. A row maps a column's name to a Ratio, a number or a text."""

    title: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    remark: str

    def markdown(self) -> str:
        lines = [
            f"## {self.title}",
            "",
            "| " + " | ".join(self.columns) + " |",
            "|---" * len(self.columns) + "|",
        ]
        lines += [
            "| " + " | ".join(_cell(row[column]) for column in self.columns) + " |" for row in self.rows
        ]
        return "\n".join([*lines, "", self.remark, ""])


def say(text: str) -> None:
    """How far it is, for whoever waits."""
    print(f"... {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else []
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "cores": os.cpu_count(),
        "cpu": models[0] if models else platform.processor(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "load": round(os.getloadavg()[0], 2),
    }


def machine_markdown(facts: dict[str, Any]) -> str:
    """One line; the load is that of everything on the machine in the minute before the first measurement."""
    return ", ".join(f"{name} {value}" for name, value in facts.items()) + "\n"


def _cell(value: Any) -> str:
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
