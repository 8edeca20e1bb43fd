"""Audit: who called what, from where, and what came of it.

The row of a change in the database is committed with the change (`storage.db.audit_trail`). All others are written
before the answer is sent; one that cannot be written is in the server's log.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.answers.audit import AuditEntry, AuditOutcome, AuditPage
from trainyard_protocol.errors import InvalidArgument, PermissionDenied, Violation
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.domain.filters.time_bounds import time_bound
from trainyard_server.services.people.principals import Principal
from trainyard_server.services.people.refusal_counts import RefusalCounts
from trainyard_server.storage.audit_file import AuditFile
from trainyard_server.storage.db.tables import audit
from trainyard_server.storage.db.tables.audit_trail import AuditTrail, current_trail
from trainyard_server.storage.failures import DatabaseError, FailureLog, failure_detail

AUDIT_PAGE_SIZE = 50
MAX_AUDIT_PAGE_SIZE = 1000

_CLIENT_ERROR, _SERVER_ERROR = 400, 500

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    """A list as requested; "" filters nothing. `since` and `until` are times or ages."""

    project: str = ""
    actor: str = ""
    action: str = ""
    since: str = ""
    until: str = ""
    page_size: int | None = None
    page_token: str = ""


class Audit:
    def __init__(self, backend: Backend, file: AuditFile | None = None) -> None:
        self._backend = backend
        self._file = file
        self._refusals = RefusalCounts()
        self._failures = FailureLog(logger)

    def record(self, trail: AuditTrail, status: int) -> None:
        """Write the row of a call that is answered with `status`. Never raises for a database or a disk."""
        trail.is_change = False  # the transactions below are none of its changes
        outcome = _outcome(trail, status)
        entry = trail.entry(outcome, status)
        if trail.stored is not None:
            self._complete(trail.stored, entry)
        elif outcome == "done" or self._refusals.admit(entry):
            self._write(entry)
        self.write_counts()

    def is_recorded(self, trail: AuditTrail, status: int) -> bool:
        """Whether the row was committed with the change, and the end of the request adds nothing to it."""
        stored = trail.stored
        return self._file is None and stored is not None and stored == trail.entry(_outcome(trail, status), status)

    def write_counts(self, *, closing: bool = False) -> None:
        """Write the counts of refused calls, if their minute is over or the server stops."""
        for entry in self._refusals.collect(self._backend.clock(), closing=closing):
            self._write(entry)

    def page(self, caller: Caller, question: AuditQuestion) -> AuditPage:
        """A page of entries: all for operators, those of its projects for an admin. Raises PermissionDenied,
        InvalidArgument."""
        projects = _visible(caller, question.project)
        size = _size(question.page_size)
        since, until = _times(question, self._backend.clock())
        query = audit.AuditQuery(
            projects=projects,
            actor=question.actor,
            action=question.action,
            since=since,
            until=until,
            below=_below(question.page_token),
        )
        with self._backend.store.read() as reader:
            entries = audit.entries(reader, query, size + 1)
        more = str(entries[size - 1].id) if len(entries) > size else ""
        return AuditPage(entries=tuple(entries[:size]), next_page_token=more)

    def _write(self, entry: AuditEntry) -> None:
        try:
            with self._backend.store.write() as writer:
                entry = audit.add(writer, entry)
        except (DatabaseError, OSError) as error:
            logger.error("A row of the audit is not stored (%s): %s", failure_detail(error), _json(entry))  # noqa: TRY400
        self._append(entry)

    def _complete(self, stored: AuditEntry, entry: AuditEntry) -> None:
        if entry != stored:
            try:
                with self._backend.store.write() as writer:
                    audit.complete(writer, entry)
            except (DatabaseError, OSError) as error:
                logger.error(  # noqa: TRY400
                    "A row of the audit lacks its end (%s): %s", failure_detail(error), _json(entry)
                )
        self._append(entry)

    def _append(self, entry: AuditEntry) -> None:
        if self._file is None:
            return
        operation = "The audit file cannot be written"
        try:
            self._file.append(entry)
        except OSError as error:
            self._failures.record(operation, error)
        else:
            self._failures.resolved(operation, "The audit file is written again.")


def identify(principal: Principal, *, by_session: bool = False) -> None:
    """Note in the audit of the request who makes it."""
    trail = current_trail()
    if trail is not None:
        trail.caller = principal.caller
        trail.credential = f"session of {principal.public_id}" if by_session else principal.public_id


def _outcome(trail: AuditTrail, status: int) -> AuditOutcome:
    """A change that is in the database is done, whatever failed after it."""
    if status >= _SERVER_ERROR:
        return "done" if trail.stored is not None else "failed"
    return "refused" if status >= _CLIENT_ERROR or not trail.is_admitted else "done"


def may_read(caller: Caller) -> bool:
    """Whether the caller sees any project's entries."""
    return caller.may_anywhere(Role.ADMIN)


def _visible(caller: Caller, project: str) -> frozenset[str] | None:
    """The projects of the list; None for all, with what is of no project. Raises PermissionDenied."""
    if caller.is_operator:
        return frozenset({project}) if project else None
    if project and caller.may(Role.ADMIN, project):
        return frozenset({project})
    own = frozenset(name for name, role in caller.grants.items() if role.includes(Role.ADMIN))
    if project or not own:
        raise PermissionDenied(
            f"You are {caller.described_in(project) if project else caller}. The audit is for operators, and that of a "
            "project for its admins."
        )
    return own


def _size(given: int | None) -> int:
    if given is not None and given < 0:
        raise InvalidArgument(Violation("pageSize", f"must be 0 or more; this is {given}."))
    return min(given or AUDIT_PAGE_SIZE, MAX_AUDIT_PAGE_SIZE)


def _times(question: AuditQuestion, now: datetime) -> tuple[datetime | None, datetime | None]:
    wrong: list[Violation] = []
    since = time_bound("since", question.since, now, wrong)
    until = time_bound("until", question.until, now, wrong)
    if wrong:
        raise InvalidArgument(wrong)
    return since, until


def _below(token: str) -> int | None:
    if not token:
        return None
    if not (token.isascii() and token.isdecimal() and len(token) <= 18):
        raise InvalidArgument(Violation("pageToken", "must be the nextPageToken of the page before."))
    return int(token)


def _json(entry: AuditEntry) -> str:
    return entry.model_dump_json()
