"""The contract of a runtime: what starts, watches and ends the replicas of a run.

A runtime handles whole runs, since a run starts whole or not at all; an engine that spans many hosts fits
as well as processes on one. Methods stand in the order in which they are called. All of them block; calls
about one run never overlap, calls about different runs may. An agent may die between any two calls: what a
runtime must remember is kept where the replicas are (a directory, an engine's labels), never in its memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from trainyard_agent.runtimes.use import Use
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import LogLine, ReplicaReport, RunOrder, RuntimeName

STOPPED = Reason.STOPPED


class Handle(BaseModel):
    """A run that a runtime holds. Plain JSON: an agent that comes back knows its runs by it.

    `addresses` are `host:port` by task; `grace_s` is what the run was given between SIGTERM and SIGKILL.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    addresses: dict[str, str]
    grace_s: float
    launched: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """All that starts one replica. `environment` is what the service and the agent set; a runtime adds
    what its own kind of place needs (a PATH, the devices), and never takes anything of it away.

    The rest is for runtimes of containers: `image` is what the engine knows it by; `entrypoint` replaces
    the image's own, and `command` is then its arguments; `packages` is the directory of the run's own
    environment, `job_dir` a job-dir that is a path, `job_dir_source` what it is on the host.

    `log_quota_bytes` bounds what is kept of its log on the machine; 0: nothing does.
    """

    task: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    image: str = ""
    entrypoint: tuple[str, ...] = ()
    packages: str = ""
    job_dir: str = ""
    job_dir_source: str = ""
    log_quota_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Consecutive lines of one replica. `complete`: nothing can ever follow them. `cut`, where they are the last that
    are kept: the replica has written more, or still does, than its quota lets be kept."""

    lines: tuple[LogLine, ...]
    complete: bool
    cut: bool = False


class StartFailed(Exception):
    """A replica could not be started, and nothing of its run is left. `message` says why, in one sentence;
    `reason` whose fault it was: START_FAILED the job's, HOST_FAILED the machine's."""

    def __init__(self, task: str, message: str, reason: Reason = Reason.START_FAILED) -> None:
        super().__init__(f"{task} could not be started: {message}")
        self.task = task
        self.message = message
        self.reason = reason


class Runtime(Protocol):
    name: RuntimeName
    runs_images: bool
    """Whether a replica may bring a container image."""

    def recover(self) -> list[Handle]:
        """Every run that was launched and not removed, as a new agent finds them.

        A run that was placed but whose launch was cut short is undone here. Twice: the same answer.
        """
        ...

    def place(self, order: RunOrder) -> Handle:
        """Find room (a directory, ports, hosts) for a run and answer with its addresses; nothing runs yet.

        Twice: the same handle. Raises StartFailed when there is no room; nothing is left then.
        """
        ...

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        """Start every replica of a placed run, or none: after StartFailed nothing runs, and the run is
        unknown, as if it had never been placed.

        Returns once all are on their way; `observe` tells how they fare. Twice: the second does nothing.
        A run that was not placed: StartFailed.
        """
        ...

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        """How the replicas stand, in the order in which they were placed. An exit, once told, never
        changes. A replica that disappeared without an exit status is EXITED with reason VANISHED, and
        nothing of it is left. Unknown run: empty.
        """
        ...

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """Lines `start`, `start + 1`, ... (numbered from 0): at least one if there is one, then up to the
        limits (of lines, and of bytes of text). The same number always gives the same line.

        With a quota, the first line that has no room and all behind it are not kept; the replica goes on
        all the same. Beyond the end: no lines. Unknown run or task: no lines, complete.
        """
        ...

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        """The replica's processes by their ids in our own pid namespace, the program first. Empty where it has
        ended, is unknown, or lives where we do not see it.
        """
        ...

    def usage(self, run_id: str, task: str) -> Use | None:
        """What the replica with all its descendants uses now. Its CPU time never counts what has not been used, and
        includes those of its processes that are over. None where it has ended, is unknown, or cannot be measured
        now; takes a few seconds at most, and changes nothing.
        """
        ...

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        """Ask all replicas to end: SIGTERM now, SIGKILL to every descendant after `grace_s`. Does not wait,
        and goes on without the agent.

        Replicas that end after this call are reported with `after_stop` and this `reason`. Twice: the
        first reason stays, the earlier SIGKILL counts. Ended or unknown run: nothing.
        """
        ...

    def remove(self, run_id: str) -> None:
        """Forget the run and leave nothing of it: what still runs is killed, files and ports are given back.

        Twice, or unknown run: nothing.
        """
        ...
