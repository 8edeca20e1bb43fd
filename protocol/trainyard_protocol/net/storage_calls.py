"""Calls of the API of Google Cloud Storage: which buckets and objects a request's path names. Pure.

The server, the proxies on agents' machines and the local storage read paths by this parser alone. What one of them
sends on is written anew from what was read (`StorageCall.path`), so what was allowed is what is done.
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

PLAIN_OBJECTS = "/storage/plain"
"""The path in front of `/BUCKET/OBJECT` at a server, beside its own routes."""

BATCHES = "/batch"

BUCKET_RULE = "letters, digits, '-', '_' and '.', and begins and ends with a letter or a digit"
LONGEST_NAME = 1024
"""Bytes of an object's name."""

_BUCKET = re.compile(r"[A-Za-z0-9]([-.\w]{0,220}[A-Za-z0-9])?", re.ASCII)
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
    SET_POLICY = "buckets.setIamPolicy"
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
    BATCH = "batch"


_OF_BUCKET = {
    "GET": Kind.GET_BUCKET,
    "PATCH": Kind.UPDATE_BUCKET,
    "PUT": Kind.UPDATE_BUCKET,
    "DELETE": Kind.DELETE_BUCKET,
}
_OF_OBJECT = {"GET": Kind.GET, "PATCH": Kind.UPDATE, "PUT": Kind.UPDATE, "DELETE": Kind.DELETE}
_PLAIN = {"GET": Kind.PLAIN_GET, "PUT": Kind.PLAIN_PUT, "DELETE": Kind.PLAIN_DELETE}
_PLAIN_KINDS = frozenset(_PLAIN.values())
_READS = frozenset({Kind.GET_BUCKET, Kind.BUCKET_DETAIL, Kind.LIST, Kind.GET, Kind.DOWNLOAD, Kind.PLAIN_GET})
_COPIES = {"copyTo": Kind.COPY, "rewriteTo": Kind.REWRITE}
_VERBS = {kind: verb for verb, kind in _COPIES.items()}


@dataclass(frozen=True, slots=True)
class StorageCall:
    """A call, with the bucket and the object that it is about; `to_bucket` and `to_name` are where it copies to."""

    kind: Kind
    bucket: str = ""
    name: str = ""
    to_bucket: str = ""
    to_name: str = ""
    detail: str = ""
    area: str = ""
    """The part of its path in front of `JSON_API`: uploads have several addresses."""

    @property
    def is_plain(self) -> bool:
        return self.kind in _PLAIN_KINDS

    @property
    def reads(self) -> str:
        """The bucket that is read; "" for none."""
        return self.bucket if self.kind in _READS or self.to_bucket else ""

    @property
    def writes(self) -> str:
        """The bucket that is changed; "" for none."""
        return self.to_bucket or ("" if self.kind in _READS else self.bucket)

    @property
    def path(self) -> str:
        """The path of the call: `parse` reads the same call from it, whoever else reads it the same names."""
        if self.is_plain:
            return f"/{_quoted(self.bucket)}/{_quoted(self.name)}"
        if self.kind is Kind.BATCH:
            return f"{BATCHES}{JSON_API}"
        path = f"{self.area}{JSON_API}/b"
        if self.bucket:
            path += f"/{_quoted(self.bucket)}"
        match self.kind:
            case Kind.LIST | Kind.UPLOAD:
                return f"{path}/o"
            case Kind.BUCKET_DETAIL | Kind.SET_POLICY:
                return f"{path}/{self.detail}"
            case Kind.COMPOSE:
                return f"{path}/o/{_quoted(self.name)}/compose"
            case Kind.COPY | Kind.REWRITE:
                to = object_path(self.to_bucket, self.to_name)
                return f"{path}/o/{_quoted(self.name)}/{_VERBS[self.kind]}{to}"
        return f"{path}/o/{_quoted(self.name)}" if self.name else path

    @property
    def path_at_server(self) -> str:
        """The same, as `parse_at_server` reads it."""
        return f"{PLAIN_OBJECTS}{self.path}" if self.is_plain else self.path


