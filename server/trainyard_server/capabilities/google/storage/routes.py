"""Routes of the API of Google Cloud Storage. They check who calls, and stream to and from the storage behind.

What a path means is read once, by `trainyard_protocol.net.storage_calls`, from the path as it was sent. What goes to
the storage, and the audit's row, are written from what was read.
"""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import InvalidArgument, NotFound, TooLarge
from trainyard_protocol.net import field_mask
from trainyard_protocol.net.storage_calls import Kind, StorageCall, parse_at_server
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.middleware.audit import Audited
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.storage.names import METHOD, encoded_path
from trainyard_server.capabilities.google.storage.object_storage import ObjectStorage
from trainyard_server.capabilities.google.storage.routing import (
    DELETE_BUCKET,
    DELETE_OBJECT,
    UPDATE_BUCKET,
    WRITE_OBJECT,
    add_routes,
)
from trainyard_server.domain.access.permissions import ALL_PROJECTS, Caller, Role
from trainyard_server.storage.db.tables.audit_trail import AuditTrail
from trainyard_storage.messages import MAX_JSON, Answer
from trainyard_storage.remote import as_json, read_json, with_links

if TYPE_CHECKING:
    import httpx

_INCOMPLETE, _CANCELLED = 308, 499
_ACTIONS = {
    Kind.UPDATE_BUCKET: UPDATE_BUCKET,
    Kind.SET_POLICY: UPDATE_BUCKET,
    Kind.DELETE_BUCKET: DELETE_BUCKET,
    Kind.DELETE: DELETE_OBJECT,
    Kind.PLAIN_DELETE: DELETE_OBJECT,
}
_FIELDS = ("fields", "$fields")
_SYSTEM = ("$alt", "$fields", "$prettyPrint")
"""Parameters that begin with `$` and mean what they mean without it. Others are more than parameters: Google's service
takes a method and headers from some."""

router = Router()


async def storage(request: Request, cases: Cases, caller: AuthenticatedCaller, trail: Audited) -> Response:
    """A call of the storage, if the caller may make it."""
    call = parse_at_server(request.scope.get(METHOD, request.method), encoded_path(request.scope))
    if call is None:
        raise NotFound(f"There is nothing at {request.method} {request.url.path}.")
    use_case = cases.of(ObjectStorage)
    project = request.query_params.get("project", "")
    await run_in_threadpool(_admit, use_case, caller, call, trail)
    if call.kind is Kind.LIST_BUCKETS and not caller.may(Role.VIEWER, ALL_PROJECTS):
        await run_in_threadpool(use_case.check_lists, caller, project)
        rows = await run_in_threadpool(use_case.buckets_of, project)
        items = [_bucket(row.name, row.made_at) for row in rows]
        return _response(as_json({"kind": "storage#buckets", "items": items}, request.query_params))
    if call.kind is Kind.UPLOAD:
        return await _upload(request, call, use_case, trail)
    if call.kind is not Kind.INSERT_BUCKET:
        answer = await _sent(request, call, use_case)
        if call.kind is Kind.DELETE_BUCKET and answer.is_success:
            await run_in_threadpool(use_case.note_deleted_bucket, call.bucket)
        return await _answer(request, call, answer, use_case)
    resource = _resource(await _small_body(request))
    name = await run_in_threadpool(use_case.check_new_bucket, caller, resource.get("name"), project)
    trail.project, trail.subject = project, name
    answer = await _sent(request, call, use_case, json.dumps(resource).encode())
    if answer.is_success:
        await run_in_threadpool(use_case.note_new_bucket, caller, name, project)
    return await _answer(request, call, answer, use_case)


add_routes(router, storage)


def _admit(use_case: ObjectStorage, caller: Caller, call: StorageCall, trail: AuditTrail) -> None:
    """Describe the call in the audit, and check that the caller may make it. Raises PermissionDenied,
    InvalidArgument."""
    if call.writes:
        trail.action = _ACTIONS.get(call.kind, WRITE_OBJECT)
        trail.subject = "/".join(filter(None, (call.writes, call.to_name or call.name)))
        trail.project = use_case.visible_project(caller, call.writes)
    use_case.check(caller, call)


async def _upload(request: Request, call: StorageCall, use_case: ObjectStorage, trail: AuditTrail) -> Response:
    """Upload an object, or a part of one. Only the storage's answer tells its name, and whether it is there now."""
    if name := request.query_params.get("name"):
        trail.subject = f"{call.bucket}/{name}"
    text = next((request.query_params[name] for name in _FIELDS if request.query_params.get(name)), "")
    mask = field_mask.parse(text) if text else {}
    answer = await _sent(request, call, use_case)
    if answer.status_code in (_INCOMPLETE, _CANCELLED) or "location" in answer.headers:
        trail.is_change = False
        return await _answer(request, call, answer, use_case)
    if not answer.is_success:
        return await _answer(request, call, answer, use_case)
    stored = with_links(await read_json(answer), _base(request))
    if isinstance(stored, dict) and isinstance(stored.get("name"), str):
        trail.subject = f"{call.bucket}/{stored['name']}"
    return _response(as_json(field_mask.apply(mask, stored), request.query_params))


async def _sent(
    request: Request, call: StorageCall, use_case: ObjectStorage, resource: bytes | None = None
) -> "httpx.Response":
    """The storage's answer to the call, with the request's body or a resource in its place."""
    headers = dict(request.headers)
    if resource is not None:
        headers = {"content-type": "application/json", "content-length": str(len(resource))}
    method = request.scope.get(METHOD, request.method)
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    if call.is_plain:
        # No other: `?acl`, `?compose` and their like are calls of their own there.
        pairs = [(name, value) for name, value in pairs if name == "generation"]
    unsent = (*_FIELDS, "alt", "$alt") if call.kind is Kind.UPLOAD else ()
    sent = [
        (name, value) for name, value in pairs if name not in unsent and (not name.startswith("$") or name in _SYSTEM)
    ]
    query = urlencode(sent, encoding="latin-1")
    target = f"{call.path}?{query}" if query else call.path
    body = request.stream() if resource is None else _once(resource)
    return await use_case.remote.send(method, target, headers, body)


async def _answer(request: Request, call: StorageCall, answer: "httpx.Response", use_case: ObjectStorage) -> Response:
    return _response(await use_case.remote.answer(answer, call, request.query_params, _base(request)))


def _response(answer: Answer) -> Response:
    """The answer, with the names of headers as they are written in it."""
    if isinstance(answer.body, bytes):
        response = Response(answer.body, answer.status)
    else:
        assert isinstance(answer.body, AsyncIterator)
        response = StreamingResponse(answer.body, answer.status)
    response.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
    return response


def _base(request: Request) -> str:
    return str(request.base_url).rstrip("/")


def _bucket(name: str, made_at: Any) -> Mapping[str, Any]:
    created = made_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"kind": "storage#bucket", "id": name, "name": name, "timeCreated": created}


async def _small_body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_JSON:
            raise TooLarge(f"The request's body is larger than the limit of {MAX_JSON} bytes.")
    return bytes(body)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _resource(body: bytes) -> Mapping[str, Any]:
    """The resource of a bucket, with one name: of two, or of `Name`, another reader takes another. Raises
    InvalidArgument."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("The body must be the resource of a bucket, as JSON.") from error
    if not isinstance(value, dict):
        return {}
    return {key: content for key, content in value.items() if key == "name" or key.lower() != "name"}
