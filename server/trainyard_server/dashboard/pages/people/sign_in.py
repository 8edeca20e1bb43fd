"""Sign-in and sign-out: a token, or the code of a link, becomes a session of the browser."""

from functools import partial
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import TooManyRequests, TrainyardError
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.middleware.audit import Audited
from trainyard_server.api.middleware.csrf import CSRF_FIELD, address_of, form_body, form_fields, session_cookie
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import Pages, View
from trainyard_server.domain.access.route_access import SIGN_IN, SIGN_OUT, Access, local_path
from trainyard_server.services.people.sign_in import OtherAccount
from trainyard_server.use_cases import UseCases

router = Router()


async def _form(request: Request) -> dict[str, str]:
    return dict(form_fields(await form_body(request.receive)))


@router.get(SIGN_IN, Access.NOBODY, "the sign-in page")
def sign_in_page(
    request: Request, pages: Pages, cases: Cases, next_path: Annotated[str, Query(alias="next")] = "/"
) -> HTMLResponse:
    return sign_in_answer(request, pages, cases, local_path(next_path))


@router.post(SIGN_IN, Access.NOBODY, "sign in with a token or a code", "sign-in")
async def sign_in(
    request: Request, pages: Pages, cases: Cases, trail: Audited, fields: Annotated[dict[str, str], Depends(_form)]
) -> Response:
    """Open a session; with a wrong token show the page again, and keep the session there was.

    A link for another account than that of the session needs the answer to a question, with the session's CSRF value
    as other forms."""
    path = local_path(fields.get("next", "/"))
    address, session = address_of(request), request.state.session
    code, token = fields.get("code", ""), fields.get("token", "").strip()
    if code:
        confirmed = session is not None and session.is_csrf(fields.get(CSRF_FIELD, ""))
        enter = partial(cases.sign_in.with_code, address, code, session, confirmed=confirmed)
    else:
        enter = partial(cases.sign_in.with_token, address, token, session)
    try:
        async with cases.guesses.checking(address):
            session = await run_in_threadpool(enter)
    except OtherAccount as question:
        trail.is_change = False
        context = {"question": question, "next": path, "code": code}
        return HTMLResponse(pages.page(request, View("switch_account.html", lambda: context)))
    except TrainyardError as error:
        return sign_in_answer(request, pages, cases, path, error)
    answer = RedirectResponse(path, 303)
    answer.headers.append("Set-Cookie", session_cookie(request, session, cases.backend.clock()))
    return answer


@router.post(SIGN_OUT, Access.PERSON, "the session ends", "sign-out")
def sign_out(request: Request, cases: Cases) -> Response:
    """End the session, for all copies of its cookie."""
    if request.state.session is not None:
        cases.revoked_sessions.revoke(request.state.session)
    answer = RedirectResponse(SIGN_IN, 303)
    answer.headers.append("Set-Cookie", session_cookie(request, None, cases.backend.clock()))
    return answer


def sign_in_answer(
    request: Request, pages: Pages, cases: UseCases, path: str, error: TrainyardError | None = None
) -> HTMLResponse:
    """The sign-in page; `path` is where it leads to. With an error its message and status."""
    issuer = next((credentials.issuer for credentials in cases.credentials if credentials.issuer), "")
    html = pages.page(request, View("sign_in.html", lambda: {"next": path, "error": error, "issuer": issuer}))
    answer = HTMLResponse(html, error.http_status if error is not None else 200)
    if isinstance(error, TooManyRequests):
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer
