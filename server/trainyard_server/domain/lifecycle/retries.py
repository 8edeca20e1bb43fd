"""Retry rules: whether a failed run is followed by a new one by a rule of its job, or of the service. Pure.

The first rule that matches decides. Rules are matched against the end of the replica that decides the run, and only
where its program ended: machines that are lost and the like have retries of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.keys.scheduling import RetryRule
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import Reason
from trainyard_server.domain.filters.text_patterns import PatternError, pattern
from trainyard_server.domain.snapshots import JobSnapshot, ReplicaSnapshot

DEFAULT_RULES = (
    RetryRule(log="(?i)uncorrectable ECC error|ECC_?UNCORRECTABLE|GPU is lost|fallen off the bus", other_host=True),
    RetryRule(log="Watchdog caught collective operation timeout", other_host=True),
)
"""Rules of a job that has no `retry`: errors of a GPU, and a collective operation of NCCL in which a process was not
heard of. Both may be the machine's fault, which another one shows."""

DISABLED = "No new run follows: the job has scheduling.disableRetries."
"""The sentence of the verdict of a run that is not followed by another one because its job says so."""

_SIGABRT = 134  # by which NCCL's watchdog ends a program
_LINE = 4000  # characters of a line that are searched

_PROGRAM_ENDED = (Reason.PROGRAM_ERROR, Reason.KILLED_BY_SIGNAL, Reason.OUT_OF_MEMORY, Reason.OUT_OF_DISK)

Matches = frozenset[int]
"""Indices of the rules whose patterns are in the log."""


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The rule that decides about a failed run. `number` counts from 1; `used` is the number of its retries so far."""

    number: int
    rule: RetryRule
    used: int
    exit_code: int | None
    is_default: bool

    @property
    def is_left(self) -> bool:
        return self.used < self.rule.count

    @property
    def retry(self) -> str:
        """`retry 1 of 3`: the next one."""
        return f"retry {self.used + 1} of {self.rule.count}"

    @property
    def clause(self) -> str:
        subject = "The log" if self.rule.log else f"Exit code {self.exit_code}"
        name = "the service's rule" if self.is_default else f"retry rule {self.number}"
        return f"{subject} matched {name} ({self.rule.condition})"

    @property
    def note(self) -> str:
        """The sentence of the verdict."""
        if self.is_left:
            return f"{self.clause}; {self.retry}."
        times = "its retry is" if self.rule.count == 1 else f"its {self.rule.count} retries are"
        return f"{self.clause}; {times} used up."


def are_disabled(training_input: TrainingInput) -> bool:
    """Whether no new run may follow one that was RUNNING."""
    scheduling = training_input.scheduling
    return scheduling is not None and scheduling.disable_retries


def check_patterns(training_input: TrainingInput) -> None:
    """Raises InvalidArgument for patterns that RE2 cannot read."""
    refused = []
    for number, rule in enumerate(_own_rules(training_input)):
        try:
            pattern(rule.log)
        except PatternError as error:
            refused.append(Violation(f"scheduling.retry[{number}].log", f"cannot be used: {error}"))
    if refused:
        raise InvalidArgument(refused)


def needs_log(job: JobSnapshot, replica: ReplicaSnapshot | None) -> bool:
    """Whether the end of the replica's log may decide about its run."""
    return replica is not None and any(rule.log for rule in _rules(job, replica)[0])


def log_matches(job: JobSnapshot, replica: ReplicaSnapshot, lines: Sequence[str]) -> Matches:
    """The rules with a pattern that one of the lines has."""
    rules, _ = _rules(job, replica)
    searched = [(number, pattern(rule.log)) for number, rule in enumerate(rules) if rule.log]
    return frozenset(number for number, each in searched if any(each.is_in(line[:_LINE]) for line in lines))


def match(job: JobSnapshot, replica: ReplicaSnapshot | None, matches: Matches) -> RuleMatch | None:
    """The first rule that matches the end of the replica; None where none does. `matches` are those of its log."""
    if replica is None or replica.exit is None:
        return None
    code = replica.exit.code
    rules, is_default = _rules(job, replica)
    for number, rule in enumerate(rules):
        if number in matches if rule.log else code in rule.exit_codes:
            return RuleMatch(number + 1, rule, job.rules_used.count(number + 1), code, is_default)
    return None


def retried_codes(training_input: TrainingInput, used: Sequence[int]) -> tuple[int, ...]:
    """The exit codes that certainly lead to a new run, with so many retries used by rules: no pattern stands before."""
    codes: dict[int, bool] = {}
    for number, rule in enumerate(_own_rules(training_input), start=1):
        if rule.log:
            break
        for code in rule.exit_codes:
            codes.setdefault(code, used.count(number) < rule.count)
    return tuple(code for code, is_retried in codes.items() if is_retried)


def _own_rules(training_input: TrainingInput) -> Sequence[RetryRule]:
    scheduling = training_input.scheduling
    return (scheduling.retry or ()) if scheduling is not None else ()


def _rules(job: JobSnapshot, replica: ReplicaSnapshot) -> tuple[Sequence[RetryRule], bool]:
    """The rules for the end of this replica, and whether they are the service's."""
    if replica.exit is None or replica.exit.after_stop or replica.exit.reason not in _PROGRAM_ENDED:
        return (), False
    scheduling = job.training_input.scheduling
    if scheduling is not None and scheduling.retry is not None:
        return scheduling.retry, False
    by_itself = replica.exit.reason is Reason.PROGRAM_ERROR or replica.exit.code == _SIGABRT
    return (DEFAULT_RULES, True) if by_itself else ((), True)
