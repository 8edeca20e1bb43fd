"""Machines that fail runs: retries avoid one that has failed two within an hour, and the third drains it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.states import Reason

WINDOW = timedelta(hours=1)
AVOIDED_AFTER, DRAINED_AFTER = 2, 3
"""Failures within the window."""

_SAME_CAUSE = timedelta(minutes=1)
"""Failures of several jobs in so short a time are one: a machine that is lost loses all its runs."""

_SIGKILLED = 137
_OF_MACHINES = frozenset((Reason.HOST_FAILED, Reason.HOST_LOST, Reason.VANISHED))


@dataclass(frozen=True, slots=True)
class HostFailure:
    """The failure of a run for which its machine is to blame. `job` is `PROJECT/JOB`."""

    time: datetime
    job: str
    reason: str

    @classmethod
    def of(cls, job: str, verdict: Verdict, now: datetime) -> "HostFailure | None":
        """None if the machine is not to blame: of the signals that the agent has not sent only SIGKILL, which others
        send a program, such as the kernel without memory."""
        is_killed = verdict.reason is Reason.KILLED_BY_SIGNAL and verdict.exit_code == _SIGKILLED
        return cls(now, job, verdict.reason) if verdict.reason in _OF_MACHINES or is_killed else None

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "HostFailure":
        return cls(datetime.fromisoformat(stored["time"]), stored["job"], stored["reason"])

    def stored(self) -> dict[str, str]:
        return {"time": self.time.isoformat(), "job": self.job, "reason": self.reason}


def with_failure(before: Iterable[HostFailure], new: HostFailure) -> tuple[HostFailure, ...]:
    """The failures that count with a new one: each job once, and each cause once."""
    counted = recent(before, new.time)
    if any(failure.job == new.job or new.time - failure.time < _SAME_CAUSE for failure in counted):
        return counted
    return (*counted, new)[-DRAINED_AFTER:]


def recent(failures: Iterable[HostFailure], now: datetime) -> tuple[HostFailure, ...]:
    """The failures within the window."""
    return tuple(failure for failure in failures if now - WINDOW < failure.time <= now)


def is_alone(others: Iterable[Sequence[HostFailure]], now: datetime) -> bool:
    """Whether most of the other machines that take work, by their failures, have none within the window: what has
    befallen many is the fault of something else, and a machine without others is needed."""
    counts = [len(recent(failures, now)) for failures in others]
    return bool(counts) and 2 * counts.count(0) >= len(counts)


def avoided_until(failures: Sequence[HostFailure]) -> datetime | None:
    """The time until which retries avoid the machine; None: they do not."""
    return failures[-AVOIDED_AFTER].time + WINDOW if len(failures) >= AVOIDED_AFTER else None


def drain_reason(failures: Sequence[HostFailure]) -> str:
    """A clause that says why a machine with these failures is drained; "" if it is not."""
    if len(failures) < DRAINED_AFTER:
        return ""
    shown = ", ".join(f"{failure.job} ({failure.reason})" for failure in failures)
    return f"{len(failures)} runs failed of it within an hour: {shown}"
