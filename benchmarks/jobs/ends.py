"""End of a job that a command follows, against waitpid; and a whole job against the same training by hand."""

import os
import subprocess
import sys
import time
from functools import cache, partial
from itertools import count

from benchmarks.rows import Row, Samples
from benchmarks.service import TRAINYARD, Service, running

_PROGRAM = "import os, time; time.sleep(1); now = time.time_ns(); os.write(1, b'%d%c' % (now, 10)); os._exit(0)"
_MODULE, _ARGUMENTS = "timeit", ("-n1", "-r1", _PROGRAM)
_numbers = count()


@cache
def _ends(quick: bool) -> list[tuple[float, float, float]]:
    """Seconds of each round: from the exit to the verdict on the screen, from there to the end of the command, and from
    the exit to the return of waitpid."""
    with running() as service:
        rounds = [(*_followed(service), _waited()) for _ in range(4 if quick else 16)]
        return rounds[1:]


def _followed(service: Service) -> tuple[float, float]:
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
    process = subprocess.Popen([sys.executable, "-m", _MODULE, *_ARGUMENTS], stdout=subprocess.PIPE)
    os.waitpid(process.pid, 0)
    gone = time.time_ns()
    process.returncode = 0
    output = process.stdout.read() if process.stdout else b""
    return (gone - int(output)) / 1e9


def _against_waitpid(part: int, quick: bool) -> Samples:
    rounds = _ends(quick)
    return Samples([times[part] for times in rounds], [times[2] for times in rounds], "s", is_difference=True)


ROWS = (
    Row(
        "end-printed",
        "the primary's exit to `succeeded` on the screen of `--stream-logs`",
        "waitpid",
        0.15,
        partial(_against_waitpid, 0),
        bound="30 ms for ends of peers in the same moment, and the durable writes of the exit, the verdict and the end",
    ),
    Row(
        "end-command",
        "`succeeded` on the screen to the end of the command",
        "waitpid",
        0.1,
        partial(_against_waitpid, 1),
    ),
)
