"""Exit reports: the codes, reasons and messages that all runtimes share. Pure.

A message is a sentence about "it", the replica; the server adds the replica's name.
"""

import re
import signal
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.states import Reason, reason_of_exit
from trainyard_protocol.wire.sync import ExitReport

_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_BROKEN = re.compile(r"read-only file system|input/output error|stale file handle", re.IGNORECASE)
_MAY_BE_THE_DISKS = frozenset(
    (Reason.START_FAILED, Reason.PACKAGES_FAILED, Reason.IMAGE_FAILED, Reason.STAGING_FAILED, Reason.HOST_FAILED)
)

_MESSAGES = {
    Reason.VANISHED: "Its supervisor was killed, its directory was removed, or the machine was restarted.",
    Reason.STOPPED: "It was stopped.",
    Reason.GIVEN_BACK: "Its run was stopped, because its engine had not started every replica in time.",
    Reason.HOST_LOST: "Its worker agent could not reach the server for the length of the lease, and stopped it.",
    Reason.HOST_SHUTDOWN: "It was stopped with everything else on its machine.",
    Reason.PREEMPTED: "Its engine took it away for other work.",
}


@dataclass(frozen=True, slots=True)
class StopOrder:
    """When and why a run was stopped; `at` is on the same clock as the exits."""

    at: float
    reason: Reason


def code_of_status(status: int) -> int:
    """A status as of `subprocess` (-n for signal n) -> the exit code of a shell."""
    return status if status >= 0 else 128 - status


def exit_report(
    code: int | None, finished_at: datetime, ended: float, stop: StopOrder | None, failure: str = ""
) -> ExitReport:
    """The exit of a replica that ended at `ended`. `failure`: why its program could not be executed."""
    if stop is not None and ended >= stop.at:
        return stopped_exit(code, stop.reason, finished_at)
    if failure:
        message = f"{failure.rstrip('.')}."
        return ExitReport(code=None, reason=Reason.START_FAILED, message=message, finished_at=finished_at)
    if code is None:
        message = _MESSAGES[Reason.VANISHED]
        return ExitReport(code=None, reason=Reason.VANISHED, message=message, finished_at=finished_at)
    reason = reason_of_exit(code)
    return ExitReport(code=code, reason=reason, message=message_of_code(code), finished_at=finished_at)


def stopped_exit(code: int | None, reason: Reason, finished_at: datetime) -> ExitReport:
    """The exit of a replica that was stopped."""
    return ExitReport(code=code, reason=reason, message=_MESSAGES[reason], finished_at=finished_at, after_stop=True)


def preempted_exit(code: int | None, finished_at: datetime, message: str = "") -> ExitReport:
    """The exit of a replica that its engine took away. `message`: the engine's own words, as a sentence."""
    return ExitReport(
        code=code, reason=Reason.PREEMPTED, message=message or _MESSAGES[Reason.PREEMPTED], finished_at=finished_at
    )


def beyond_disk_limit(limit_bytes: int) -> str:
    """The message of a replica that was killed for its use of disk."""
    return f"It is {limit_bytes / 1e9:g} GB, the agent's --disk-gb; write results to the job-dir, which does not count."


def never_ran(reason: Reason, message: str, finished_at: datetime, after_stop: bool = False) -> ExitReport:
    return ExitReport(code=None, reason=reason, message=message, finished_at=finished_at, after_stop=after_stop)


def tells_of_disk(message: str) -> bool:
    """Whether the message of a failure is that of a disk which is full, read-only or broken."""
    return bool(_NO_SPACE.search(message) or _BROKEN.search(message))


def blamed_on_disk(reason: Reason, message: str, no_room: str) -> tuple[Reason, str]:
    """The reason and message of a start that failed: a full disk is the machine's fault, whoever tells of it (pip, an
    engine, this agent). `no_room` is the directory without room and its problem, "" where all have some: then what says
    that it cannot write has been told so by a file system of its own."""
    if reason not in _MAY_BE_THE_DISKS:
        return reason, message
    if not (_NO_SPACE.search(message) or (no_room and _BROKEN.search(message))):
        return reason, message
    return Reason.HOST_FAILED, f"{no_room}. {message}" if no_room else message


def message_of_code(code: int) -> str:
    if code == 0:
        return "It completed."
    if reason_of_exit(code) is Reason.KILLED_BY_SIGNAL:
        return f"It was killed by signal {signal_name(code - 128)}."
    return f"It exited with a non-zero status of {code}."


def signal_name(number: int) -> str:
    """9 -> `9 (SIGKILL)`."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