def parse(method: str, path: str) -> StorageCall | None:
    """The call of a request with an encoded path, without its query; None if there is no such call.

    The slashes of an object's name are encoded. Where they are not, the rest of the path is the name.
    """
    method = "GET" if method == "HEAD" else method
    if _has_dots(path):
        return None
    if method == "POST" and (path == BATCHES or path.startswith(f"{BATCHES}/")):
        return StorageCall(Kind.BATCH)
    for area in UPLOADS:
        if path.startswith(f"{area}{JSON_API}/"):
            return _upload(method, area, path.removeprefix(f"{area}{JSON_API}/"))
    if path.startswith(f"{DOWNLOADS}{JSON_API}/"):
        call = _json(method, path.removeprefix(f"{DOWNLOADS}{JSON_API}/"))
        if call is None or call.kind is not Kind.GET:
            return None
        return StorageCall(Kind.DOWNLOAD, call.bucket, call.name, area=DOWNLOADS)
    if path.startswith(f"{JSON_API}/"):
        return _json(method, path.removeprefix(f"{JSON_API}/"))
    return _plain(method, path)


def parse_at_server(method: str, path: str) -> StorageCall | None:
    """`parse` for a path of a server: plain paths are below `PLAIN_OBJECTS` there, and batches are its own."""
    if path.startswith(f"{PLAIN_OBJECTS}/"):
        return None if _has_dots(path) else _plain(method, path.removeprefix(PLAIN_OBJECTS))
    call = parse(method, path)
    return None if call is None or call.is_plain or call.kind is Kind.BATCH else call


def is_bucket_name(name: str) -> bool:
    """Whether a bucket may be named like this: see BUCKET_RULE."""
    return _BUCKET.fullmatch(name) is not None


def object_path(bucket: str, name: str) -> str:
    """The path of an object below `JSON_API`."""
    return f"/b/{_quoted(bucket)}/o/{_quoted(name)}"


def inert_type(content_type: str) -> str:
    """The type with which an object's content is sent: its own, unless a browser would run what it has."""
    return content_type if _PASSIVE.fullmatch(content_type) else _INERT


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _has_dots(path: str) -> bool:
    """Whether a part of the path is `.` or `..`, which some readers of paths resolve."""
    return not {".", ".."}.isdisjoint(map(unquote, path.split("/")))


def _plain(method: str, path: str) -> StorageCall | None:
    bucket, _, name = path.removeprefix("/").partition("/")
    kind = _PLAIN.get("GET" if method == "HEAD" else method)
    return _call(kind, unquote(bucket), unquote(name)) if bucket and name else None


def _upload(method: str, area: str, rest: str) -> StorageCall | None:
    match rest.split("/"):
        case ["b", bucket, "o"] if bucket and method in ("POST", "PUT", "DELETE"):
            return StorageCall(Kind.UPLOAD, unquote(bucket), area=area)
        case _:
            return None


def _json(method: str, rest: str) -> StorageCall | None:
    match rest.split("/"):
        case ["b"]:
            return _call({"GET": Kind.LIST_BUCKETS, "POST": Kind.INSERT_BUCKET}.get(method))
        case ["b", bucket] if bucket:
            return _call(_OF_BUCKET.get(method), unquote(bucket))
        case ["b", bucket, "o"] if bucket:
            kinds = {"GET": Kind.LIST, "POST": Kind.UPLOAD}  # some clients upload to this address
            return _call(kinds.get(method), unquote(bucket))
        case ["b", bucket, "o", *names] if bucket and names[0]:
            return _of_object(method, unquote(bucket), names)
        case ["b", bucket, "iam"] if bucket and method == "PUT":
            return StorageCall(Kind.SET_POLICY, unquote(bucket), detail="iam")
        case ["b", bucket, *detail] if bucket and method == "GET" and "/".join(detail) in _BUCKET_DETAILS:
            return StorageCall(Kind.BUCKET_DETAIL, unquote(bucket), detail="/".join(detail))
        case _:
            return None


def _of_object(method: str, bucket: str, names: list[str]) -> StorageCall | None:
    match names:
        case [name, "compose"] if method == "POST":
            return StorageCall(Kind.COMPOSE, bucket, unquote(name))
        case [name, ("copyTo" | "rewriteTo") as verb, "b", to_bucket, "o", to_name] if method == "POST":
            if not (to_bucket and to_name):
                return None
            return StorageCall(_COPIES[verb], bucket, unquote(name), unquote(to_bucket), unquote(to_name))
        case _:
            return _call(_OF_OBJECT.get(method), bucket, unquote("/".join(names)))


def _call(kind: Kind | None, bucket: str = "", name: str = "") -> StorageCall | None:
    return StorageCall(kind, bucket, name) if kind is not None else None
