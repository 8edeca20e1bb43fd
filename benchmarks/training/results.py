"""Results as Markdown tables and as JSON."""

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
    """A ratio of two medians, and the range of the ratios of the rounds."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(above: Sequence[float], below: Sequence[float], by: float = 1.0) -> Ratio:
    """above / (by * below); elements of the same index were measured consecutively."""
    rounds = [a / (by * b) for a, b in zip(above, below, strict=True)]
    return Ratio(statistics.median(above) / (by * statistics.median(below)), min(rounds), max(rounds))


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """One measurement. A row maps column names to a Ratio, a number or a text."""

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


def log_progress(text: str) -> None:
    """Write a progress message to stderr."""
    print(f"... {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """The hardware and software of the measurement."""
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
    """One line; `load` is the load average of the minute before the measurements."""
    return ", ".join(f"{name} {value}" for name, value in facts.items()) + "\n"


def _cell(value: Any) -> str:
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
