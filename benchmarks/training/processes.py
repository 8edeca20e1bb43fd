"""Measured processes: pinned to cores, read line by line, killed at the end of the measurement."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900  # timeout for output of a process, in seconds

FIRST_CORE: tuple[int, ...] = (0,)
SECOND_CORE: tuple[int, ...] = (1,)
BOTH_CORES = FIRST_CORE + SECOND_CORE


class MeasurementError(Exception):
    """A measured process ended early or timed out."""


class Line(NamedTuple):
    """A line of output and its time (time.perf_counter)."""

    at: float
    event: dict[str, Any]


class Process:
    """`python ARGUMENTS` on some cores; its output is one JSON object per line."""

    def __init__(
        self, arguments: Sequence[str], cores: Sequence[int], environment: Mapping[str, str] | None = None
    ) -> None:
        self._lines: list[Line] = []
        self._ended = False
        self._changed = threading.Condition()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `kill`
        self._command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, *arguments]
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=_environment(environment or {}),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def lines(self, event: str | None = None) -> list[Line]:
        return [line for line in list(self._lines) if event is None or line.event.get("event") == event]

    def wait_for(self, enough: Callable[[], object]) -> None:
        """Wait until its output satisfies a condition.

        Raises:
            MeasurementError: it ended before, or the timeout expired.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or enough(), PATIENCE)
        if not enough():
            raise MeasurementError(f"The process ended or timed out: {self._command}\n{self._tail()}")

    def wait_for_event(self, event: str) -> Line:
        self.wait_for(lambda: self.lines(event))
        return self.lines(event)[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._stderr.close()

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


@contextlib.contextmanager
def running(*commands: tuple[Sequence[str], Sequence[int], Mapping[str, str]]) -> Iterator[list[Process]]:
    """Start processes of (arguments, cores, environment); they are killed at the end."""
    processes: list[Process] = []
    try:
        for arguments, cores, environment in commands:
            processes.append(Process(arguments, cores, environment))
        yield processes
    finally:
        for process in processes:
            process.kill()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, without variables that configure JAX or the trainer."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TF_CONFIG", "XLA_FLAGS") and not name.startswith("JAX_")
    }
    return {**inherited, "PYTHONPATH": str(ROOT / "trainer_template"), "JAX_PLATFORMS": "cpu", **more}
