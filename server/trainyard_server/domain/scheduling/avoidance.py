"""The machine that a new run avoids: the one that the last run of its job could not start or go on on. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard_protocol.states import Reason

AVOIDED_FOR = timedelta(minutes=10)
"""The time for which a job prefers to wait for another machine; then it may return."""

_MACHINES = frozenset((Reason.HOST_FAILED, Reason.STAGING_FAILED, Reason.GIVEN_BACK, Reason.HOST_LOST))


@dataclass(frozen=True, slots=True)
class Avoidance:
    """The agent that a job avoids between two times, while another agent could hold it as well."""

    agent_id: str
    since: datetime
    until: datetime

    def applies(self, now: datetime) -> bool:
        """Whether it does now. A clock that was set back ends it, which would last for as long."""
        return self.since <= now < self.until


def avoidance(agent_id: str, reason: str, ended_at: datetime, *, other_host: bool = False) -> Avoidance | None:
    """Avoidance of the agent of a job's last run, by the reason of its verdict ("": it has none). `other_host`: the
    retry rule by which a new run follows asks for another machine."""
    is_avoided = other_host or reason in _MACHINES
    return Avoidance(agent_id, ended_at, ended_at + AVOIDED_FOR) if is_avoided else None
