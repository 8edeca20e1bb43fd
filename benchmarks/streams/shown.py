"""From print to reader: the 99th percentile of the lines that a program prints at a steady rate."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks.local_service import BenchmarkError
from benchmarks.rows import Row, Samples
from benchmarks.streams.rounds import JOB, printing_containers, printing_job

_RATE = 1000


class _Reader:
    """A command that follows a log."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self._lines = process.stdout

    def delays_s(self) -> list[float]:
        """Delays of the lines of a round, up to its last one."""
        delays: list[float] = []
        for line in self._lines:
            now = time.monotonic()
            text = line.rstrip()
            if text.endswith(b"over"):
                return delays
            if b" @" in text:
                delays.append(now - float(text.rpartition(b"@")[2]))
        raise BenchmarkError("The reader has ended.")


@contextmanager
def _reader(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[_Reader]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables
    ) as process:
        try:
            yield _Reader(process)
        finally:
            process.kill()


def _p99(delays: list[float]) -> float:
    return sorted(delays)[len(delays) * 99 // 100]


def _shown(quick: bool) -> Samples:
    seconds, rounds = (5, 2) if quick else (8, 3)
    samples = Samples([], [], "s")
    with printing_containers() as containers, printing_job() as job:
        ours = [sys.executable, "-m", "trainyard_cli", "jobs", "stream-logs", JOB]
        docker = containers.command("logs", "-f", containers.names[0])
        with _reader(ours, job.service.environment) as shown, _reader(docker) as other:
            for _ in range(rounds):
                job.rounds.begin(_RATE * seconds, _RATE)
                samples.measured.append(_p99(shown.delays_s()))
                containers.rounds.begin(_RATE * seconds, _RATE)
                samples.against.append(_p99(other.delays_s()))
    return samples


ROWS = (
    Row(
        "logs-shown",
        "from print to `stream-logs`, 1,000 lines per second: 99th percentile",
        "`docker logs -f`",
        0.3,
        _shown,
        bound="the agent looks for lines ten times a second",
        is_figure=True,
    ),
)
