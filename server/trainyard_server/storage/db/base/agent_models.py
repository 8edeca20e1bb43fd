"""Tables of agents, of the leases of servers, and of the installation."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import AnyText, Table


class AgentRow(Table):
    __tablename__ = "agents"

    agent_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    info: Mapped[dict[str, Any]]
    key_sha256: Mapped[str] = mapped_column(String(64), default="")  # of its key
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]
    lease_s: Mapped[float | None]  # how long it may be silent; None: no limit
    # An agent is silent while this does not change.
    heartbeats: Mapped[int] = mapped_column("heard", default=0)
    sent_version: Mapped[str] = mapped_column(String(32), default="")  # of the last answer to it
    sent_lease_s: Mapped[float | None]  # the lease in that answer
    # The members in that answer, by a majority of which it may keep its lease, and all the lists that it may have.
    sent_members: Mapped[list[Any]] = mapped_column(default=list)
    member_lists: Mapped[list[Any]] = mapped_column(default=list)
    # Ended runs with live processes.
    orphaned_runs: Mapped[list[Any]] = mapped_column("leftovers", default=list)
    draining: Mapped[bool] = mapped_column(default=False)  # it is given no new run
    drain_reason: Mapped[str] = mapped_column(AnyText, default="")  # "": an operator decided it
    failures: Mapped[list[Any]] = mapped_column(default=list)  # of its machine: see domain/scheduling/blame.py
    removed_at: Mapped[datetime | None]  # by an operator; its row stays, for its runs
    given_name: Mapped[str] = mapped_column(AnyText, default="")  # by its token or by itself; another one may have it
    restored: Mapped[bool] = mapped_column(default=False)  # it has not called since a backup was restored
    # Revision at which more than its heartbeat changed.
    changed: Mapped[int] = mapped_column(BigInteger, default=0)

    @property
    def has_members(self) -> bool:
        """Whether it may have a lease that it keeps by a majority."""
        return bool(self.sent_members or self.member_lists)

    @property
    def is_confirmed(self) -> bool:
        """Whether it has the lease of the last answer that was recorded, and no other."""
        return all(getattr(self, name) == value for name, value in self.with_confirmed_answer().items())

    def with_answer(self, version: str, lease_s: float | None, members: Sequence[str]) -> dict[str, Any]:
        """Its values once an answer is sent to it, which may be lost."""
        lists = self.member_lists
        if members and list(members) not in lists:
            lists = [*lists, list(members)]
        sent = {"sent_version": version, "sent_lease_s": lease_s, "sent_members": list(members)}
        return {**sent, "member_lists": lists}

    def with_confirmed_answer(self) -> dict[str, Any]:
        """Its values once it is known to have the last answer, and so no other lease."""
        return {"lease_s": self.sent_lease_s, "member_lists": [self.sent_members] if self.sent_members else []}


class RevisionRow(Table):
    """Counts the transactions that change what the scheduler looks at; one row. What has changed since a revision is
    read by `changed` of jobs and agents. `placed` and `noted`: the last revision at which a run was created, and the
    last one at which reasons to wait were written. `written`: transactions that wrote a live row, where several server
    processes write."""

    __tablename__ = "revisions"

    id: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)
    placed: Mapped[int] = mapped_column(BigInteger)
    noted: Mapped[int] = mapped_column(BigInteger)
    written: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class LeaseRow(Table):
    """A lease of one server process. It expires when `heartbeat` has not changed for `ttl_s`, by the reader's
    clock."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))
    heartbeat: Mapped[int] = mapped_column("beat")
    ttl_s: Mapped[float]


class InstallationRow(Table):
    """The id of the data directory with the logs and uploads of this database."""

    __tablename__ = "installation"

    installation_id: Mapped[str] = mapped_column(String(32), primary_key=True)
