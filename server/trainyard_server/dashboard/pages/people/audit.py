"""Audit page: who did what, from where."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import Request

from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.people.audit import AuditQuestion

router = Router()


def audit_view(
    request: Request,
    cases: Cases,
    project: str = "",
    actor: str = "",
    action: str = "",
    since: str = "",
    until: str = "",
    after: str = "",
) -> View:
    filters = {"project": project, "actor": actor, "action": action, "since": since, "until": until}
    filters = {name: text.strip() for name, text in filters.items()}

    def query(**changes: str) -> str:
        given = {name: value for name, value in (filters | changes).items() if value}
        return f"?{urlencode(given)}"

    def read() -> Mapping[str, Any]:
        question = AuditQuestion(
            filters["project"],
            filters["actor"],
            filters["action"],
            filters["since"],
            filters["until"],
            page_token=after,
        )
        return {
            "actions": request.app.state.access.actions,
            "after": after,
            "filters": filters,
            "is_filtered": any(filters.values()),
            "listing": cases.audit.page(caller_of(request), question),
            "query": query,
        }

    return View("audit.html", read)


add_page(router, "/audit", Access.PERSON, "the page of the audit, for operators and admins of projects", audit_view)
