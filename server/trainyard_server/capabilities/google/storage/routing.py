"""Declarations of the routes of Google Cloud Storage. Which call may be made by whom, the storage's own check says."""

from collections.abc import Callable
from typing import Any

from trainyard_protocol.net.storage_calls import PLAIN_OBJECTS
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

WRITE_OBJECT, DELETE_OBJECT = "objects.write", "objects.delete"
UPDATE_BUCKET, DELETE_BUCKET = "buckets.update", "buckets.delete"

_BUCKETS = "/storage/v1/b"
_BUCKET = f"{_BUCKETS}/{{bucket}}"
_BELOW = f"{_BUCKET}/{{rest:path}}"
_PLAIN_OBJECT = f"{PLAIN_OBJECTS}/{{bucket}}/{{name:path}}"

_READS = (
    (_BUCKETS, "the buckets of a project that you may see"),
    (_BUCKET, "a bucket of a project that you may see; so the next reads"),
    (_BELOW, "list and read objects"),
    (f"/download{_BELOW}", "read an object"),
    (_PLAIN_OBJECT, "read an object; by the storage's own name `/BUCKET/OBJECT`"),
)
_CHANGES = (
    ("POST", _BUCKETS, "make a bucket in a project where you are a submitter", "buckets.create"),
    *((method, _BUCKET, "change it, as an admin of its project", UPDATE_BUCKET) for method in ("PATCH", "PUT")),
    ("DELETE", _BUCKET, "delete it, as an admin of its project", DELETE_BUCKET),
    *((method, _BELOW, "write objects, as a submitter", WRITE_OBJECT) for method in ("POST", "PATCH", "PUT")),
    ("DELETE", _BELOW, "delete one, as a submitter", DELETE_OBJECT),
    *(
        (method, f"{area}{_BUCKET}/o", "upload objects, as a submitter", WRITE_OBJECT)
        for area in ("/upload", "/resumable/upload")
        for method in ("POST", "PUT", "DELETE")
    ),
    ("PUT", _PLAIN_OBJECT, "write one, as a submitter", WRITE_OBJECT),
    ("DELETE", _PLAIN_OBJECT, "delete one, as a submitter", DELETE_OBJECT),
)


def add_routes(router: Router, storage: Callable[..., Any]) -> None:
    """Add all routes of the storage."""
    for path, what in _READS:
        router.get(path, Access.PERSON, what, response_model=None)(storage)
    for method, path, what, action in _CHANGES:
        router.add(method, path, Access.PERSON, what, action, response_model=None, is_upload=True)(storage)
