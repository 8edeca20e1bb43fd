"""The start deadline: when a run is given back whose engine does not start its replicas. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes.installing import is_installing
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport

START_DEADLINE_S = PATIENCE_S
"""The time for which an engine may give the same reasons for not starting a run."""


_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class _Wait:
    """`seen`: every state and reason of the run so far. Reasons that repeat in turn are no progress, nor are other
    numbers in them: `0/900 nodes are available: 899 Insufficient cpu` changes with whatever else runs in a cluster."""

    since: float
    seen: set[tuple[str, str, str]] = field(default_factory=set)


class StartDeadline:
    def __init__(self, seconds: float) -> None:
        """`seconds`: how long the reasons of waiting replicas may stand still."""
        self._seconds = seconds
        self._waits: dict[str, _Wait] = {}
        self._given_back: dict[str, str] = {}

    def overdue(self, observed: Mapping[str, Sequence[ReplicaReport]], now: float) -> dict[str, str]:
        """The runs that have waited for too long at this (monotonic) time, each with a sentence that says for what."""
        self._given_back = {run_id: why for run_id, why in self._given_back.items() if run_id in observed}
        waiting = {run_id: reports for run_id, reports in observed.items() if any(map(_waits, reports))}
        self._waits = {run_id: wait for run_id, wait in self._waits.items() if run_id in waiting}
        overdue = {}
        for run_id, reports in waiting.items():
            wait = self._waits.setdefault(run_id, _Wait(now))
            states = {(report.task, report.state, _NUMBER.sub("#", report.waits)) for report in reports}
            if not states <= wait.seen:
                wait.seen |= states
                wait.since = now
            if now - wait.since >= self._seconds and run_id not in self._given_back:
                first = next(filter(_waits, reports))
                waits = first.waits.rstrip(".")
                overdue[run_id] = f"{first.task} was not started for {self._seconds:g} s: {waits}."
        return overdue

    def give_back(self, run_id: str, message: str) -> None:
        """Mark a run as stopped for this reason."""
        self._given_back[run_id] = message

    def annotate(self, run_id: str, reports: tuple[ReplicaReport, ...]) -> tuple[ReplicaReport, ...]:
        """The reports of a run, with the reason in its ends if it was given back."""
        message = self._given_back.get(run_id)
        return reports if message is None else tuple(_ended_by(report, message) for report in reports)


def _waits(report: ReplicaReport) -> bool:
    """Whether it was to start. One that is PENDING is still in a queue of its engine, which may be long; one that is
    installing has another limit."""
    return bool(report.waits) and report.state is not ReplicaState.PENDING and not is_installing(report.waits)


def _ended_by(report: ReplicaReport, message: str) -> ReplicaReport:
    if report.exit is None or report.exit.reason is not Reason.GIVEN_BACK:
        return report
    return report.model_copy(update={"exit": report.exit.model_copy(update={"message": message})})
