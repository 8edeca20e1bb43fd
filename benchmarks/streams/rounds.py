"""Replicas and containers that print rounds of lines (`printer.py`), and what their logs have of them."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.service import Service, cpu_s, running
from benchmarks.tools import engine, wait_for

if TYPE_CHECKING:
    from beds.engines import Engine

JOB = "printing"
_DAEMONS = ("dockerd", "containerd", "containerd-shim")
_MODULES = Path(__file__).parent
_MISSING = "The lines do not arrive."
_SETTLED_S = 1.0


class Rounds:
    """The rounds of the programs that wait in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._next = 0
        directory.mkdir()

    def begin(self, lines: int, rate: float = 0, kind: str = "mixed") -> None:
        """Let each program print so many lines."""
        fresh = self.directory / "fresh"
        fresh.write_text(f"{lines} {rate} {kind}")
        fresh.rename(self.directory / f"round-{self._next}")
        self._next += 1


class PrintingJob:
    """A job whose replicas print."""

    def __init__(self, service: Service, rounds: Rounds, replicas: int) -> None:
        self.service = service
        self.cpu_s = service.cpu_s
        self.rounds = rounds
        module = f"import sys; sys.path.insert(0, {str(_MODULES)!r}); import printer"
        service.run(JOB, f"{module}; printer.main({str(rounds.directory)!r})", replicas)
        self._replicas = replicas

    def print_lines(self, lines: int, kind: str = "mixed") -> float:
        """Let each replica print so many lines; seconds until the server has the last of them."""
        before = -1
        while (now := self.service.lines(JOB)) != before:  # the service writes lines of its own
            before = now
            time.sleep(_SETTLED_S)
        began = time.monotonic()
        self.rounds.begin(lines, kind=kind)
        if kind == "random":  # nobody knows how many lines that is
            wait_for(partial(self._is_over, before), _MISSING)
        else:
            wait_for(lambda: self.service.lines(JOB) >= before + lines * self._replicas, _MISSING)
        return time.monotonic() - began

    def _is_over(self, before: int) -> bool:
        """Whether the newest line, behind a number, is the last one of a round."""
        return self.service.lines(JOB) > before + 1 and b'"over"]]' in self.service.end_of_log(JOB)


class PrintingContainers:
    """Containers that print."""

    def __init__(self, stack: ExitStack, engine: "Engine", rounds: Rounds, count: int) -> None:
        self.rounds = rounds
        self._url = engine.url
        self.names = []
        self.logs = []
        for _ in range(count):
            container = engine.client().containers.run(
                engine.base_image,
                ["python3", str(_MODULES / "printer.py"), str(rounds.directory)],
                detach=True,
                network_mode="none",
                volumes={str(path): {"bind": str(path), "mode": "ro"} for path in (_MODULES, rounds.directory)},
            )
            stack.callback(container.remove, force=True)
            self.names.append(str(container.name))
            container.reload()
            self.logs.append(Path(container.attrs["LogPath"]))

    def command(self, *words: str) -> list[str]:
        """A command line of Docker."""
        return ["docker", "-H", self._url, *words]

    def cpu_s(self) -> float:
        """CPU seconds of Docker's daemons so far."""
        daemons = [one for one in psutil.process_iter() if one.name().startswith(_DAEMONS)]
        return sum(map(cpu_s, daemons))

    def print_lines(self, lines: int, files: list[Path] | None = None, kind: str = "mixed") -> float:
        """Let each container print so many lines; seconds until the ends of these files, or of the engine's logs, have
        the last of each."""
        files = files or self.logs
        sizes = {path: path.stat().st_size for path in files}
        time.sleep(_SETTLED_S)
        began = time.monotonic()
        self.rounds.begin(lines, kind=kind)
        for path in files:
            wait_for(partial(_is_over, path, sizes[path]), _MISSING)
        return time.monotonic() - began


def _is_over(path: Path, size: int) -> bool:
    """Whether a file has grown, and ends with the last line of a round."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(size, end - 300))
        return b"over" in file.read()


@contextmanager
def printing_job(replicas: int = 1) -> Iterator[PrintingJob]:
    with running() as service:
        yield PrintingJob(service, Rounds(service.directory / "rounds"), replicas)


@contextmanager
def printing_containers(count: int = 1) -> Iterator[PrintingContainers]:
    with tempfile.TemporaryDirectory() as name, engine() as docker, ExitStack() as stack:
        yield PrintingContainers(stack, docker, Rounds(Path(name) / "rounds"), count)
