"""Audit trail of the request that is being served: its row is committed in the request's first write transaction.

So no change is in the database without its row, whichever use case makes it, and there is no row of a change that was
rolled back. What is only known at the end of the request, its status, is added then. The same transaction begins by
reading the caller's credential again: transactions that write come one after the other, so that a change is either
committed before a revocation or refused.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from trainyard_protocol.answers.audit import AuditEntry, AuditOutcome
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.storage.db.base.people_models import AuditRow

if TYPE_CHECKING:
    from trainyard_server.storage.db.queries.reader import Reader

_OK = 200
CheckAgain = Callable[["Reader"], None]
"""A check of the caller of a request in a transaction that writes. Raises Unauthenticated, PermissionDenied."""

_CURRENT: ContextVar["AuditTrail | None"] = ContextVar("audit_trail", default=None)


@dataclass(slots=True)
class AuditTrail:
    """The audit of one request. `is_admitted`: its caller may make it; `is_change`: its route changes something.
    `check_again` raises where the caller may not make it any more; None where nothing can change that."""

    clock: Callable[[], datetime]
    address: str = ""
    user_agent: str = ""
    request_id: str = ""
    caller: Caller | None = None
    credential: str = ""
    action: str = ""
    project: str = ""
    subject: str = ""
    is_admitted: bool = False
    is_change: bool = False
    check_again: CheckAgain | None = None
    stored: AuditEntry | None = None

    def entry(self, outcome: AuditOutcome = "done", status: int = _OK) -> AuditEntry:
        """The entry as far as the request is known, with texts that fit and cannot change a terminal or a log."""
        return AuditEntry(
            id=self.stored.id if self.stored is not None else 0,
            time=self.stored.time if self.stored is not None else self.clock(),
            actor=plain(self.caller.name, 128) if self.caller is not None else "",
            credential=plain(self.credential, 64),
            role=str(self._role or ""),
            action=plain(self.action, 128),
            project=plain(self.project, 128),
            subject=plain(self.subject, 256),
            outcome=outcome,
            status=status,
            address=plain(self.address, 64),
            user_agent=plain(self.user_agent, 200),
            request_id=plain(self.request_id, 64),
        )

    @property
    def _role(self) -> Role | None:
        if self.caller is None:
            return None
        return self.caller.role_in(self.project) if self.project else self.caller.role

    @property
    def is_due(self) -> bool:
        """Whether the request's next transaction is its first change: of a caller that is known."""
        return self.is_admitted and self.is_change and self.caller is not None and self.stored is None

    def begin(self, reader: "Reader") -> None:
        """Check the caller again in a transaction that writes. Raises Unauthenticated, PermissionDenied."""
        if self.is_due and self.check_again is not None:
            self.check_again(reader)

    def add_to(self, session: Session) -> AuditRow | None:
        """Add the row to a transaction that writes. None if it is not due."""
        if not self.is_due:
            return None
        row = row_of(self.entry())
        session.add(row)
        return row

    def committed(self, row: AuditRow) -> None:
        self.stored = entry_of(row)


def current_trail() -> AuditTrail | None:
    """The trail of the request that this code serves; None outside of requests."""
    return _CURRENT.get()


def set_current_trail(trail: AuditTrail) -> Callable[[], None]:
    """Make it the current one, also of threads that serve the request. Returns a function that ends this."""
    token = _CURRENT.set(trail)
    return lambda: _CURRENT.reset(token)


def plain(text: str, limit: int) -> str:
    """The text without control, formatting and unpaired surrogate characters, cut to the limit."""
    short = text[:limit]
    return short if short.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in short)


def row_of(entry: AuditEntry) -> AuditRow:
    return AuditRow(**entry.model_dump(exclude={"id"}))


def entry_of(row: AuditRow) -> AuditEntry:
    return AuditEntry.model_validate({name: getattr(row, name) for name in AuditEntry.model_fields})
