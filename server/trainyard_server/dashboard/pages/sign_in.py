"""Sign-in and sign-out: a token, or the code of a link, becomes a session of the browser."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import TrainyardError
from trainyard_server.api.csrf import form_body, form_fields, session_cookie
from trainyard_server.api.dependencies import Cases
from trainyard_server.dashboard.views import Pages, View
from trainyard_server.domain.permissions import SIGN_IN, SIGN_OUT, local_path
from trainyard_server.services.sign_in import TooManySignIns

router = APIRouter()


async def _form(request: Request) -> dict[str, str]:
    return dict(form_fields(await form_body(request.receive)))


@router.get(SIGN_IN)
def sign_in_page(
    request: Request, pages: Pages, next_path: Annotated[str, Query(alias="next")] = "/"
) -> HTMLResponse:
    return _page(request, pages, local_path(next_path))


@router.post(SIGN_IN)
async def sign_in(
    request: Request, pages: Pages, cases: Cases, fields: Annotated[dict[str, str], Depends(_form)]
) -> Response:
    """Open a session; with a wrong token show the page again, and keep the session there was."""
    path = local_path(fields.get("next", "/"))
    client = request.client.host if request.client is not None else ""
    code, token = fields.get("code", ""), fields.get("token", "").strip()
    enter = cases.sign_in.with_code if code else cases.sign_in.with_token
    try:
        session = await run_in_threadpool(enter, client, code or token, request.state.session)
    except TrainyardError as error:
        return _page(request, pages, path, error)
    answer = RedirectResponse(path, 303)
    answer.headers.append("Set-Cookie", session_cookie(request, session, cases.backend.clock()))
    return answer


@router.post(SIGN_OUT)
def sign_out(request: Request, cases: Cases) -> Response:
    """End the session, for all copies of its cookie."""
    if request.state.session is not None:
        cases.revoked_sessions.revoke(request.state.session)
    answer = RedirectResponse(SIGN_IN, 303)
    answer.headers.append("Set-Cookie", session_cookie(request, None, cases.backend.clock()))
    return answer


def _page(request: Request, pages: Pages, path: str, error: TrainyardError | None = None) -> HTMLResponse:
    html = pages.page(request, View("sign_in.html", lambda: {"next": path, "error": error}))
    answer = HTMLResponse(html, error.http_status if error is not None else 200)
    if isinstance(error, TooManySignIns):
        answer.headers["Retry-After"] = str(error.wait_s)
    return answer
