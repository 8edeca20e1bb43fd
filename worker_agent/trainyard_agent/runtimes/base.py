"""The contract of a runtime, which starts, observes and stops the replicas of a run.

A runtime handles whole runs, because a run starts whole or not at all. All methods block. Calls about one run never
overlap; calls about different runs may. An agent may die between any two calls, so a runtime keeps its state with the
replicas (in a directory, in an engine's labels), not in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from trainyard_agent.runtimes.attaching.attachment import Attachment
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.job.keys.mounts import paths_at
from trainyard_protocol.job.pod_settings import PodSettings
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.logs import LogGap, LogLine, LogPosition
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder

STOPPED = Reason.STOPPED

PROCESSES = 4096
"""Processes and threads of a replica at most, unless --pids-limit is given."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Promises that a runtime keeps less than one on a host. The contract suite reads them: each weakness is stated and
    tested.

    `starts_whole`: a start that succeeds has started every replica. Else it has asked an engine for them, which says in
    `waits` why one is not there yet, and START_FAILED of one that cannot start, while others run.
    `coarse_clock`: the times of its exits have whole seconds; each then has its `order` in the run.
    `splits_streams`: stdout and stderr are told apart; else all lines are of stdout.
    `keeps_logs`: every line can be read again until the run is removed. Else an engine may drop old ones, and
    `resume_log` says from where on they are needed.
    `measures_usage`: `usage` is measured; else it is always None. An engine may measure cores in place of CPU time.
    `reads_metrics`: `read_metrics` reads the metric file of a trial; else there is none.
    `tells_changes`: a program's start and end are told to those that `subscribe`; else they are seen by looking.
    """

    starts_whole: bool = True
    coarse_clock: bool = False
    splits_streams: bool = True
    keeps_logs: bool = True
    measures_usage: bool = True
    reads_metrics: bool = True
    tells_changes: bool = True


HOST = Traits()
"""A runtime on one machine: every promise of the contract."""


class Handle(BaseModel):
    """A run that a runtime holds, as plain JSON, from which a restarted agent recovers it.

    `runtime` is the one that holds it. `addresses` are `host:port` by task; `grace_s` is the run's time between SIGTERM
    and SIGKILL. `metric_tag` is that of a trial's metric; "" for a run of another job. `interface`, of a part of a run
    over several agents, is the network interface of the addresses, as the replicas see it; else "". `user` is that of
    its programs on this machine, where it has one of its own.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    runtime: RuntimeName
    addresses: dict[str, str]
    grace_s: float
    metric_tag: str = ""
    interface: str = ""
    user: int | None = None
    launched: bool = False


def metric_tag(order: RunOrder) -> str:
    """The `metric_tag` of the order's handle."""
    return order.trial.metric_tag if order.trial is not None else ""


@dataclass(frozen=True, slots=True)
class ProgramUser:
    """The user of a container's programs in place of the image's own. `name` is for programs that ask for one."""

    uid: int
    gid: int
    name: str

    @property
    def ids(self) -> str:
        return f"{self.uid}:{self.gid}"


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A secret as a file. `path` is where the job wants it: a container has it there, another replica in a directory of
    its own. `variable` gets the path; `name` is the secret's."""

    name: str
    path: str
    variable: str
    value: str = field(repr=False)


