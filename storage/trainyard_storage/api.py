"""The API of the local storage: that of Google Cloud Storage, as its clients use it, over a directory of files.

Source: https://cloud.google.com/storage/docs/json_api/v1
"""

import asyncio
import base64
import binascii
import logging
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from trainyard_protocol.net.storage_calls import Kind, StorageCall, parse
from trainyard_storage.backups.snapshots import STORE
from trainyard_storage.files import BLOCK, DISK_FULL
from trainyard_storage.messages import (
    NO_ROOM,
    Answer,
    Call,
    FilePart,
    Refused,
    answer,
    bucket_resource,
    check_bucket,
    check_name,
    conditions,
    json_answer,
    limited,
    number,
    object_headers,
    object_resource,
    patched,
    plain_refusal,
    properties,
    refusal,
)
from trainyard_storage.records import PAGE, ConditionFailed, Conditions, Listing, Missing, ObjectRecord, Taken
from trainyard_storage.remote import TRACKING, RemoteStorage, tracked
from trainyard_storage.store import ObjectStore
from trainyard_storage.uploads import Uploads

_LONGEST_PATH = 8192
_MOST_COMPONENTS = 32
_THREADS = 8
_BYTES = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_SETTINGS = ("location", "storageClass", "labels", "versioning", "lifecycle", "iamConfiguration")

_log = logging.getLogger(__name__)


