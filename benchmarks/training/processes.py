"""Measured processes: pinned to a core, read line by line, killed at the end of the measurement."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 900


class MeasurementError(Exception):
    """A measured process ended early or timed out."""


class Line(NamedTuple):
    """A line of output and its time (time.perf_counter)."""

    at: float
    event: dict[str, Any]


class Process:
    """`python ARGUMENTS` on one core; its output is one JSON object per line."""

    def __init__(self, arguments: Sequence[str], core: int, environment: Mapping[str, str]) -> None:
        self._lines: list[Line] = []
        self._ended = False
        self._changed = threading.Condition()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `__exit__`
        self._command = ["taskset", "-c", str(core), sys.executable, *arguments]
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=_environment(environment),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._stderr.close()

    @property
    def lines(self) -> list[Line]:
        return list(self._lines)

    @property
    def progress(self) -> list[Line]:
        """The trainer's lines that say how far it is."""
        return [line for line in self.lines if line.event.get("event") == "progress"]

    def wait_for_steps(self, steps: int) -> None:
        self.wait_for(lambda: any(line.event["step"] >= steps for line in self.progress))

    def wait_for(self, enough: Callable[[], object]) -> None:
        """Wait until its output satisfies a condition. Raises MeasurementError if it ended before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or enough(), PATIENCE_S)
        if not enough():
            raise MeasurementError(f"The process ended or timed out: {self._command}\n{self._tail()}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for text in stdout:
                if text.startswith("{"):
                    with self._changed:
                        self._lines.append(Line(time.perf_counter(), json.loads(text)))
                        self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _tail(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()[-2000:].decode(errors="replace")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, without variables that configure JAX or the trainer."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TF_CONFIG", "XLA_FLAGS") and not name.startswith("JAX_")
    }
    return {**inherited, "PYTHONPATH": str(ROOT / "trainer_template"), "JAX_PLATFORMS": "cpu", **more}
