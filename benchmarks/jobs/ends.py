"""End of a job that a command follows, against waitpid; and a whole job against the same training by hand."""

import os
import subprocess
import sys
import time
from functools import cache
from itertools import count

from benchmarks.jobs.service import TRAINYARD, JobService, running
from benchmarks.rows import Row, Samples

_ROUNDS, _QUICK = 15, 3
_PROGRAM = (
    "import os, time; time.sleep(1); now = time.time_ns(); os.write(1, b'%d%c' % (now, 10)); os._exit(0)"
)
_MODULE, _ARGUMENTS = "timeit", ("-n1", "-r1", _PROGRAM)
_numbers = count()


@cache
def _ends(quick: bool) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each round: from the exit to the verdict on the screen, from there to the end of the command, and from
    the exit to the return of waitpid."""
    printed, gone, waited = [], [], []
    with running("--runtime", "process") as service:
        for number in range((_QUICK if quick else _ROUNDS) + 1):
            one, other = _followed(service)
            floor = _waited()
            if number:
                printed.append(one)
                gone.append(other)
                waited.append(floor)
    return printed, gone, waited


def _followed(service: JobService) -> tuple[float, float]:
    submit = ("jobs", "submit", "training", f"end_{next(_numbers)}", "--stream-logs")
    job = ("--scale-tier", "custom", "--master-machine-type", "local-1", "--module-name", _MODULE)
    command = subprocess.Popen(
        [TRAINYARD, *submit, *job, "--", *_ARGUMENTS],
        env={**service.environment, "COLUMNS": "200"},
        cwd=service.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    printed = ended = 0
    for line in command.stdout or ():
        lines.append(line)
        if " succeeded " in line:
            printed = time.time_ns()
        if line.split() and line.split()[-1].isdecimal():
            ended = int(line.split()[-1])
    command.wait()
    gone = time.time_ns()
    if not printed or not ended:
        raise RuntimeError("The job did not succeed:\n" + "".join(lines))
    return (printed - ended) / 1e9, (gone - printed) / 1e9


def _waited() -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE, *_ARGUMENTS], stdout=subprocess.PIPE, env=dict(os.environ)
    )
    os.waitpid(process.pid, 0)
    gone = time.time_ns()
    process.returncode = 0
    output = process.stdout.read() if process.stdout else b""
    return (gone - int(output)) / 1e9


def _printed(quick: bool) -> Samples:
    printed, _, waited = _ends(quick)
    return Samples(printed, waited, "s", is_difference=True)


def _gone(quick: bool) -> Samples:
    _, gone, waited = _ends(quick)
    return Samples(gone, waited, "s", is_difference=True)


ROWS = (
    Row(
        "end-printed",
        "the primary's exit to `succeeded` on the screen of `--stream-logs`",
        "waitpid",
        0.15,
        _printed,
        bound="30 ms for ends of peers in the same moment, and the durable writes of the exit, the verdict and the end",
    ),
    Row("end-command", "`succeeded` on the screen to the end of the command", "waitpid", 0.1, _gone),
)
