"""Audit trail of the request that is being served: its row is committed in the request's first write transaction.

So no change is in the database without its row, whichever use case makes it, and there is no row of a change that was
rolled back. What is only known at the end of the request, its status, is added then.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from trainyard_protocol.views.audit import AuditEntry, AuditOutcome
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.storage.db.base.models import AuditRow

_OK = 200
_CURRENT: ContextVar["AuditTrail | None"] = ContextVar("audit_trail", default=None)


@dataclass(slots=True)
class AuditTrail:
    """The audit of one request. `is_admitted`: its caller may make it; `is_change`: its route changes something."""

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

    def add_to(self, session: Session) -> AuditRow | None:
        """Add the row to a transaction that writes. None if it is stored already, or is no change of a known caller."""
        is_due = self.is_admitted and self.is_change and self.caller is not None
        if not is_due or self.stored is not None:
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
