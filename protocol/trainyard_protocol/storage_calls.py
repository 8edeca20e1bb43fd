"""Calls of the API of Google Cloud Storage: which buckets and objects a request's path names. Pure.

The server's front and the local storage read paths by this one function, so that what was allowed is what is done.
Source: https://cloud.google.com/storage/docs/json_api/v1
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote

JSON_API = "/storage/v1"
DOWNLOADS = "/download"
UPLOADS = ("/upload", "/resumable/upload")
AREAS = (f"{JSON_API}/", *(f"{area}{JSON_API}/" for area in (DOWNLOADS, *UPLOADS)))
"""The beginnings of all paths of the JSON API, except batches."""

_PASSIVE = re.compile(
    r"(application/(json|octet-stream|x-ndjson)|text/(plain|csv)|image/(png|jpeg|gif|webp)|multipart/mixed)(;[ -~]*)?"
)
_INERT = "application/octet-stream"
_BUCKET_DETAILS = ("iam", "iam/testPermissions", "storageLayout", "managedFolders")


class Kind(StrEnum):
    """Kinds of calls. Those of `PLAIN_` have no JSON: they are calls of the XML API."""

    LIST_BUCKETS = "buckets.list"
    INSERT_BUCKET = "buckets.insert"
    GET_BUCKET = "buckets.get"
    UPDATE_BUCKET = "buckets.update"
    DELETE_BUCKET = "buckets.delete"
    BUCKET_DETAIL = "buckets.detail"
    LIST = "objects.list"
    UPLOAD = "objects.insert"
    GET = "objects.get"
    DOWNLOAD = "objects.download"
    UPDATE = "objects.update"
    DELETE = "objects.delete"
    COMPOSE = "objects.compose"
    COPY = "objects.copy"
    REWRITE = "objects.rewrite"
    PLAIN_GET = "plain.get"
    PLAIN_PUT = "plain.put"
    PLAIN_DELETE = "plain.delete"


_OF_BUCKET = {
    "GET": Kind.GET_BUCKET,
    "PATCH": Kind.UPDATE_BUCKET,
    "PUT": Kind.UPDATE_BUCKET,
    "DELETE": Kind.DELETE_BUCKET,
}
_OF_OBJECT = {"GET": Kind.GET, "PATCH": Kind.UPDATE, "PUT": Kind.UPDATE, "DELETE": Kind.DELETE}
_PLAIN = {"GET": Kind.PLAIN_GET, "PUT": Kind.PLAIN_PUT, "DELETE": Kind.PLAIN_DELETE}
_READS = frozenset({Kind.GET_BUCKET, Kind.BUCKET_DETAIL, Kind.LIST, Kind.GET, Kind.DOWNLOAD, Kind.PLAIN_GET})
_COPIES = {"copyTo": Kind.COPY, "rewriteTo": Kind.REWRITE}


@dataclass(frozen=True, slots=True)
class StorageCall:
    """A call, with the bucket and the object that it is about; `to_bucket` and `to_name` are where it copies to."""

    kind: Kind
    path: str
    """The path as it was read: another reader of it finds the same names."""
    bucket: str = ""
    name: str = ""
    to_bucket: str = ""
    to_name: str = ""
    detail: str = ""

    @property
    def reads(self) -> str:
        """The bucket that is read; "" for none."""
        return self.bucket if self.kind in _READS or self.to_bucket else ""

    @property
    def writes(self) -> str:
        """The bucket that is changed; "" for none."""
        return self.to_bucket or ("" if self.kind in _READS else self.bucket)


def parse(method: str, path: str) -> StorageCall | None:
    """The call of a request with an encoded path, without its query; None if there is no such call.

    The slashes of an object's name are encoded. Where they are not, the rest of the path is the name.
    """
    method = "GET" if method == "HEAD" else method
    if not {".", ".."}.isdisjoint(map(unquote, path.split("/"))):
        return None
    for area in UPLOADS:
        if path.startswith(f"{area}{JSON_API}/"):
            return _upload(method, path, path.removeprefix(f"{area}{JSON_API}/"))
    if path.startswith(f"{DOWNLOADS}{JSON_API}/"):
        call = _json(method, path, path.removeprefix(f"{DOWNLOADS}{JSON_API}/"))
        return _made(Kind.DOWNLOAD, path, call.bucket, call.name) if call and call.kind is Kind.GET else None
    if path.startswith(f"{JSON_API}/"):
        return _json(method, path, path.removeprefix(f"{JSON_API}/"))
    bucket, _, name = path.removeprefix("/").partition("/")
    kind = _PLAIN.get(method)
    return _made(kind, path, unquote(bucket), unquote(name)) if kind and bucket and name else None


def object_path(bucket: str, name: str) -> str:
    """The path of an object below `JSON_API`."""
    return f"/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def inert_type(content_type: str) -> str:
    """The type with which an object's content is sent: its own, unless a browser would run what it has."""
    return content_type if _PASSIVE.fullmatch(content_type) else _INERT


def _upload(method: str, path: str, rest: str) -> StorageCall | None:
    match rest.split("/"):
        case ["b", bucket, "o"] if bucket and method in ("POST", "PUT", "DELETE"):
            return _made(Kind.UPLOAD, path, unquote(bucket))
        case _:
            return None


def _json(method: str, path: str, rest: str) -> StorageCall | None:
    match rest.split("/"):
        case ["b"]:
            kinds = {"GET": Kind.LIST_BUCKETS, "POST": Kind.INSERT_BUCKET}
            return StorageCall(kinds[method], path) if method in kinds else None
        case ["b", bucket] if bucket:
            return _made(_OF_BUCKET.get(method), path, unquote(bucket))
        case ["b", bucket, "o"] if bucket:
            kinds = {"GET": Kind.LIST, "POST": Kind.UPLOAD}  # some clients upload to this address
            return _made(kinds.get(method), path, unquote(bucket))
        case ["b", bucket, "o", *names] if bucket and names[0]:
            return _of_object(method, path, unquote(bucket), names)
        case ["b", bucket, *detail] if bucket and method == "GET" and "/".join(detail) in _BUCKET_DETAILS:
            return StorageCall(Kind.BUCKET_DETAIL, path, unquote(bucket), detail="/".join(detail))
        case _:
            return None


def _of_object(method: str, path: str, bucket: str, names: list[str]) -> StorageCall | None:
    match names:
        case [name, "compose"] if method == "POST":
            return _made(Kind.COMPOSE, path, bucket, unquote(name))
        case [name, ("copyTo" | "rewriteTo") as verb, "b", to_bucket, "o", to_name] if method == "POST":
            if not (to_bucket and to_name):
                return None
            return StorageCall(
                _COPIES[verb], path, bucket, unquote(name), unquote(to_bucket), unquote(to_name)
            )
        case _:
            return _made(_OF_OBJECT.get(method), path, bucket, unquote("/".join(names)))


def _made(kind: Kind | None, path: str, bucket: str, name: str = "") -> StorageCall | None:
    return StorageCall(kind, path, bucket, name) if kind is not None else None
