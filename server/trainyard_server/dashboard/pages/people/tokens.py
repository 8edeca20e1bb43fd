"""Page of your own tokens: make one for a terminal or a pipeline, and revoke those that are not needed any more."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.people import LONGEST_EXPIRY_S, MAX_DESCRIPTION
from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access

router = Router()

_DAYS = (1, 7, 30, 90, LONGEST_EXPIRY_S // 86400)


def tokens_view(request: Request, cases: Cases) -> View:
    caller = caller_of(request)

    def read() -> Mapping[str, Any]:
        now = cases.backend.clock()
        return {
            "days": _DAYS,
            "longest": MAX_DESCRIPTION,
            "roles": sorted(caller.grants.items()),
            "server": str(request.base_url).rstrip("/"),
            "tokens": [(token, token.ended(now)) for token in cases.people.tokens(caller).tokens],
        }

    return View("tokens.html", read)


add_page(router, "/tokens", Access.PERSON, "the page of your own tokens", tokens_view)