class StorageApi:
    """Buckets and objects below `data_dir`, for several threads. Raises OSError if another process uses it."""

    def __init__(self, data_dir: Path) -> None:
        self.store = ObjectStore(data_dir / STORE)
        self._uploads = Uploads(self.store)
        self._handlers: Mapping[Kind, Callable[[Call, StorageCall], Answer]] = {
            Kind.LIST_BUCKETS: self._list_buckets,
            Kind.INSERT_BUCKET: self._insert_bucket,
            Kind.GET_BUCKET: self._get_bucket,
            Kind.UPDATE_BUCKET: self._update_bucket,
            Kind.DELETE_BUCKET: self._delete_bucket,
            Kind.BUCKET_DETAIL: self._bucket_detail,
            Kind.SET_POLICY: self._set_policy,
            Kind.LIST: self._list,
            Kind.UPLOAD: self._uploads.answer,
            Kind.GET: self._get,
            Kind.DOWNLOAD: self._content,
            Kind.UPDATE: self._update,
            Kind.DELETE: self._delete,
            Kind.COMPOSE: self._compose,
            Kind.COPY: self._copy,
            Kind.REWRITE: self._copy,
            Kind.PLAIN_GET: self._content,
            Kind.PLAIN_PUT: self._plain_put,
            Kind.PLAIN_DELETE: self._delete,
        }

    def close(self) -> None:
        self.store.close()

    def answer(self, call: Call) -> Answer:
        refuse: Callable[[HTTPStatus, str], Answer] = refusal
        try:
            asked = parse(call.method, call.path)
            if asked is not None and asked.is_plain:
                refuse = plain_refusal
            if len(call.path) > _LONGEST_PATH:
                return refuse(HTTPStatus.REQUEST_URI_TOO_LONG, "An object's name is at most 1024 bytes long.")
            if asked is None or asked.kind is Kind.BATCH:  # a batch in a batch
                return refuse(HTTPStatus.NOT_FOUND, f"The storage has no {call.method} for this path.")
            return self._handlers[asked.kind](call, asked)
        except Refused as refused:
            return refuse(refused.status, refused.message)
        except Missing as error:
            return refuse(HTTPStatus.NOT_FOUND, str(error))
        except Taken as error:
            return refuse(HTTPStatus.CONFLICT, str(error))
        except ConditionFailed as error:
            if error.unchanged:
                return answer(HTTPStatus.NOT_MODIFIED, {})
            return refuse(HTTPStatus.PRECONDITION_FAILED, str(error))
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _log.warning("a %s failed: %s", call.method, reason)
            if _is_full(error):
                return refuse(HTTPStatus.INSUFFICIENT_STORAGE, NO_ROOM)
            return refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"The storage failed: {reason}.")
        except UnicodeError:
            return refuse(HTTPStatus.BAD_REQUEST, "A text in the request is no Unicode.")

    # Buckets

    def _list_buckets(self, call: Call, _asked: StorageCall) -> Answer:
        query = call.query
        after, most = _token(query).decode(errors="replace"), _most(query)
        buckets = [
            bucket
            for bucket in self.store.buckets()
            if bucket.name.startswith(query.get("prefix", "")) and bucket.name > after
        ]
        listed: dict[str, Any] = {"kind": "storage#buckets"}
        if buckets[:most]:
            listed["items"] = [bucket_resource(bucket, call.base) for bucket in buckets[:most]]
        if buckets[most:]:
            listed["nextPageToken"] = _as_token(buckets[most - 1].name.encode())
        return json_answer(listed, query)

    def _insert_bucket(self, call: Call, _asked: StorageCall) -> Answer:
        given = call.json()
        bucket = self.store.make_bucket(check_bucket(given.get("name")), limited(_settings(given)))
        return json_answer(bucket_resource(bucket, call.base), call.query)

    def _get_bucket(self, call: Call, asked: StorageCall) -> Answer:
        bucket = self.store.bucket(check_bucket(asked.bucket))
        return json_answer(bucket_resource(bucket, call.base), call.query)

    def _update_bucket(self, call: Call, asked: StorageCall) -> Answer:
        before = self.store.bucket(check_bucket(asked.bucket))
        settings = limited({**before.properties, **_settings(call.json())})
        bucket = self.store.update_bucket(before.name, settings)
        return json_answer(bucket_resource(bucket, call.base), call.query)

    def _delete_bucket(self, _call: Call, asked: StorageCall) -> Answer:
        self.store.delete_bucket(check_bucket(asked.bucket))
        return answer(HTTPStatus.NO_CONTENT, {})

    def _bucket_detail(self, call: Call, asked: StorageCall) -> Answer:
        bucket = check_bucket(asked.bucket)
        details: Mapping[str, Mapping[str, Any]] = {
            "iam": {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}", "bindings": []},
            "iam/testPermissions": {
                "kind": "storage#testIamPermissionsResponse",
                "permissions": re.findall(r"(?:^|&)permissions=([\w.]+)", call.target.partition("?")[2]),
            },
            "storageLayout": {
                "kind": "storage#storageLayout",
                "bucket": bucket,
                "location": "LOCAL",
                "locationType": "region",
                "hierarchicalNamespace": {"enabled": False},
            },
            "managedFolders": {"kind": "storage#managedFolders"},
        }
        return json_answer(details[asked.detail], call.query)

    def _set_policy(self, _call: Call, asked: StorageCall) -> Answer:
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "Permission 'storage.buckets.setIamPolicy' denied on resource "
            f"//storage.googleapis.com/projects/_/buckets/{check_bucket(asked.bucket)}: this storage has no accounts, "
            "and whoever has its address may use every bucket.",
        )

    # Objects

    def _list(self, call: Call, asked: StorageCall) -> Answer:
        query = call.query
        if query.get("matchGlob"):
            raise Refused(HTTPStatus.BAD_REQUEST, "matchGlob is not offered here: list with a prefix.")
        listing = Listing(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=query.get("startOffset", ""),
            end=query.get("endOffset", ""),
            after=_token(query),
            most=_most(query),
            with_trailing=_is_true(query, "includeTrailingDelimiter"),
        )
        listed: dict[str, Any] = {"kind": "storage#objects"}
        if _is_true(query, "softDeleted"):  # what is deleted is gone
            return json_answer(listed, query)
        page = self.store.page(check_bucket(asked.bucket), listing)
        if page.next:
            listed["nextPageToken"] = _as_token(page.next)
        if page.prefixes:
            listed["prefixes"] = page.prefixes
        if page.items:
            listed["items"] = [object_resource(record, call.base) for record in page.items]
        return json_answer(listed, query)

    def _get(self, call: Call, asked: StorageCall) -> Answer:
        query = call.query
        if query.get("alt") == "media":
            return self._content(call, asked)
        needs = conditions(query)
        record = self.store.get(asked.bucket, asked.name, number(query, "generation"), needs)
        return json_answer(object_resource(record, call.base), query)

    def _content(self, call: Call, asked: StorageCall) -> Answer:
        query = call.query
        record, file = self.store.open(asked.bucket, asked.name, number(query, "generation"), conditions(query))
        try:
            headers = object_headers(record)
            part = _range(call.headers.get("range", ""), record.size)
            if part is None:
                return answer(HTTPStatus.OK, headers, FilePart(file, 0, record.size))
            first, last = part
            if first >= record.size:
                file.close()
                return answer(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{record.size}"})
            headers["Content-Range"] = f"bytes {first}-{last}/{record.size}"
            return answer(HTTPStatus.PARTIAL_CONTENT, headers, FilePart(file, first, last - first + 1))
        except BaseException:
            file.close()
            raise

    def _plain_put(self, call: Call, asked: StorageCall) -> Answer:
        headers = object_headers(self._uploads.plain(call, asked))
        return answer(HTTPStatus.OK, {name: headers[name] for name in ("ETag", "X-Goog-Generation", "X-Goog-Hash")})

    def _update(self, call: Call, asked: StorageCall) -> Answer:
        query = call.query
        generation = number(query, "generation")
        old = self.store.get(asked.bucket, asked.name, generation)
        new = patched(call.json(), old.properties) if call.method == "PATCH" else properties(call.json())
        record = self.store.update(asked.bucket, asked.name, new, conditions(query), old.generation)
        return json_answer(object_resource(record, call.base), query)

    def _delete(self, call: Call, asked: StorageCall) -> Answer:
        query = call.query
        self.store.delete(asked.bucket, asked.name, conditions(query), number(query, "generation"))
        return answer(HTTPStatus.NO_CONTENT, {})

    def _copy(self, call: Call, asked: StorageCall) -> Answer:
        query = call.query
        needs = conditions(query, "ifSource")
        source = self.store.get(asked.bucket, asked.name, number(query, "sourceGeneration"))
        needs.check(source)
        to_bucket, to_name = check_bucket(asked.to_bucket), check_name(asked.to_name)
        described = properties(call.json(), source.properties)
        record = self.store.copy(source, to_bucket, to_name, described, conditions(query))
        resource = object_resource(record, call.base)
        if asked.kind is Kind.COPY:
            return json_answer(resource, query)
        size = str(record.size)
        done = {"kind": "storage#rewriteResponse", "done": True, "objectSize": size}
        return json_answer({**done, "totalBytesRewritten": size, "resource": resource}, query)

    def _compose(self, call: Call, asked: StorageCall) -> Answer:
        given, query = call.json(), call.query
        bucket, name = check_bucket(asked.bucket), check_name(asked.name)
        sources = given.get("sourceObjects")
        destination = given.get("destination") or {}
        if not isinstance(sources, list) or not 1 <= len(sources) <= _MOST_COMPONENTS:
            raise Refused(HTTPStatus.BAD_REQUEST, f"sourceObjects has 1 to {_MOST_COMPONENTS} objects.")
        if not isinstance(destination, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "destination must be an object.")
        components = 0
        with self.store.drafting() as whole:
            first: ObjectRecord | None = None
            for source in sources:
                record, file = self._component(bucket, source)
                first = first or record
                components += record.components or 1
                with file:
                    while block := file.read(BLOCK):
                        whole.write(block)
            assert first is not None
            kind = {"contentType": first.properties.get("contentType")}
            composed = self.store.put(
                *(bucket, name, whole, properties({**kind, **destination}), conditions(query), components)
            )
        return json_answer(object_resource(composed, call.base), query)

    def _component(self, bucket: str, source: object) -> Any:
        if not isinstance(source, dict) or not isinstance(source.get("name"), str):
            raise Refused(HTTPStatus.BAD_REQUEST, "A source object has a name.")
        wanted = source.get("objectPreconditions")
        needs = Conditions(number(wanted, "ifGenerationMatch") if isinstance(wanted, dict) else None)
        record, file = self.store.open(bucket, source["name"], number(source, "generation"))
        try:
            needs.check(record)
        except ConditionFailed:
            file.close()
            raise
        return record, file


class LocalBackend:
    """The storage in a directory of this machine. It closes `api` and `server`, to which MLflow's calls go."""

    def __init__(self, api: StorageApi, server: RemoteStorage | None = None) -> None:
        self._api = api
        self._server = server
        self._threads = ThreadPoolExecutor(_THREADS, "storage")

    @property
    def bodies(self) -> ObjectStore:
        return self._api.store

    def is_known(self, _secret: str) -> bool:
        return True  # the application has compared it

    @asynccontextmanager
    async def answered(self, call: Call) -> AsyncIterator[Answer]:
        if self._server is not None and call.path.startswith(TRACKING):
            async with tracked(self._server, call, "") as answer:
                yield answer
            return
        reply = await asyncio.get_running_loop().run_in_executor(self._threads, self._api.answer, call)
        try:
            yield reply
        finally:
            if isinstance(reply.body, FilePart):
                reply.body.file.close()

    async def close(self) -> None:
        """Wait until the storage has finished what it does."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        if self._server is not None:
            await self._server.close()
        self._api.close()


def _is_full(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _settings(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: given[name] for name in _SETTINGS if given.get(name) is not None}


def _is_true(query: Mapping[str, str], name: str) -> bool:
    """Google's own client writes `True`."""
    return query.get(name, "").lower() == "true"


def _most(query: Mapping[str, str]) -> int:
    return max(1, min(PAGE, number(query, "maxResults") or PAGE))


def _as_token(last: bytes) -> str:
    return base64.urlsafe_b64encode(last).decode()


def _token(query: Mapping[str, str]) -> bytes:
    """Raises Refused."""
    try:
        return base64.b64decode(query.get("pageToken", ""), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise Refused(HTTPStatus.BAD_REQUEST, "pageToken is not one that a listing here has answered.") from None


def _range(text: str, size: int) -> tuple[int, int] | None:
    """First and last byte of a Range header; None for all. A header that is no range is ignored, as HTTP has it."""
    match = _BYTES.fullmatch(text.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        return max(0, size - int(match[2])), size - 1
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    return None if match[2] and int(match[2]) < first else (first, last)
