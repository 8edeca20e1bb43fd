"""Credentials in a request, and protection against cross-site request forgery (CSRF)."""

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Message, Receive

from trainyard_protocol.errors import InvalidArgument, PermissionDenied, TooLarge
from trainyard_server.domain.access.sessions import Session, cookie, cookie_name

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf"

_FORM = "application/x-www-form-urlencoded"
_FORM_LIMIT = 64 * 2**10
_FIELDS_LIMIT = 100


def bearer(request: HTTPConnection) -> str:
    """The bearer token; "" without one."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def address_of(request: HTTPConnection) -> str:
    """The address of the client, behind a proxy on this machine the one that it names."""
    return request.client.host if request.client is not None else ""


def cookie_value(request: HTTPConnection) -> str:
    """The value of the session cookie; "" without one."""
    return request.cookies.get(name_of_cookie(request), "")


def session_cookie(request: HTTPConnection, session: Session | None, now: datetime) -> str:
    """The Set-Cookie header for the host of this request. A session of None deletes the cookie."""
    return cookie(request.url.scheme, request.headers.get("host", ""), session, now)


def name_of_cookie(request: HTTPConnection) -> str:
    return cookie_name(request.url.scheme, request.headers.get("host", ""))


def check_origin(request: HTTPConnection) -> None:
    """Raises PermissionDenied if the browser reports that another site's page made the call."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    by_origin = origin is None or _is_own(origin, request)
    if not (by_origin if site is None else site in ("same-origin", "none")):
        raise PermissionDenied(f"Cross-site request refused: a page of {origin or site} made it.")


def _is_own(origin: str, request: HTTPConnection) -> bool:
    """Whether the origin is this site. Over https a page of its http address is not: anybody on the network may have
    changed it."""
    try:
        address = urlsplit(origin)
    except ValueError:
        return False
    schemes = ("https",) if request.url.scheme == "https" else ("http", "https")  # a proxy may hide its https
    return address.scheme in schemes and address.netloc == request.headers.get("host", "")


async def check_csrf(session: Session, request: HTTPConnection, receive: Receive) -> Receive:
    """Raises PermissionDenied unless the call has the session's CSRF value, in the header or in a form field. Returns a
    `receive` that still has the whole body."""
    value = request.headers.get(CSRF_HEADER)
    if value is None and _is_form(request):
        body = await form_body(receive)
        value = form_fields(body).get(CSRF_FIELD)
        receive = replay(body, receive)
    if value is None or not session.is_csrf(value):
        raise PermissionDenied(
            f"The {CSRF_HEADER} is missing or wrong: it must be the one of this session's pages. "
            "Reload the page and try again."
        )
    return receive


def form_fields(body: bytes) -> Mapping[str, str]:
    """The fields of a form; the last value of a repeated field. Raises InvalidArgument for too many fields."""
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS_LIMIT)
    except ValueError as error:
        raise InvalidArgument(f"The form has more than {_FIELDS_LIMIT} fields.") from error
    return {name: values[-1] for name, values in fields.items()}


def _is_form(request: HTTPConnection) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM


async def form_body(receive: Receive) -> bytes:
    """The whole body. Its size is limited, since it is read before sign-in. Raises TooLarge, ClientDisconnect."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > _FORM_LIMIT:
            raise TooLarge(f"The form is larger than the limit of {_FORM_LIMIT} bytes.")
        if not message.get("more_body", False):
            return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that has the body once, and then what `receive` has: a streamed answer waits there for the end of the
    connection."""
    replayed = False

    async def receiving() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving
