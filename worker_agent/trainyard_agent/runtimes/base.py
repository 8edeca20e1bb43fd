"""The contract of a runtime, which starts, observes and stops the replicas of a run.

A runtime handles whole runs, because a run starts whole or not at all. All methods block. Calls about one run never
overlap; calls about different runs may. An agent may die between any two calls, so a runtime keeps its state with the
replicas (in a directory, in an engine's labels), not in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import LogLine, ReplicaReport, RunOrder, RuntimeName

STOPPED = Reason.STOPPED


class Handle(BaseModel):
    """A run that a runtime holds, as plain JSON, from which a restarted agent recovers it.

    `runtime` is the one that holds it. `addresses` are `host:port` by task; `grace_s` is the run's time between SIGTERM
    and SIGKILL.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    runtime: RuntimeName
    addresses: dict[str, str]
    grace_s: float
    launched: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """All that starts one replica. `environment` has the variables of the service and the agent; a runtime adds its own
    (PATH, devices) and removes none.

    For container runtimes: `image` is the engine's id of the image; `entrypoint` replaces the image's own, and
    `command` is then its arguments; `packages` is the directory of the run's own environment, `job_dir` a job-dir that
    is a path, `job_dir_source` its path on the host.

    `log_quota_bytes` limits the stored log; 0: no limit.
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
    """Consecutive lines of one replica's log. `complete`: no line can follow. `cut`, with the last lines: the replica
    has written more than its quota."""

    lines: tuple[LogLine, ...]
    complete: bool
    cut: bool = False


class StartFailed(Exception):
    """A replica could not be started, and its run was removed. `message` is one sentence; `reason` says whose fault it
    was: START_FAILED the job's, HOST_FAILED the machine's."""

    def __init__(self, task: str, message: str, reason: Reason = Reason.START_FAILED) -> None:
        super().__init__(f"{task} could not be started: {message}")
        self.task = task
        self.message = message
        self.reason = reason


class Runtime(Protocol):
    """The methods, in the order in which an agent calls them for a run:

    1. `recover`, once when the agent starts: the runs of the agent before it.
    2. `place` reserves addresses. 3. `start` launches all replicas, or none.
    4. While they run: `observe`, `read_log`, `processes`, `usage`, in any order and any number of times.
    5. `stop` ends them, `observe` and `read_log` follow them to their exits and complete logs. 6. `remove`.
    """

    def recover(self) -> list[Handle]:
        """Every run that was launched and not removed. A run that was placed but not launched is removed.

        Twice: the same result. After a failure: a run that cannot be read or removed now is left out, and handled by
        the next agent.
        """
        ...

    def place(self, order: RunOrder) -> Handle:
        """Reserve what a run needs (a directory, ports, hosts) and return its addresses; nothing runs yet.

        Twice: the same handle. Failure: raises StartFailed, and the run is unknown.
        """
        ...

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        """Start every replica of a placed run, or none. Returns before they run; `observe` reports their states.

        Twice: the second call does nothing. Failure: raises StartFailed, nothing runs, and the run is unknown. Unknown
        run: raises StartFailed.
        """
        ...

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        """The states of the replicas, in the order's sequence. A replica that disappeared without an exit status is
        EXITED with reason VANISHED, and its processes are dead.

        Twice: an exit that was reported never changes. Failure, such as an engine that does not answer: the last known
        states, or an exception. Unknown run: empty.
        """
        ...

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """Lines `start`, `start + 1`, ... (numbered from 0): at least one if there is one, then up to the limits of
        lines and bytes of text. With a quota, the first line that exceeds it and all later ones are dropped; the
        replica keeps running.

        Twice: the same number always gives the same line. Beyond the end: no lines. Unknown run or task: no lines,
        complete.
        """
        ...

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        """The pids of the replica's processes in the agent's pid namespace, the program first. Empty if it has ended,
        is unknown, or runs in a namespace that the agent does not see.
        """
        ...

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        """The current usage of the replica and its descendants, including the CPU time of those that have ended. Takes
        a few seconds at most. None if the replica has ended, is unknown, or cannot be measured now.
        """
        ...

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        """Send SIGTERM to all replicas now, and SIGKILL to every descendant after `grace_s`. Does not wait; the kill
        needs no agent. Replicas that end after this call are reported with `after_stop` and this `reason`.

        Twice: the first reason and the earlier SIGKILL apply. Ended or unknown run: nothing.
        """
        ...

    def remove(self, run_id: str) -> None:
        """Kill what still runs, and delete the run's files and reservations.

        Twice, or unknown run: nothing. Failure: raises, and the run stays known until a later call succeeds.
        """
        ...
