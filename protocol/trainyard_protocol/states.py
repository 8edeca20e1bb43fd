"""States, legal moves, reasons why replicas end, and faults.

The lifecycle decides with these tables, the repository refuses moves that are not in them, the tests walk them
exhaustively, and the diagrams of the documentation are drawn from them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class JobState(StrEnum):
    """The states of the v1 API."""

    QUEUED = "QUEUED"  # accepted; waits for resources, or for its next run after one was lost
    PREPARING = "PREPARING"  # a run is placed on an agent: packages are staged, replicas are starting
    RUNNING = "RUNNING"  # all replicas of the run have been up
    SUCCEEDED = "SUCCEEDED"  # the primary exited 0, the others are stopped, every log line is stored
    FAILED = "FAILED"  # the verdict is a failure, without budget for another run
    CANCELLING = "CANCELLING"  # cancelled by a user or a time limit; replicas are being stopped
    CANCELLED = "CANCELLED"  # every replica has ended


class RunState(StrEnum):
    """One launch of the whole gang. A run never starts over: a retry is a new run."""

    PREPARING = "PREPARING"  # assigned to an agent
    RUNNING = "RUNNING"  # every replica has been up
    STOPPING = "STOPPING"  # decided or cancelled: live replicas get SIGTERM, after the grace period SIGKILL
    ENDED = "ENDED"  # every replica has exited and its log is complete; the verdict is final


class ReplicaState(StrEnum):
    PENDING = "PENDING"  # part of a run, not started yet
    STARTING = "STARTING"  # the runtime was asked to start it
    RUNNING = "RUNNING"  # its program runs
    EXITED = "EXITED"  # ended, with an exit status
    UNKNOWN = "UNKNOWN"  # its agent is silent: not known to be dead or alive


class Fault(StrEnum):
    """The fault of an end: it determines the budget of new runs."""

    NOBODY = "NOBODY"
    USER = "USER"  # another run would end the same way: no new run
    INFRASTRUCTURE = "INFRASTRUCTURE"  # a new run, a few times
    CAPACITY = "CAPACITY"  # nothing has failed, it could not start yet: a new run after a pause, as often as it takes
    OPERATOR = "OPERATOR"  # the machine was shut down, or given to other work, on purpose: always a new run


class Reason(StrEnum):
    """The reason of a replica's end."""

    COMPLETED = "COMPLETED"  # exit code 0
    STOPPED = "STOPPED"  # by the agent, after the run was decided
    PROGRAM_ERROR = "PROGRAM_ERROR"  # a non-zero exit code that is no signal
    OUT_OF_MEMORY = "OUT_OF_MEMORY"  # killed at its memory limit
    OUT_OF_DISK = "OUT_OF_DISK"  # killed at its disk limit
    START_FAILED = "START_FAILED"  # its command could not be executed
    REFUSED = "REFUSED"  # its engine does not allow it: no permission, against a policy, or a name that is not there
    PACKAGES_FAILED = "PACKAGES_FAILED"  # its packages do not exist or could not be installed
    IMAGE_FAILED = "IMAGE_FAILED"  # its image does not exist, or may not be pulled
    SECRETS_FAILED = "SECRETS_FAILED"  # a secret of its job was deleted, or cannot be decrypted
    STAGING_FAILED = "STAGING_FAILED"  # its packages or its image could not be fetched
    HOST_FAILED = "HOST_FAILED"  # its machine, or the container engine there, could not start it
    GIVEN_BACK = "GIVEN_BACK"  # not started within the start deadline: no room in its engine, or what it needs was away
    UNREACHED = "UNREACHED"  # the machines of its gang do not reach each other
    TIME_LIMIT = "TIME_LIMIT"  # ended at a time limit of its engine: costs no retry if it got further
    KILLED_BY_SIGNAL = "KILLED_BY_SIGNAL"  # by a signal that the agent did not send
    VANISHED = "VANISHED"  # gone without an exit status
    STALLED = "STALLED"  # its step did not change for longer than its history, or a set limit, allows
    HOST_LOST = "HOST_LOST"  # its agent stayed silent past the lease
    HOST_SHUTDOWN = "HOST_SHUTDOWN"  # its machine, container engine or agent was shut down
    RESTORED = "RESTORED"  # the service was restored from a backup, and its agent did not call or has it no more
    PREEMPTED = "PREEMPTED"  # its engine took it away: for other work, or to empty a node
    DRAINED = "DRAINED"  # an operator moved it off its agent


