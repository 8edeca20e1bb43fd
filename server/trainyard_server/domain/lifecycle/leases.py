"""The lease of an agent, as the server sees it: who keeps it, and when the replicas of a silent agent count as lost.
Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard_protocol.answers.cluster import LeaseKeeper
from trainyard_protocol.fields import rfc3339


@dataclass(frozen=True, slots=True)
class AgentLease:
    """An agent that has been silent for `silent_s`, and may be for `lease_s` (None: without limit). `is_silent`: it
    counts as silent.

    Its replicas count as lost after `lost_after_s`; None: never. A run that is stopped for good waits for it no longer
    than `given_up_after_s`.
    """

    agent: str
    lease_s: float | None
    keeper: LeaseKeeper
    silent_s: float
    is_silent: bool
    lost_after_s: float | None
    given_up_after_s: float

    @property
    def is_lost(self) -> bool:
        return self.lost_after_s is not None and self.silent_s > self.lost_after_s

    @property
    def is_given_up(self) -> bool:
        return self.silent_s > self.given_up_after_s

    @property
    def lacks_majority(self) -> bool:
        """Whether the server waits longer than the lease, since it cannot tell that others do not keep it."""
        return self.lost_after_s is not None and self.lost_after_s > self.given_up_after_s

    def time_of(self, silence_s: float, now: datetime) -> datetime:
        """When the agent has been silent for so long."""
        return now + timedelta(seconds=silence_s - self.silent_s)


def awaited(leases: Iterable[AgentLease], now: datetime, *, cancelled: bool) -> str:
    """The end of a sentence: it waits for the agents on which the job has not ended, of these; "" for none."""
    if cancelled:
        return "; ".join(_cancelled(lease, now) for lease in leases)
    return "; ".join(_lost(lease, now) for lease in leases if lease.is_silent)


def _cancelled(lease: AgentLease, now: datetime) -> str:
    until = _second(lease.time_of(lease.given_up_after_s, now))
    if not lease.is_silent:
        return f"for agent {lease.agent} to stop it, until {until} at the latest if that does not answer"
    return f"{_silent(lease, now)}, until {until} at the latest"


def _lost(lease: AgentLease, now: datetime) -> str:
    limit = f"`jobs cancel` waits until {_second(lease.time_of(lease.given_up_after_s, now))} at the latest"
    if lease.lost_after_s is None:
        return f"{_silent(lease, now)}: nothing starts elsewhere before it is back; {limit}"
    at = _second(lease.time_of(lease.lost_after_s, now))
    if lease.lacks_majority:
        also = "no majority of the agents that keep its lease with it answers"
        return f"{_silent(lease, now)}: its replicas count as lost once one does, else at {at}, since {also}; {limit}"
    return f"{_silent(lease, now)}: its replicas count as lost at {at}"


def _silent(lease: AgentLease, now: datetime) -> str:
    has = "no lease" if lease.lease_s is None else f"a lease of {lease.lease_s:g} s"
    return f"for agent {lease.agent}, which is silent since {_second(lease.time_of(0, now))} and has {has}"


def _second(time: datetime) -> str:
    return rfc3339(time.replace(microsecond=0))
