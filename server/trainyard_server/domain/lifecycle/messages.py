"""Messages about the end of replicas and runs. Pure."""

import signal
from collections import Counter
from collections.abc import Sequence

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import NO_ROOM_AT_END, ExitReport, ReplicaReport, RunReport

JOB_COMPLETED = "Job completed successfully."
"""The message of a job that has succeeded. That of a study goes on with its best trial."""

COMPLETED = " completed."
"""The end of the sentence about a replica that has completed."""

_ON_AGENT = "on agent "
"""The beginning of the message of a part's replica that never ran: the name of its agent follows."""

_NEVER_RAN = frozenset(
    (
        Reason.START_FAILED,
        Reason.REFUSED,
        Reason.PACKAGES_FAILED,
        Reason.IMAGE_FAILED,
        Reason.SECRETS_FAILED,
        Reason.STAGING_FAILED,
        Reason.HOST_FAILED,
        Reason.GIVEN_BACK,
        Reason.UNREACHED,
    )
)
_KILLED = 128 + signal.SIGKILL
_LAST_LINES_LIMIT = 4000  # characters of the failed replica's log that an errorMessage quotes


def sentence(task: str, ended: ExitReport) -> str:
    """A sentence about the end of one replica, which it names as the real service did."""
    who = the_replica(task)
    match ended.reason:
        case Reason.COMPLETED:
            return f"{who}{COMPLETED}"
        case Reason.STOPPED:
            killed = ended.code == _KILLED
            return f"{who} was stopped{', and killed at the end of its grace period' if killed else ''}."
        case Reason.PROGRAM_ERROR:
            return f"{who} exited with a non-zero status of {ended.code}."
        case Reason.KILLED_BY_SIGNAL:
            return f"{who} was killed by signal {_signal(ended.code)}."
        case Reason.OUT_OF_MEMORY:
            details = f" {ended.message}" if ended.message else ""
            status = "9(SIGKILL)" if ended.code in (None, _KILLED) else ended.code  # a child process was killed
            return f"{who} ran out-of-memory and exited with a non-zero status of {status}.{details}"
        case Reason.OUT_OF_DISK:
            return f"{who} exceeded its disk limit and was killed. {ended.message}".rstrip()
        case Reason.START_FAILED:
            return _about(f"{who} could not be started", ended.message)
        case Reason.REFUSED:
            return _about(f"{who} was refused", ended.message)
        case Reason.PACKAGES_FAILED:
            return _about(f"{who} could not install its packages", ended.message)
        case Reason.STAGING_FAILED:
            return _about(f"{who} could not fetch what it needs", ended.message)
        case Reason.IMAGE_FAILED:
            return _about(f"{who} could not get its image", ended.message)
        case Reason.SECRETS_FAILED:
            return _about(f"{who} could not get its secrets", ended.message)
        case Reason.HOST_FAILED:
            return _about(f"{who} could not be started by its machine", ended.message)
        case Reason.GIVEN_BACK:
            return _about(f"{who} could not be started yet", ended.message)
        case Reason.UNREACHED:
            return _about(f"{who} could not be started yet", ended.message)
        case Reason.TIME_LIMIT:
            return f"{who} reached a time limit. {ended.message}".rstrip()
        case Reason.VANISHED:
            return f"{who} vanished without an exit status. {ended.message}".rstrip()
        case Reason.STALLED:
            return f"{who} stalled. {ended.message}".rstrip()
        case Reason.HOST_LOST:
            return f"{who} was lost with its host. {ended.message}".rstrip()
        case Reason.HOST_SHUTDOWN:
            return f"{who} was stopped because its machine was shut down."
        case Reason.RESTORED:
            return f"{who} is taken for lost. {ended.message}"
        case Reason.PREEMPTED:
            return f"{who} was preempted. {ended.message}".rstrip()
        case Reason.DRAINED:
            return f"{who} was moved off its agent. {ended.message}".rstrip()


def of_part(report: RunReport, agent: str) -> RunReport:
    """The report of a part of a run over several agents: the ends of replicas that never ran name its agent."""
    return report.model_copy(update={"replicas": tuple(_of_part(replica, agent) for replica in report.replicas)})


def _of_part(replica: ReplicaReport, agent: str) -> ReplicaReport:
    ended = replica.exit
    if ended is None or ended.reason not in _NEVER_RAN or ended.message.startswith(_ON_AGENT):
        return replica
    named = ended.model_copy(update={"message": f"{_ON_AGENT}{agent}: {ended.message}"})
    return replica.model_copy(update={"exit": named})


def waiting(replicas: Sequence[ReplicaReport]) -> str:
    """Reasons why the engine has not started a run, the most frequent first; "" if none is known."""
    reasons = Counter(replica.waits for replica in replicas if replica.waits)
    if not reasons:
        return ""
    if reasons.total() == len(replicas) and len(reasons) == 1:
        return f"waits: {next(iter(reasons))}"
    first, *others = (f"{count} of {len(replicas)} wait: {text}" for text, count in reasons.most_common())
    return f"{first} (and {len(others)} other reasons)" if len(others) > 1 else "; ".join((first, *others))


def about_disk(ended: ExitReport) -> str:
    """The sentence of an agent about a disk without room when a replica ended by itself; "" for any other."""
    by_itself = ended.reason in (Reason.PROGRAM_ERROR, Reason.KILLED_BY_SIGNAL)
    _, marker, note = ended.message.partition(NO_ROOM_AT_END)
    return f"{marker}{note}" if by_itself and marker else ""


def about_permissions(ended: ExitReport, cause: str) -> str:
    """The further sentences of an agent about the user of a program that was denied a permission; "" for any other."""
    denied = ended.reason is Reason.PROGRAM_ERROR and "permission denied" in cause.lower()
    return ended.message.partition(". ")[2].partition(NO_ROOM_AT_END)[0].rstrip() if denied else ""


def error_message(verdict: Verdict) -> str:
    """The job's errorMessage: the sentence with the cause, then the last lines of the replica's log."""
    lines = "\n".join(verdict.last_lines)[-_LAST_LINES_LIMIT:]
    return f"{verdict.message}\n{lines}".rstrip()


def the_replica(task: str) -> str:
    """The name that the real service used: `The replica worker 0`."""
    parsed = Task.parse(task)
    return f"The replica {parsed.type} {parsed.index}"


def _about(words: str, message: str) -> str:
    return f"{words} {message}" if message.startswith(_ON_AGENT) else f"{words}: {message}"


def _signal(code: int | None) -> str:
    number = (code or 128) - 128
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return f"{number}"
