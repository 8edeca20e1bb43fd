"""Routes of Google's clients: the token endpoint of OAuth 2.0 (RFC 7523), and the keys of service accounts."""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.answers.google import GoogleKey, GoogleKeyRevoked
from trainyard_protocol.errors import TooManyRequests, Unauthenticated
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.middleware.csrf import address_of, bearer, form_body, form_fields
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.ml_v1.access import GoogleAccess
from trainyard_server.capabilities.google.ml_v1.grants import GRANT_TYPE
from trainyard_server.domain.access.route_access import TOKEN_PATHS, UNRECORDED, Access

_NO_STORE = {"Cache-Control": "no-store"}
_BAD_REQUEST = 400

router = Router()


async def _form(request: Request) -> dict[str, str]:
    return dict(form_fields(await form_body(request.receive)))


@router.post(TOKEN_PATHS[0], Access.NOBODY, "an access token for an assertion signed with a key", UNRECORDED)
@router.post(TOKEN_PATHS[1], Access.NOBODY, "the same", UNRECORDED)
async def exchange(request: Request, cases: Cases, fields: Annotated[dict[str, str], Depends(_form)]) -> Response:
    """An access token for an assertion that is signed with a key."""
    if fields.get("grant_type", "") != GRANT_TYPE:
        return _refusal("unsupported_grant_type", f"The grant_type must be {GRANT_TYPE}.")
    address = address_of(request)
    try:
        async with cases.guesses.checking(address):
            token = await run_in_threadpool(cases.of(GoogleAccess).exchange, address, fields.get("assertion", ""))
    except TooManyRequests:
        raise
    except Unauthenticated as error:
        return _refusal("invalid_grant", error.message)
    answer = {"access_token": token.text, "expires_in": token.expires_in_s, "token_type": "Bearer"}
    return JSONResponse(answer, headers=_NO_STORE)


@router.post(
    "/trainyard/v1/google-keys",
    Access.PERSON,
    "a key for Google's clients with the rights of your own token; not by a session",
    "google-keys.create",
)
def issue(request: Request, cases: Cases) -> GoogleKey:
    """A key for the owner of the bearer token. The answer alone has its private half."""
    return cases.of(GoogleAccess).issue(bearer(request))


@router.delete(
    "/trainyard/v1/google-keys/{number}", Access.PERSON, "revoke a key of your own token", "google-keys.revoke"
)
def revoke(number: str, request: Request, cases: Cases) -> GoogleKeyRevoked:
    return cases.of(GoogleAccess).revoke(bearer(request), number)


def _refusal(error: str, description: str) -> Response:
    """An error answer of OAuth 2.0 (RFC 6749, section 5.2)."""
    content = {"error": error, "error_description": description}
    return JSONResponse(content, _BAD_REQUEST, headers=_NO_STORE)
