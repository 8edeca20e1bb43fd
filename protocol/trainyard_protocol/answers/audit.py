"""Messages of the audit (`/trainyard/v1/audit`): who called what, from where, and what came of it."""

from datetime import datetime
from typing import Literal

from trainyard_protocol.message import Wire

AuditOutcome = Literal["done", "refused", "failed"]


class AuditEntry(Wire):
    """A call that changes something, or one that was refused for want of a token or a role.

    `actor` is the caller's name, "" if unknown; `credential` is `token:ID`, as `trainyard tokens list` shows it, or
    `single-sign-on`, or a `session of` one of these; `role` is the caller's role in the project. `action` is that of
    the route, or the route itself for a refused read. `failed`: the server answered with an error of its own. With
    `count` above 1 the row stands for so many calls like it, which were refused in one minute.
    """

    id: int
    time: datetime
    actor: str
    credential: str
    role: str
    action: str
    project: str
    subject: str
    outcome: AuditOutcome
    status: int
    address: str
    user_agent: str
    request_id: str
    count: int = 1


class AuditPage(Wire):
    """Entries, the newest first. `next_page_token` is "" on the last page."""

    entries: tuple[AuditEntry, ...]
    next_page_token: str = ""
