"""Measured processes: pinned to cores, read line by line, killed at the end of the measurement."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from benchmarks.tools import wait_for
from trainyard_protocol.net.loopback import free_port

ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 900


class Line(NamedTuple):
    """A line of output, its time (time.perf_counter), and the seconds of CPU that its process had used."""

    at: float
    event: dict[str, Any]
    cpu: float


class Process:
    """`python ARGUMENTS` on some cores; its output is one JSON object per line."""

    def __init__(self, arguments: Sequence[str], cores: Sequence[int], environment: Mapping[str, str]) -> None:
        self.lines: list[Line] = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `__exit__`
        self._command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, *arguments]
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=_environment(environment),
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._times = psutil.Process(self._process.pid)
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
    def progress(self) -> list[Line]:
        """The trainer's lines that say how far it is."""
        return [line for line in list(self.lines) if line.event.get("event") == "progress"]

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def wait_for_lines(self, lines: int) -> None:
        self.wait_for(lambda: len(self.progress) >= lines)

    def wait_for_steps(self, steps: int) -> None:
        self.wait_for(lambda: any(line.event["step"] >= steps for line in self.progress))

    def wait_for(self, enough: Callable[[], object]) -> None:
        """Wait until its output satisfies a condition. Raises RuntimeError if it ended before."""
        wait_for(lambda: bool(enough()) or not self._reader.is_alive(), f"{self._command} timed out.", _PATIENCE_S)
        if not enough():
            self._fail()

    def wait(self) -> None:
        """Wait for its end. Raises RuntimeError if it fails."""
        if self._process.wait():
            self._fail()

    def _fail(self) -> None:
        self._stderr.seek(0)
        end = self._stderr.read()[-2000:].decode(errors="replace")
        raise RuntimeError(f"The process ended: {self._command}\n{end}")

    def _read(self) -> None:
        for text in self._process.stdout or ():
            if text.startswith("{"):
                self.lines.append(Line(time.perf_counter(), json.loads(text), self._cpu()))

    def _cpu(self) -> float:
        try:
            times = self._times.cpu_times()
        except psutil.NoSuchProcess:  # it has ended: these lines are not measured
            return float("nan")
        return times.user + times.system


def tf_configs(number: int) -> list[dict[str, str]]:
    """TF_CONFIG of a chief and a worker on this machine; nothing for a single process."""
    if number == 1:
        return [{}]
    cluster = {task: [f"127.0.0.1:{free_port()}"] for task in ("chief", "worker")}
    configs = [{"cluster": cluster, "task": {"type": task, "index": 0}} for task in cluster]
    return [{"TF_CONFIG": json.dumps(config)} for config in configs]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, without variables that configure JAX or the trainer."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TF_CONFIG", "XLA_FLAGS") and not name.startswith("JAX_")
    }
    return {
        **inherited,
        "PYTHONPATH": f"{ROOT / 'trainer_template'}:{ROOT / 'trainer_library'}",
        "JAX_PLATFORMS": "cpu",
        **more,
    }
