"""Replicas and containers that print rounds of lines (`printer.py`), and what their logs have of them."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.jobs import tools
from benchmarks.local_service import BenchmarkError, LocalService, local_service

if TYPE_CHECKING:
    from beds import engines

JOB = "printing"
_DAEMONS = ("dockerd", "containerd", "containerd-shim")
_MODULES = Path(__file__).parent
_PATIENCE_S = 300.0
_PAUSE_S = 0.02
_SETTLED_S = 1.0


class Rounds:
    """The rounds of the programs that wait in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._next = 0
        directory.mkdir()

    def begin(self, lines: int, rate: float = 0) -> None:
        """Let each program print so many lines."""
        fresh = self.directory / "fresh"
        fresh.write_text(f"{lines} {rate}")
        fresh.rename(self.directory / f"round-{self._next}")
        self._next += 1


class PrintingJob:
    """A job whose replicas print."""

    def __init__(self, service: LocalService, rounds: Rounds, replicas: int) -> None:
        self.service = service
        self.rounds = rounds
        service.submit(JOB, "printer", [str(rounds.directory)], replicas)
        wait_for(lambda: service.lines(JOB) > 0)
        self._replicas = replicas

    def print_lines(self, lines: int) -> float:
        """Let each replica print so many lines; seconds until the server has all of them."""
        before = -1
        while (now := self.service.lines(JOB)) != before:  # the service writes lines of its own
            before = now
            time.sleep(_SETTLED_S)
        began = time.monotonic()
        self.rounds.begin(lines)
        wait_for(lambda: self.service.lines(JOB) >= before + lines * self._replicas)
        return time.monotonic() - began


class PrintingContainers:
    """Containers that print."""

    def __init__(self, stack: ExitStack, engine: "engines.Engine", rounds: Rounds, count: int) -> None:
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
                volumes={
                    str(path): {"bind": str(path), "mode": "ro"} for path in (_MODULES, rounds.directory)
                },
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
        return sum(sum(daemon.cpu_times()[:2]) for daemon in daemons)

    def print_lines(self, lines: int, files: list[Path] | None = None) -> float:
        """Let each container print so many lines; seconds until the ends of these files, or of the engine's logs, have
        the last of each."""
        files = files or self.logs
        sizes = {path: path.stat().st_size for path in files}
        time.sleep(_SETTLED_S)
        began = time.monotonic()
        self.rounds.begin(lines)
        for path in files:
            wait_for(lambda path=path, size=sizes[path]: _is_over(path, size))  # type: ignore[misc]
        return time.monotonic() - began


def _is_over(path: Path, size: int) -> bool:
    """Whether a file has grown, and ends with the last line of a round."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(size, end - 300))
        return b"over" in file.read()


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise BenchmarkError("The lines do not arrive.")
        time.sleep(_PAUSE_S)


@contextmanager
def printing_job(replicas: int = 1) -> Iterator[PrintingJob]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        service = stack.enter_context(local_service(Path(name), _MODULES))
        yield PrintingJob(service, Rounds(Path(name) / "rounds"), replicas)


@contextmanager
def printing_containers(count: int = 1) -> Iterator[PrintingContainers]:
    with tempfile.TemporaryDirectory() as name, tools.engine() as engine, ExitStack() as stack:
        yield PrintingContainers(stack, engine, Rounds(Path(name) / "rounds"), count)