KEPT = "Trainyard keeps this replica for"
"""The words of a line of the log from which on a replica is kept."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The time for which a replica is kept after its program has failed, unless with one of `retried_codes`, which lead
    to another run. `job` is the job's id."""

    seconds: int
    job: str
    retried_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the site that replicas have. `source` is its path on the machine, or on the nodes of a cluster; in
    a cluster also CLAIM/PATH. `path` is where a container has it; another replica finds a link in its run's directory.
    `directories` are those in it whose paths variables get, by variable. `group`, if any, may write to it."""

    name: str
    source: str
    path: str
    read_only: bool = True
    directories: Mapping[str, str] = field(default_factory=dict)
    group: int | None = None

    def variables_at(self, path: str) -> dict[str, str]:
        """The variables of a replica that finds it at this path."""
        return paths_at(path, self.directories)


@dataclass(frozen=True, slots=True)
class Launch:
    """All that starts one replica. `environment` has the variables of the service and the agent; a runtime adds its own
    (PATH, devices) and removes none.

    For container runtimes: `image` is the engine's id of the image; `entrypoint` replaces the image's own, and
    `command` is then its arguments; `packages` is the directory of the run's own environment; at `job_dir` the host's
    directory `job_dir_source` is mounted, in a cluster a CLAIM/PATH, "": none; `user` is the program's, None: the
    image's own.

    `cpus` and `gpus` are numbers and ids, on a machine; `vcpus` and the accelerators are amounts, for an engine that
    chooses itself; `pod` is for a cluster alone. `uses_tpus`: its machine's TPU is its own. `log_quota_bytes` limits
    the stored log; 0: no limit.

    `keep`: what follows a failure of its program; None: its end.

    `writes_metrics`: it is the primary of a trial, and gets the path of its metric file as METRIC_FILE.

    `mounts` are further directories; their variables are replaced by those in `environment`.

    `secrets` are further variables: no runtime writes their values to a file of its own, and each masks them, and those
    of `secret_files`, in the log. So do the runtimes of a machine with `run_token`, which is in `environment`.
    """

    task: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    cpus: tuple[int, ...]
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    vcpus: int = 0
    accelerator_type: str = ""
    accelerator_count: int = 0
    uses_tpus: bool = False
    image: str = ""
    entrypoint: tuple[str, ...] = ()
    packages: str = ""
    job_dir: str = ""
    job_dir_source: str = ""
    user: ProgramUser | None = None
    log_quota_bytes: int = 0
    keep: Keep | None = None
    writes_metrics: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_files: tuple[SecretFile, ...] = ()
    run_token: str = field(default="", repr=False)
    pod: PodSettings = field(default_factory=PodSettings)
    mounts: tuple[Mount, ...] = ()

    @property
    def groups(self) -> list[int]:
        """The further groups of its user."""
        return sorted({mount.group for mount in self.mounts if mount.group is not None})

    @property
    def secret_values(self) -> list[str]:
        """The values that are masked."""
        token = [self.run_token] if self.run_token else []
        return [*self.secrets.values(), *(file.value for file in self.secret_files), *token]


METRIC_FILE = "CLOUD_ML_HP_METRIC_FILE"
"""The variable with the path of a trial's metric file."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Consecutive lines of one replica's log. `complete`: no line can follow. `cut`, with the last lines: the replica
    has written more than its quota. `gap`: lines may be missing before the first of these; a
    slice never goes over a gap. `missing`, of a complete log: lines that the machine no longer has; None: it may be
    any number of the last ones."""

    lines: tuple[LogLine, ...]
    complete: bool
    cut: bool = False
    gap: LogGap | None = None
    missing: int | None = 0


GONE = LogSlice((), complete=True, missing=None)
"""A log that is not there, or not any more."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A thing that an engine has of a run that is gone, or whose agent is (`why`). `remove`: the shell command that
    removes it."""

    what: str
    run_id: str
    why: str
    remove: str
    meaning: str = "It may use CPUs, memory and devices that are assigned to others, and nothing ends it."


class EngineUnavailable(Exception):
    """Operation that an engine cannot do now. The agent tries again."""


class StartFailed(Exception):
    """A replica could not be started, and its run was removed. `message` is one sentence; `reason` says whose fault it
    was: START_FAILED the job's, HOST_FAILED the machine's. An engine that does not answer, or has no room, gives the
    run back (GIVEN_BACK); one that does not allow it says REFUSED."""

    def __init__(self, task: str, message: str, reason: Reason = Reason.START_FAILED) -> None:
        super().__init__(f"{task} could not be started: {message}")
        self.task = task
        self.message = message
        self.reason = reason


class Runtime(Protocol):
    """The methods, in the order in which an agent calls them for a run:

    1. `recover`, once when the agent starts: the runs of the agent before it. `subscribe`, before or after it.
    2. `place` reserves addresses. 3. `start` launches all replicas, or none.
    4. While they run: `observe`, `read_log`, `read_metrics`, `processes`, `usage`, `execute`, `connect`, in any order,
       any number of times. The last two may overlap with any other call.
    5. `stop` ends them, `observe`, `read_log` and `read_metrics` follow them to their exits and complete logs.
    6. `remove`.
    """

    @property
    def traits(self) -> Traits:
        """The promises that it keeps. They never change."""
        ...

    def recover(self) -> list[Handle]:
        """Every run that was launched and not removed. A run that was placed but not launched is removed.

        Twice: the same result. After a failure: a run that cannot be read or removed now is left out, and handled by
        the next agent.
        """
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed`, from any thread, soon after what `observe` returns has changed. A call may be missing, as
        when a supervisor is killed, or be needless. Returns a function that ends it.

        Without `tells_changes`: never calls.
        """
        ...

    def place(self, order: RunOrder) -> Handle:
        """Reserve what a run needs (a directory, ports, hosts) and return its addresses; nothing runs yet.

        Twice: the same handle. Failure: raises StartFailed, and the run is unknown.
        """
        ...

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        """Start every replica of a placed run, or none (`starts_whole`). Returns before they run; `observe` reports
        their states.

        Twice: the second call does nothing. Failure: raises StartFailed, nothing runs, and the run is unknown. Unknown
        run: raises StartFailed.
        """
        ...

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        """The states of the replicas, in the order's sequence. A replica that disappeared without an exit status is
        EXITED with reason VANISHED, and its processes are dead. One that the engine takes away before a stop was
        requested is EXITED with reason PREEMPTED, whenever and with whichever code its program ends. One that has not
        started says in `waits` why, if the engine says.

        Twice: an exit that was reported never changes. Failure, such as an engine that does not answer: the last known
        states, or an exception. Unknown run: empty.
        """
        ...

    def has_ended(self, run_id: str) -> bool:
        """Whether every replica of the run has ended and, where its log is copied on this machine, that is complete.
        Unknown run: True.
        """
        ...

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """Lines `start`, `start + 1`, ... (numbered from 0): at least one if there is one, then up to the limits of
        lines and bytes of text. With a quota, the first line that exceeds it and all later ones are dropped; the
        replica keeps running.

        Twice: the same number always gives the same line, or none once an engine has dropped it (`keeps_logs`). Beyond
        the end: no lines. Unknown run or task, or one whose files somebody has removed: no lines, complete, and any
        number is missing.
        """
        ...

    def resume_log(self, run_id: str, task: str, position: LogPosition) -> None:
        """Number the lines behind this position from `position.next` on. Lines that an engine has dropped since then
        are a `gap` of the next slice. With `keeps_logs`: nothing to do.

        Unknown run or task: nothing.
        """
        ...

    def read_metrics(self, run_id: str, task: str) -> bytes:
        """The content of the metric file of a trial's primary, until the run is removed; b"" without one, for one
        larger than METRIC_BYTES, and for anything that is no regular file. Its program may write anything there.

        Failure: raises, and is called again. Unknown run or task: b"".
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

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        """Start a command beside the program of a running replica: with its environment, working directory, user and
        devices, and with a terminal if one is given. It ends at the latest when the run is removed.

        Failure: raises NotAttachable, EngineUnavailable. Unknown or ended replica: raises NotAttachable.
        """
        ...

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        """Connect to a port of a running replica, as a program of it would by 127.0.0.1. Where nothing listens there,
        raises NotAttachable, or the attachment ends with an exit code.

        Failure: raises NotAttachable, EngineUnavailable. Unknown or ended replica: raises NotAttachable.
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
