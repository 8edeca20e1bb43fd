"""Lines that come in: CPU and rate, against Docker's json log and `docker logs -f`."""

import subprocess
from contextlib import ExitStack
from functools import partial

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.streams.rounds import PrintingContainers, PrintingJob, printing_containers, printing_job

_LINES = 100_000


def _cpu(lines: int, kind: str, quick: bool) -> Samples:
    """CPU seconds for so many lines, of everything but the program."""

    def cpu_s(side: PrintingJob | PrintingContainers) -> float:
        before = side.cpu_s()
        side.print_lines(lines, kind=kind)
        return side.cpu_s() - before

    with printing_containers() as containers, printing_job() as job:
        return interleaved(partial(cpu_s, job), partial(cpu_s, containers), 2 if quick else 5, "s of CPU")


def _rate(count: int, quick: bool) -> Samples:
    """Lines per second: until the server has them, and until `docker logs -f` has written them to a file."""
    lines = (50_000 if quick else 200_000) // count
    with printing_containers(count) as containers, printing_job(count) as job, ExitStack() as stack:
        files = [containers.rounds.directory.parent / f"{name}.log" for name in containers.names]
        for name, path in zip(containers.names, files, strict=True):
            file = stack.enter_context(path.open("wb"))
            reader = subprocess.Popen(containers.command("logs", "-f", name), stdout=file, stderr=file)
            stack.callback(reader.wait)
            stack.callback(reader.kill)
        return interleaved(
            lambda: lines * count / job.print_lines(lines),
            lambda: lines * count / containers.print_lines(lines, files),
            2 if quick else 3,
            "lines/s",
        )


_DAEMON = "dockerd's json log: CPU"
_OF = "of one replica: CPU of supervisor, agent and server"
_OF_EACH = (
    "Python: two fifths in the server (an object for each line, severity, steps, digest), as much in the agent (the "
    "JSON of its log file), the rest in the supervisor's system calls. Tried: lines are stored in blocks, severities "
    "and steps are read from few of those that are alike"
)

ROWS = (
    Row("logs-in", f"100,000 lines {_OF}", _DAEMON, 5.0, partial(_cpu, _LINES, "mixed"), bound=_OF_EACH),
    Row(
        "logs-in-metrics",
        f"100,000 lines with a step and numbers in each {_OF}",
        _DAEMON,
        5.0,
        partial(_cpu, _LINES, "metrics"),
        bound=_OF_EACH,
    ),
    *(
        Row(name, f"{what} {_OF}", _DAEMON, 3.0, partial(_cpu, lines, kind), bound=bound, in_quick=False)
        for name, what, lines, kind, bound in (
            (
                "logs-in-long",
                "50 lines of a megabyte",
                50,
                "long",
                "a line is escaped, checked and copied as a whole by each of the three",
            ),
            (
                "logs-in-random",
                "20 megabytes of random bytes",
                20,
                "random",
                "most bytes are no UTF-8, and become six characters of JSON",
            ),
        )
    ),
    *(
        Row(
            f"logs-in-rate{'' if count == 1 else f'-{count}'}",
            f"lines per second of {count} replica{'s' * (count > 1)} into the server's log",
            "`docker logs -f` into a file",
            0.7,
            partial(_rate, count),
            bound=(
                "Python: the CPU of server and agent for each line (as above), on the cores of the "
                "programs; the agent waits for each answer. Tried: larger chunks, reads of 2 ms together"
            ),
            is_rate=True,
            in_quick=False,
        )
        for count in (1, 64)
    ),
)
