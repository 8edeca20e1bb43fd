"""What a request says of who sends it: its token, its cookie, its form, and which site's page is behind it."""

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message, Receive

from trainyard_protocol.errors import InvalidArgument, PermissionDenied, TooLarge
from trainyard_server.domain.sessions import Session, cookie, cookie_name

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf"

_FORM = "application/x-www-form-urlencoded"
_FORM_LIMIT = 64 * 2**10
_FIELDS_LIMIT = 100


def bearer(request: HTTPConnection) -> str:
    """The token that comes with a request; "": there is none."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def cookie_value(request: HTTPConnection) -> str:
    """What our cookie holds; "": there is none."""
    return request.cookies.get(name_of_cookie(request), "")


def session_cookie(request: HTTPConnection, session: Session | None, now: datetime) -> str:
    """The value of Set-Cookie for the address that this request came to; without a session: forgets it."""
    return cookie(request.url.scheme, request.headers.get("host", ""), session, now)


def name_of_cookie(request: HTTPConnection) -> str:
    return cookie_name(request.url.scheme, request.headers.get("host", ""))


def check_origin(request: HTTPConnection) -> None:
    """Raises PermissionDenied where the browser says that a page of another site is behind the call."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        fine = site in ("same-origin", "none")
    else:
        fine = origin is None or _host(origin) == request.headers.get("host", "")
    if not fine:
        raise PermissionDenied(f"A page of another site ({origin or site}) cannot do this for you.")


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


async def check_csrf(session: Session, request: HTTPConnection, receive: Receive) -> Receive:
    """Raises PermissionDenied unless the call knows what only pages of this session know: in a header, or, where the
    body is a form, in a field. Returns what the body is read from then."""
    said = request.headers.get(CSRF_HEADER)
    if said is None and _is_form(request):
        body = await form_body(receive)
        said = form_fields(body).get(CSRF_FIELD)
        receive = _again(body, receive)
    if said is None or not session.is_csrf(said):
        raise PermissionDenied(
            f"The call has no good {CSRF_HEADER}, which tells that it comes from a page of this session. "
            "Load the page again, then try again."
        )
    return receive


def form_fields(body: bytes) -> Mapping[str, str]:
    """The fields of a form; of one that is there several times the last. Raises InvalidArgument for too many."""
    try:
        fields = parse_qs(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS_LIMIT
        )
    except ValueError as error:
        raise InvalidArgument(f"The form has more than {_FIELDS_LIMIT} fields.") from error
    return {name: values[-1] for name, values in fields.items()}


def _is_form(request: HTTPConnection) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


async def form_body(receive: Receive) -> bytes:
    """The whole body, which nobody has to sign in to send. Raises TooLarge, ClientDisconnect."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > _FORM_LIMIT:
            raise TooLarge(f"The form is larger than the {_FORM_LIMIT} bytes that are read.")
        if not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    given = False

    async def receiving() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving
