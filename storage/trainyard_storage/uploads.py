"""Uploads to the local storage: in one request, as multipart, and resumable.

Source: https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

import os
import re
import secrets
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus
from threading import Lock
from typing import Any
from urllib.parse import urlencode

from trainyard_protocol.net.storage_calls import StorageCall
from trainyard_storage.files import Draft, check_room
from trainyard_storage.messages import (
    MAX_JSON,
    Answer,
    Call,
    Refused,
    answer,
    check_bucket,
    check_name,
    conditions,
    json_answer,
    json_object,
    number,
    object_resource,
    properties,
)
from trainyard_storage.records import ConditionFailed, Missing, ObjectRecord, UploadRecord
from trainyard_storage.store import ObjectStore

MAX_DECOMPRESSED = 1 << 26
_LONGEST_HEAD = 1 << 16
_TAIL = 1 << 12
_RESUME = 308
_CANCELLED = 499
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18}|\*)", re.ASCII)
_LINE_END = re.compile(rb"[ \t]*\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LOCKS = 16


class Uploads:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._locks = [Lock() for _ in range(_LOCKS)]

    def answer(self, call: Call, asked: StorageCall) -> Answer:
        """Raises Refused, Missing, ConditionFailed."""
        bucket = check_bucket(asked.bucket)
        query = call.query
        if "upload_id" in query:
            return self._continued(call, bucket, query)
        if call.method != "POST":
            raise Refused(HTTPStatus.BAD_REQUEST, "The query of this call needs an upload_id.")
        match query.get("uploadType", ""):
            case "media":
                resource = {"name": query.get("name"), "contentType": call.headers.get("content-type")}
                return self._stored(call, bucket, resource, call.body)
            case "multipart":
                return self._multipart(call, bucket)
            case "resumable":
                return self._begun(call, asked, query)
            case other:
                raise Refused(
                    HTTPStatus.BAD_REQUEST, f"uploadType is media, multipart or resumable, not {other[:50]!r}."
                )

    def plain(self, call: Call, asked: StorageCall) -> ObjectRecord:
        """PUT /BUCKET/OBJECT. Raises Refused, ConditionFailed."""
        named = {"ifGenerationMatch": call.headers.get("x-goog-if-generation-match", "")}
        resource: dict[str, Any] = {
            "contentType": call.headers.get("content-type"),
            "contentEncoding": call.headers.get("content-encoding"),
            "metadata": {
                name.removeprefix("x-goog-meta-"): value
                for name, value in call.headers.items()
                if name.startswith("x-goog-meta-")
            },
        }
        _check(call.body, _hashes(call.headers))
        return self._store.put(
            *(check_bucket(asked.bucket), check_name(asked.name), call.body), *(properties(resource), conditions(named))
        )

    def _stored(self, call: Call, bucket: str, resource: Mapping[str, Any], body: Draft) -> Answer:
        query = call.query
        name = check_name(query.get("name") or resource.get("name"))
        if encoding := query.get("contentEncoding"):
            resource = {**resource, "contentEncoding": encoding}
        with ExitStack() as stack:
            if call.headers.get("content-encoding", "identity") in ("gzip", "deflate"):
                body = _decoded(body, stack.enter_context(self._store.drafting()))
            _check(body, {**_hashes(call.headers), **_hashes_in(resource)})
            record = self._store.put(bucket, name, body, properties(resource), conditions(query))
        return json_answer(object_resource(record, call.base), query)

    def _multipart(self, call: Call, bucket: str) -> Answer:
        """The object's resource and its content, as `multipart/related`."""
        described, start, end = _parts(call.headers.get("content-type", ""), call.body)
        with self._store.drafting() as content:
            for part in call.body.blocks(start, end):
                content.write(part)
            return self._stored(call, bucket, described, content)

    def _begun(self, call: Call, asked: StorageCall, query: Mapping[str, str]) -> Answer:
        resource = dict(call.json())
        name = check_name(query.get("name") or resource.get("name"))
        if kind := call.headers.get("x-upload-content-type"):
            resource.setdefault("contentType", kind)
        if encoding := query.get("contentEncoding"):
            resource["contentEncoding"] = encoding
        kept = {**properties(resource), **_hashes_in(resource)}
        needs = conditions(query)
        needs.check(self._store.find(asked.bucket, name))
        size = number(call.headers, "x-upload-content-length")
        upload = UploadRecord(secrets.token_urlsafe(24), asked.bucket, name, kept, needs, size)
        self._store.begin_upload(upload)
        again = {"uploadType": "resumable", "name": name, "upload_id": upload.id}
        location = f"{call.base}{asked.path}?{urlencode(again)}"
        return answer(HTTPStatus.OK, {"Location": location, "X-GUploader-UploadID": upload.id})

    def _continued(self, call: Call, bucket: str, query: Mapping[str, str]) -> Answer:
        upload_id = query["upload_id"]
        with self._locks[zlib.crc32(upload_id.encode()) % _LOCKS]:
            upload = self._store.upload(upload_id)
            if upload.bucket != bucket:
                raise Missing("There is no such upload in this bucket.")
            if call.method == "DELETE":
                self._store.end_upload(upload)
                return answer(_CANCELLED, {})
            if upload.generation:
                record = self._store.get(upload.bucket, upload.name, upload.generation)
                return json_answer(object_resource(record, call.base), call.query)
            return self._received(call, upload)

    def _received(self, call: Call, upload: UploadRecord) -> Answer:
        part = self._store.part(upload)
        has = part.stat().st_size if part.exists() else 0
        text = call.headers.get("content-range", "")
        match = _RANGE.fullmatch(text) if text else None
        if text and match is None:
            raise Refused(HTTPStatus.BAD_REQUEST, f"Content-Range cannot be read: {text[:100]!r}.")
        start, total = has, None
        if match is None:
            start, total = 0, call.body.size
        elif match[3] != "*":
            total = int(match[3])
        if match is not None and match[1] is not None:
            start = int(match[1])
            if call.body.size != int(match[2]) - start + 1:
                raise Refused(
                    HTTPStatus.BAD_REQUEST, f"The body has {call.body.size} bytes, but Content-Range is {text}."
                )
        elif match is not None and call.body.size:
            raise Refused(HTTPStatus.BAD_REQUEST, f"A request with {text} has no body.")
        end = start + call.body.size
        if total is not None and (end > total or upload.size not in (None, total)):
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"The upload's size was {upload.size} at its beginning, and is now {total} ({text}).",
            )
        if start == has == 0 and end == total:
            return self._finished(call, upload, call.body)
        if start <= has < end:
            with part.open("ab") as file:
                for block in call.body.blocks(has - start, call.body.size):
                    check_room(part.parent)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            has = end
        if has == total:
            with self._store.drafting() as whole:
                whole.adopt(part)
                return self._finished(call, upload, whole)
        return answer(_RESUME, {"Range": f"bytes=0-{has - 1}"} if has else {})

    def _finished(self, call: Call, upload: UploadRecord, body: Draft) -> Answer:
        try:
            _check(body, {**_hashes_in(upload.properties), **_hashes(call.headers)})
            record = self._store.put(
                upload.bucket, upload.name, body, properties(upload.properties), upload.conditions, upload=upload
            )
        except (Refused, ConditionFailed):
            self._store.end_upload(upload)
            raise
        return json_answer(object_resource(record, call.base), call.query)


def _hashes(headers: Mapping[str, str]) -> dict[str, str]:
    """The checksums of a request: `x-goog-hash: crc32c=...,md5=...`."""
    hashes = {}
    for entry in headers.get("x-goog-hash", "").split(","):
        name, _, value = entry.strip().partition("=")
        if name in ("crc32c", "md5"):
            hashes[name] = value
    return hashes


def _hashes_in(resource: Mapping[str, Any]) -> dict[str, str]:
    names = {"crc32c": resource.get("crc32c"), "md5": resource.get("md5Hash", resource.get("md5"))}
    return {name: value for name, value in names.items() if isinstance(value, str) and value}


def _check(body: Draft, hashes: Mapping[str, str]) -> None:
    """Raises Refused."""
    for name, value in hashes.items():
        ours = body.md5 if name == "md5" else body.crc32c
        if value != ours:
            raise Refused(
                HTTPStatus.BAD_REQUEST,
                f"Provided {name.upper()} hash {value[:100]!r} doesn't match calculated {name.upper()} hash {ours!r}.",
            )


def _decoded(body: Draft, into: Draft) -> Draft:
    """The body without its Content-Encoding. Raises Refused if it grows too large."""
    decoder = zlib.decompressobj(wbits=47)  # both formats
    try:
        for block in body.blocks(0, body.size):
            into.write(decoder.decompress(block, MAX_DECOMPRESSED - into.size))
            if decoder.unconsumed_tail or into.size >= MAX_DECOMPRESSED:
                raise Refused(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"The body has more than {MAX_DECOMPRESSED} bytes when it is decompressed.",
                )
    except zlib.error as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"The body is not in its Content-Encoding: {error}.") from error
    return into


def _parts(content_type: str, body: Draft) -> tuple[Mapping[str, Any], int, int]:
    """The resource in a multipart body, and where its content begins and ends. Raises Refused.

    A boundary may be in quotes (gcloud's are), and a part may end with a bare line feed.
    """
    boundary = _headers(b"Content-Type: " + content_type.encode("ascii", "replace")).get_boundary()
    if not boundary:
        raise Refused(HTTPStatus.BAD_REQUEST, "A multipart body needs a boundary in its Content-Type.")
    mark = b"--" + boundary.encode("ascii", "replace")
    head = body.read(0, MAX_JSON + _LONGEST_HEAD)
    first = _find_mark(head, mark, 0)
    if first is None and boundary.startswith("'") and boundary.endswith("'"):  # gcloud's quotes
        mark = mark.replace(b"'", b"")
        first = _find_mark(head, mark, 0)
    second = _find_mark(head, mark, first[1]) if first else None
    if first is None or second is None:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"The body does not have two parts with the boundary {boundary[:100]!r}, the first of at most {MAX_JSON} "
            "bytes.",
        )
    _, offset = _headers_of(head[first[1] : second[0]])
    described = dict(json_object(head[first[1] + offset : second[0]]))
    headers, offset = _headers_of(head[second[1] : second[1] + _LONGEST_HEAD])
    described.setdefault("contentType", headers.get("Content-Type"))
    start = second[1] + offset
    tail_at = max(start, body.size - _TAIL - len(mark))
    tail = body.read(tail_at)
    closing = tail.rfind(mark + b"--")
    if closing < 0:
        raise Refused(HTTPStatus.BAD_REQUEST, "The body ends before its last boundary.")
    before = tail[:closing]
    line_end = 2 if before.endswith(b"\r\n") else 1 if before.endswith(b"\n") else 0
    return described, start, max(start, tail_at + closing - line_end)


def _find_mark(text: bytes, mark: bytes, start: int) -> tuple[int, int] | None:
    """Find where the next line that is a boundary begins, with the line end before it, and ends."""
    at = text.find(mark, start)
    while at >= 0:
        line_end = _LINE_END.match(text, at + len(mark))
        if line_end and (at == 0 or text[at - 1 : at] == b"\n"):
            before = 2 if text[max(0, at - 2) : at] == b"\r\n" else min(at, 1)
            return max(start, at - before), line_end.end()
        at = text.find(mark, at + 1)
    return None


def _headers_of(part: bytes) -> tuple[Message, int]:
    """The headers of a part, and where its content begins. Raises Refused."""
    end = _HEAD_END.search(b"\n" + part)
    if end is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "A part of the body has no empty line after its headers.")
    return _headers(part[: max(0, end.start() - 1)]), end.end() - 1


def _headers(head: bytes) -> Message:
    return BytesParser().parsebytes(head, headersonly=True)
