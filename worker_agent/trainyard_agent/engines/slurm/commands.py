"""Slurm's commands, by their stable text formats: no JSON, no slurmrestd, no accounting."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainyard_agent.engines.slurm import spec

_TIMEOUT_S = 60.0
_ANSWERS_S = 2.0
_LINES = 3  # of an error: a site's plugin may say more than Slurm itself
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "SLURM_CONF")
_FIELDS = "%i|%T|%N|%j|%P|%l|%L|%r"


_PREEMPTED = re.compile(r"\bPreemptTime=(\S+)")
_NO_TIME = ("None", "N/A", "Unknown")
_COLUMNS = _FIELDS.count("|") + 1


class SlurmError(OSError):
    """A command that failed; the message has Slurm's own words."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A row of squeue. `limit` and `left` are its time limit and what is left of it, as Slurm writes them
    ("1-00:00:00"); `reason` is why it waits, in Slurm's word ("Priority")."""

    id: str
    state: str
    nodes: str
    name: str
    partition: str
    limit: str
    left: str
    reason: str


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of Slurm's commands, and of a batch script, which Slurm stores: nothing else of the agent's, and
    none of a job that the agent itself may run in."""
    return {name: value for name, value in inherited.items() if name in _PASSED or name.startswith("SBATCH_")}


def run(command: Sequence[str], text: str = "") -> str:
    """The output of a command. Raises SlurmError."""
    try:
        done = subprocess.run(
            command,
            input=text,
            env=environment(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise SlurmError(0, f"there is no program {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(0, f"{command[0]} did not answer within {_TIMEOUT_S:g} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        messages = [line.removeprefix(f"{command[0]}: ").removeprefix("error: ") for line in lines]
        words = "; ".join(messages[:_LINES]) or f"exit status {done.returncode}"
        raise SlurmError(0, f"{command[0]}: {words}")
    return done.stdout


def submit(arguments: Sequence[str], script: str) -> str:
    """The id of a new job. Raises SlurmError."""
    answer = run(["sbatch", "--parsable", *arguments], script)
    return answer.strip().partition(";")[0]  # JOB or JOB;CLUSTER


def jobs(names: Collection[str]) -> list[SlurmJob]:
    """This user's jobs with these names, those that ended lately too. Raises SlurmError."""
    if not names:
        return []
    chosen = [f"--user={os.getuid()}", f"--name={','.join(sorted(names))}"]
    return parse_jobs(run(["squeue", "--noheader", "--states=all", f"--format={_FIELDS}", *chosen]))


def active_jobs() -> list[SlurmJob]:
    """This user's jobs that have not ended. Raises SlurmError."""
    return parse_jobs(run(["squeue", "--noheader", f"--user={os.getuid()}", f"--format={_FIELDS}"]))


def was_preempted(job: str) -> bool:
    """Whether Slurm had begun to preempt a job, which may have ended by itself then. Raises SlurmError."""
    shown = run(["scontrol", "--oneliner", "show", "job", job])
    return any(not value.startswith(_NO_TIME) for value in _PREEMPTED.findall(shown))


def version() -> str:
    """`slurm-wlm 22.05.8`. Raises SlurmError."""
    return run(["sbatch", "--version"]).strip()


def parse_jobs(output: str) -> list[SlurmJob]:
    """Jobs of the rows of _FIELDS. A heterogeneous job has a row for each part, `ID+PART`; Slurm
    starts, ends and cancels them together."""
    parts: dict[str, list[SlurmJob]] = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split("|", _COLUMNS - 1)]
        if len(fields) == _COLUMNS:
            job = fields[0].partition("+")[0]
            parts.setdefault(job, []).append(SlurmJob(job, *fields[1:]))
    return [min(rows, key=lambda row: (spec.telling(row.state), row.reason == "None")) for rows in parts.values()]


def cancel_pending(jobs: Sequence[str]) -> None:
    """Cancel those that have not started. Raises SlurmError."""
    run(["scancel", "--quiet", "--state=PENDING", *jobs])


def kill(jobs: Sequence[str]) -> None:
    """Cancel those that have not started, and SIGKILL every process of the others. Raises SlurmError."""
    cancel_pending(jobs)
    run(["scancel", "--quiet", "--full", "--signal=KILL", *jobs])


class JobTable:
    """Jobs by id, as of the last answer: Slurm is asked no more often than every `every_s`, for all runs at once, and
    by a thread, since its commands take many seconds to give up on a controller that is away."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._answered = float("-inf")
        self._names: frozenset[str] = frozenset()
        self._found: dict[str, SlurmJob] = {}
        self._missing: dict[str, int] = {}
        self.problem = ""

    def find(self, job: str, names: Collection[str]) -> SlurmJob | None:
        """The job as last seen; None for one that Slurm twice did not know. Raises SlurmError while nothing is known of
        it."""
        asked = frozenset(names)
        with self._lock:
            new = not asked <= self._names and job not in self._found
            due = new or time.monotonic() - self._answered >= self._every_s
            if due and (self._asking is None or not self._asking.is_alive()):
                self._asking = threading.Thread(target=self._ask, args=(asked,), daemon=True)
                self._asking.start()
            else:
                due = False
            asking = self._asking
        if due and asking is not None:
            asking.join(_ANSWERS_S)
        with self._lock:
            if job in self._found:
                return self._found[job]
            if self._missing.get(job, 0) >= 2:
                return None
            raise SlurmError(0, self.problem or f"nothing is known yet of job {job}")

    def _ask(self, names: frozenset[str]) -> None:
        try:
            current = {job.id: job for job in jobs(names)}
        except SlurmError as error:
            with self._lock:
                self._answered, self.problem = time.monotonic(), str(error.strerror)
            return
        with self._lock:
            self._answered, self.problem, self._names = time.monotonic(), "", names
            expected = {job for job, info in self._found.items() if info.name in names} | self._missing.keys()
            self._missing = {job: self._missing.get(job, 0) + 1 for job in expected - current.keys()}
            lately = {job: info for job, info in self._found.items() if self._missing.get(job) == 1}
            self._found = {**lately, **current}

    def expect(self, job: str) -> None:
        """Let a job that was never seen count as missing, once Slurm does not know it."""
        with self._lock:
            if job not in self._found:
                self._missing.setdefault(job, 0)
