"""A whole log that goes out: `jobs stream-logs` against `docker logs`, CPU of both ends."""

import resource
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from benchmarks.filled import FilledServer, fill, started
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import TRAINYARD, cpu_s
from benchmarks.streams.printer import line
from benchmarks.streams.rounds import printing_containers
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.store import LogStore, Stream

_PROJECT, _JOB = "p0", "job_0000000"
_CHUNK = 1000
_LINES = 100_000  # of a download


@contextmanager
def _server(lines: int) -> Iterator[FilledServer]:
    """A server with an ended job that has printed so many lines, a hundred at the same time."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        fill(directory / "data", 1, queued=0)
        logs = LogStore(directory / "data" / "logs", durable=False)
        begin, task = datetime.now(UTC) - timedelta(hours=1), Stream(1, "master-replica-0")
        for start in range(0, lines, _CHUNK):
            times = [rfc3339(begin + timedelta(milliseconds=start + 100 * part)) for part in range(_CHUNK // 100)]
            chunk = [
                LogLine(time=times[number // 100], stream="stdout", text=line(start + number))
                for number in range(_CHUNK)
            ]
            logs.append(_PROJECT, _JOB, task, start, chunk)
        yield stack.enter_context(started(directory))


def _whole_log(quick: bool) -> Samples:
    lines = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        containers = stack.enter_context(printing_containers())
        server = stack.enter_context(_server(lines))
        containers.print_lines(lines)
        output = Path(name) / "output"

        def ours() -> float:
            command = [TRAINYARD, "jobs", "stream-logs", _JOB]
            before = cpu_s(server.process)
            used = _cpu_of(command, output, lines, server.environment(_PROJECT))
            return used + cpu_s(server.process) - before

        def docker() -> float:
            before = containers.cpu_s()
            used = _cpu_of(containers.command("logs", containers.names[0]), output, lines)
            return used + containers.cpu_s() - before

        return interleaved(ours, docker, 2, "s of CPU", warm_up=0)


def _download(quick: bool) -> Samples:
    """CPU of the server for the whole log as a file, and as a stream."""
    with _server(_LINES) as server:
        logs = f"/trainyard/v1/projects/{_PROJECT}/jobs/{_JOB}/logs"

        def cpu_of(path: str, params: Mapping[str, str]) -> float:
            before = cpu_s(server.process)
            with server.client.stream("GET", path, params=params) as answer:
                answer.raise_for_status()
                size = sum(map(len, answer.iter_raw()))
            if size < 90 * _LINES:
                raise RuntimeError(f"{path} has only {size} bytes.")
            return cpu_s(server.process) - before

        download = partial(cpu_of, f"{logs}/download", {})
        stream = partial(cpu_of, logs, {"batch": "true"})
        return interleaved(download, stream, 3 if quick else 9, "s of CPU")


def _cpu_of(command: Sequence[str], output: Path, lines: int, variables: Mapping[str, str] | None = None) -> float:
    """CPU seconds of a command that writes so many lines to a file, or a few more."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("wb") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, env=variables, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with output.open("rb") as file:
        if not lines <= sum(1 for _ in file) <= lines + 10:
            raise RuntimeError(f"{command} has not shown all lines.")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


ROWS = (
    Row(
        "logs-out",
        "a whole log of 1,000,000 lines by `stream-logs`: CPU of server and command",
        "`docker logs`: CPU of dockerd and command",
        2.0,
        _whole_log,
        bound="the command: an object and a digest for each line",
    ),
    Row(
        "logs-download",
        "`logs/download` of 100,000 lines: CPU of the server",
        "the same log streamed",
        1.1,
        _download,
        bound="records are parsed, which a stream passes on as they are. Tried: no model of a line, blocks of 5,000",
    ),
)
