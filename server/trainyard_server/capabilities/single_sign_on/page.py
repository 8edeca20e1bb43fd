"""Single sign-on: to the issuer's sign-in page, and back with a session."""

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from trainyard_protocol.errors import NotFound, TrainyardError, Unauthenticated
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.middleware.csrf import address_of, name_of_cookie, session_cookie
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.single_sign_on.oidc import ATTEMPT_LIFETIME
from trainyard_server.capabilities.single_sign_on.single_sign_on import SingleSignOn
from trainyard_server.dashboard.pages.people.sign_in import sign_in_answer
from trainyard_server.dashboard.views import Pages
from trainyard_server.domain.access.route_access import OIDC, OIDC_CALLBACK, SIGN_IN, Access, local_path
from trainyard_server.domain.access.sessions import set_cookie
from trainyard_server.use_cases import UseCases

router = Router()

_LONGEST_ANSWER = 4096


@router.get(OIDC, Access.NOBODY, "go to the issuer of single sign-on")
async def begin(request: Request, pages: Pages, cases: Cases, next: str = "/") -> Response:  # noqa: A002 - the query
    """Go to the issuer. Another site's link leads to the sign-in page instead: the person decides."""
    single_sign_on = _offered(cases)
    path = local_path(next)
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return RedirectResponse(SIGN_IN, 303)
    try:
        begun = await single_sign_on.begin(path)
    except TrainyardError as error:
        return sign_in_answer(request, pages, cases, path, error)
    return _with_attempt(request, RedirectResponse(begun.url, 303), begun.cookie)


@router.get(OIDC_CALLBACK, Access.NOBODY, "come back from it, signed in", "sign-in")
async def finish(
    request: Request, pages: Pages, cases: Cases, state: str = "", code: str = "", error: str = ""
) -> Response:
    """Open a session for the person whom the issuer names; the attempt ends with its first answer."""
    single_sign_on = _offered(cases)
    cookie = request.cookies.get(_cookie_name(request), "")
    answer: Response
    if max(map(len, (state, code, error))) > _LONGEST_ANSWER:
        error, code = "too long", ""
    address = address_of(request)
    try:
        async with cases.guesses.checking(address):
            session, path = await single_sign_on.finish(cookie, state, code, error, request.state.session)
    except TrainyardError as problem:
        if isinstance(problem, Unauthenticated):
            problem = cases.guesses.wrong(address, problem)
        answer = sign_in_answer(request, pages, cases, "/", problem)
    else:
        answer = RedirectResponse(path, 303)
        answer.headers.append("Set-Cookie", session_cookie(request, session, cases.backend.clock()))
    return _with_attempt(request, answer, "")


def _offered(cases: UseCases) -> SingleSignOn:
    if (single_sign_on := cases.find(SingleSignOn)) is None:
        raise NotFound("This server has no single sign-on: its operator gives it an --oidc-issuer.")
    return single_sign_on


def _with_attempt(request: Request, answer: Response, value: str) -> Response:
    age_s = int(ATTEMPT_LIFETIME.total_seconds()) if value else 0
    line = set_cookie(request.url.scheme, _cookie_name(request), value, age_s)
    answer.headers.append("Set-Cookie", line)
    return answer


def _cookie_name(request: Request) -> str:
    return f"{name_of_cookie(request)}-oidc"
