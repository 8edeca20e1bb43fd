"""From print to reader: the 99th percentile of the lines that a program prints at a steady rate."""

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from benchmarks.rows import Row, Samples
from benchmarks.service import TRAINYARD
from benchmarks.streams.rounds import JOB, printing_containers, printing_job

_RATE = 1000


@contextmanager
def _reader(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[Callable[[], float]]:
    """A command that follows a log: what it returns waits for a round."""
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables)
    with reader:
        try:
            yield lambda: _delay_s(reader.stdout or ())
        finally:
            reader.kill()


def _delay_s(lines: Iterable[bytes]) -> float:
    """The 99th percentile of the delays of the lines of a round, up to its last one."""
    delays: list[float] = []
    for line in lines:
        now = time.monotonic()
        text = line.rstrip()
        if text.endswith(b"over"):
            return sorted(delays)[len(delays) * 99 // 100]
        if b" @" in text:
            delays.append(now - float(text.rpartition(b"@")[2]))
    raise RuntimeError("The reader has ended.")


def _shown(quick: bool) -> Samples:
    seconds, rounds = (5, 2) if quick else (8, 3)
    samples = Samples([], [], "s")
    with printing_containers() as containers, printing_job() as job:
        ours = [TRAINYARD, "jobs", "stream-logs", JOB]
        docker = containers.command("logs", "-f", containers.names[0])
        with _reader(ours, job.service.environment) as shown, _reader(docker) as other:
            for _ in range(rounds):
                job.rounds.begin(_RATE * seconds, _RATE)
                samples.measured.append(shown())
                containers.rounds.begin(_RATE * seconds, _RATE)
                samples.against.append(other())
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