class Outcome(StrEnum):
    """The outcome of a run."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


JOB_MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.PREPARING, JobState.CANCELLING}),
    JobState.PREPARING: frozenset(
        # SUCCEEDED: a short program may end before it was ever seen running. QUEUED: a new run.
        {JobState.RUNNING, JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLING}
    ),
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset(
        # SUCCEEDED, FAILED: it had truly ended before the stop reached it.
        {JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.PREPARING: frozenset({RunState.RUNNING, RunState.STOPPING}),
    RunState.RUNNING: frozenset({RunState.STOPPING}),
    RunState.STOPPING: frozenset({RunState.ENDED}),
    RunState.ENDED: frozenset(),
}

REPLICA_MOVES: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.PENDING: frozenset(
        {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.EXITED, ReplicaState.UNKNOWN}
    ),
    ReplicaState.STARTING: frozenset({ReplicaState.RUNNING, ReplicaState.EXITED, ReplicaState.UNKNOWN}),
    ReplicaState.RUNNING: frozenset({ReplicaState.EXITED, ReplicaState.UNKNOWN}),
    ReplicaState.UNKNOWN: frozenset(
        {ReplicaState.PENDING, ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.EXITED}
    ),
    ReplicaState.EXITED: frozenset(),
}

FAULTS: Mapping[Reason, Fault] = {
    Reason.COMPLETED: Fault.NOBODY,
    Reason.STOPPED: Fault.NOBODY,
    Reason.PROGRAM_ERROR: Fault.USER,
    Reason.OUT_OF_MEMORY: Fault.USER,
    Reason.OUT_OF_DISK: Fault.USER,
    Reason.START_FAILED: Fault.USER,
    Reason.REFUSED: Fault.USER,
    Reason.PACKAGES_FAILED: Fault.USER,
    Reason.IMAGE_FAILED: Fault.USER,
    Reason.SECRETS_FAILED: Fault.USER,
    Reason.STAGING_FAILED: Fault.INFRASTRUCTURE,
    Reason.HOST_FAILED: Fault.INFRASTRUCTURE,
    Reason.GIVEN_BACK: Fault.CAPACITY,
    Reason.UNREACHED: Fault.CAPACITY,
    Reason.TIME_LIMIT: Fault.INFRASTRUCTURE,
    Reason.KILLED_BY_SIGNAL: Fault.INFRASTRUCTURE,
    Reason.VANISHED: Fault.INFRASTRUCTURE,
    Reason.STALLED: Fault.INFRASTRUCTURE,
    Reason.HOST_LOST: Fault.INFRASTRUCTURE,
    Reason.HOST_SHUTDOWN: Fault.OPERATOR,
    Reason.RESTORED: Fault.OPERATOR,
    Reason.PREEMPTED: Fault.OPERATOR,
    Reason.DRAINED: Fault.OPERATOR,
}

FINAL_JOB_STATES = frozenset(state for state, moves in JOB_MOVES.items() if not moves)

_S = TypeVar("_S", bound=StrEnum)


class IllegalMove(Exception):
    """A move that is in no table: a bug of the server, never of a user."""

    def __init__(self, before: StrEnum, after: StrEnum) -> None:
        super().__init__(f"{type(before).__name__} cannot go from {before} to {after}")


def check_move(table: Mapping[_S, frozenset[_S]], before: _S, after: _S) -> None:
    """Raises IllegalMove unless `after` is one legal move away from `before`."""
    if after not in table[before]:
        raise IllegalMove(before, after)


def reason_of_exit(code: int) -> Reason:
    """The reason for a program that was not stopped. `code` is the shell's exit code (128 + n for signal n)."""
    if code == 0:
        return Reason.COMPLETED
    return Reason.KILLED_BY_SIGNAL if 128 < code <= 128 + 64 else Reason.PROGRAM_ERROR
