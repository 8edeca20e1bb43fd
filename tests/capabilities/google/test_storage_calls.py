"""Calls of the storage, however they are written: what the server has allowed is what the storage does, and what the
audit says. Two projects have buckets in one storage."""

import functools
import http.client
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capabilities.google.test_object_storage import in_thread, local_storage
from integration.api.api_support import ADMIN, Clock, Server, running_agent, server, serving
from trainyard_protocol.answers.audit import AuditEntry
from trainyard_protocol.net.storage_calls import StorageCall, parse, parse_at_server
from trainyard_server.capabilities.google.storage.object_storage import ObjectStorage
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.storage.db.tables import audit, buckets
from trainyard_storage import api as storage_api
from trainyard_storage.api import StorageApi
from trainyard_storage.app import StorageApp
from trainyard_storage.proxy import RemoteBackend
from trainyard_storage.records import Conditions, UploadRecord

OURS, THEIRS = ("ours", "batch", "batch-1", "storage"), ("theirs", "batch-2", "download")
THEIR_CONTENT = b"content of theirs"
CHANGES = ("buckets.create", "buckets.update", "buckets.delete", "objects.write", "objects.delete")

names = st.sampled_from(
    (
        *("x", "a/b", "new", "compose", "é", "#", "?a=b", "%2F", "a//b", "..", "v1/b/theirs/o/x", "batch/x"),
        *("x/rewriteTo/b/theirs/o/x", "plain/theirs/x", "theirs/o/x", "storage/v1/b/theirs/o/x"),
    )
)
bucket_names = st.sampled_from((*OURS, *THEIRS, "nobodys", "ours/o/x", "theirs/o/x", "theirs%2Fo%2Fx"))
encodings = st.sampled_from(
    (
        functools.partial(quote, safe=""),
        functools.partial(quote, safe="/"),
        functools.partial(quote, safe="/#?%"),
        lambda text: quote(quote(text, safe=""), safe=""),
        lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
        lambda text: quote(text, safe="").lower(),
    )
)
SHAPES = (
    *("/storage/v1/b", "/storage/v1/b/{b}", "/storage/v1/b/{b}/o", "/storage/v1/b/{b}/o/{n}"),
    *("/storage/v1/b/{b}/iam", "/storage/v1/b/{b}/o/{n}/compose", "/{area}/storage/v1/b/{b}/o"),
    *("/storage/v1/b/{b}/o/{n}/{verb}/b/{c}/o/{m}", "/download/storage/v1/b/{b}/o/{n}"),
    *("/storage/plain/{b}/{n}", "/storage/plain/{b}", "/storage/plain/batch{b}/{n}", "/{b}/{n}", "/{b}"),
    *("/storage/plain/storage/v1/b/{b}", "/storage/plain/storage/v1/b/{b}/o/{n}", "/batch/{b}/{n}"),
    *("/storage/plain/upload/storage/v1/b/{b}/o", "/storage/plain/../v1/b/{b}/o/{n}", "/batch"),
    *("/storage%2Fv1/b/{b}/o/{n}", "/storage%2fplain/{b}/{n}", "/%73torage/v1/b/{b}/o/{n}", "//{b}/{n}"),
    *("/storage/plain//{b}/{n}", "/storage/v1/b/{b}/o/{n}/../../../{c}/o/{m}", "/upload/storage/v1/{b}"),
)
MUTATIONS = ("/", "//", "%2F", "/../", "/%2e%2e/", "/./", ";", "#", "?", "%00", "%0a", "%ff", "%", "batch")


QUERIES = (
    *("", "?alt=media", "?uploadType=media&name=new", "?uploadType=multipart&fields=size"),
    *("?uploadType=resumable&name=new", "?upload_id=of-theirs", "?upload_id=of-ours&fields=id"),
    *("?project=p", "?project=q", "?name=a&uploadType=media&name=b", "?$httpMethod=DELETE", "?acl"),
    *("?uploadType=media&name=a%2F..%2Fb%23", "?generation=1", "?alt=media&alt=json"),
)
INNER = b"--b\r\nContent-Type: application/http\r\n\r\nDELETE /storage/v1/b/theirs/o/x HTTP/1.1\r\n\r\n\r\n--b--\r\n"
RELATED = b'--b\r\n\r\n{"name": "new", "bucket": "theirs"}\r\n--b\r\n\r\ncontent\r\n--b--'
COMPOSED = b'{"sourceObjects": [{"name": "x"}]}'
BODIES = (b"", b"content", INNER, RELATED, COMPOSED, b'{"name": "nobodys"}')
MIXED, MULTIPART = ({"Content-Type": f"multipart/{kind}; boundary=b"} for kind in ("mixed", "related"))
HEADERS: tuple[dict[str, str], ...] = (
    *({}, MIXED, MULTIPART, {"x-goog-copy-source": "/theirs/x"}, {"Content-Range": "bytes 0-6/7"}),
    *({"X-HTTP-Method-Override": "DELETE"}, {"X-HTTP-Method-Override": "PUT"}),
    {"X-HTTP-Method-Override": "GET", "Content-Type": "application/x-www-form-urlencoded"},
)
WHOLE: tuple[tuple[str, str, str, dict[str, str], bytes], ...] = (
    ("GET", "/storage/v1/b/{b}/o/{n}", "?alt=media", {}, b""),
    ("GET", "/download/storage/v1/b/{b}/o/{n}", "?alt=media", {}, b""),
    ("PATCH", "/storage/v1/b/{b}/o/{n}", "", {}, b"{}"),
    ("DELETE", "/storage/v1/b/{b}/o/{n}", "", {}, b""),
    ("POST", "/storage/v1/b/{b}/o/{n}", "", {"X-HTTP-Method-Override": "DELETE"}, b""),
    ("POST", "/storage/v1/b/{b}/o/{n}/{verb}/b/{c}/o/{m}", "", {}, b""),
    ("POST", "/storage/v1/b/{b}/o/{n}/compose", "", {}, COMPOSED),
    ("POST", "/{area}/storage/v1/b/{b}/o", "?uploadType=media&name=new", {}, b"content"),
    ("POST", "/{area}/storage/v1/b/{b}/o", "?uploadType=multipart&fields=size", MULTIPART, RELATED),
    ("POST", "/storage/v1/b/{b}/o", "?uploadType=media&name=new", {}, b"content"),
    ("PUT", "/{area}/storage/v1/b/ours/o", "?upload_id=of-ours&fields=id", {}, b"content"),
    ("PUT", "/storage/plain/{b}/{n}", "", MIXED, INNER),
    ("DELETE", "/storage/plain/{b}/{n}", "", {}, b""),
    ("PATCH", "/storage/v1/b/{b}", "", {}, b"{}"),
    ("DELETE", "/storage/v1/b/{b}", "", {}, b""),
    ("PUT", "/storage/v1/b/{b}/iam", "", {}, b"{}"),
    ("POST", "/storage/v1/b", "?project=p", {}, b'{"name": "nobodys"}'),
)
"""Calls that the storage does, for a bucket and an object that there are."""


SERVER, STORAGE_NAME, AGENTS_FRONT = "server", "storage.googleapis.com", "127.0.0.1"
"""Ways of a call: the Host header of the server and of its storage, and the front on an agent's machine."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    way: str = SERVER
    who: str = "sam"
    in_batch: bool = False


def percent(numerator: int) -> st.SearchStrategy[bool]:
    return st.integers(1, 100).map(lambda number: number > 100 - numerator)


@st.composite
def paths(draw: st.DrawFn, shape: str | None = None, *, is_hostile: bool = True) -> str:
    """A path: of that shape, or of any."""
    encode: Callable[[str], str] = draw(encodings) if is_hostile else functools.partial(quote, safe="")
    buckets, objects = (bucket_names, names) if is_hostile else (st.sampled_from(OURS), st.just("x"))
    path = (shape or draw(st.sampled_from(SHAPES))).format(
        b=encode(draw(buckets)),
        n=encode(draw(objects)),
        c=encode(draw(buckets)),
        m=encode(draw(names)),
        area=draw(st.sampled_from(("upload", "resumable/upload"))),
        verb=draw(st.sampled_from(("copyTo", "rewriteTo"))),
    )
    if is_hostile and draw(percent(30)):
        at = draw(st.integers(1, len(path)))
        path = path[:at] + draw(st.sampled_from(MUTATIONS)) + path[at:]
    return path


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A call that is whole, of which in half of all cases one or more things are others."""
    method, shape, query, headers, body = draw(st.sampled_from(WHOLE))
    is_hostile = draw(percent(50))
    if is_hostile and draw(percent(50)):
        shape = draw(st.sampled_from(SHAPES))
    if is_hostile and draw(percent(30)):
        method = draw(st.sampled_from(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")))
    if is_hostile and draw(percent(20)):
        query = draw(st.sampled_from(QUERIES))
    if is_hostile and draw(percent(20)):
        headers = draw(st.sampled_from(HEADERS))
    if is_hostile and draw(percent(20)):
        body = draw(st.sampled_from(BODIES))
    path = draw(paths(shape, is_hostile=is_hostile))
    way = draw(st.sampled_from((SERVER, STORAGE_NAME, AGENTS_FRONT)))
    if way != SERVER:
        path = path.removeprefix("/storage/plain")
    who = "run" if way == AGENTS_FRONT else draw(st.sampled_from(("sam", "anna", "run")))
    return Request(method, path, query, headers, body, way, who, draw(percent(20)))


class World:
    """A server before a storage, and what each of them has done."""

    def __init__(self, api: Server, storage: StorageApi, port: int, front: int, token: str) -> None:
        self.api, self.storage = api, storage
        self._port, self._front = port, front
        self._tokens = {"run": token}
        self.allowed: list[StorageCall] = []
        self.asked: list[StorageCall] = []
        self.changes: list[tuple[str, str]] = []
        for name, role in (("sam", "submitter"), ("anna", "admin")):
            made = api.client.post("/trainyard/v1/tokens", json={"owner": name}, headers=ADMIN).json()
            self._tokens[name] = made["secret"]
            path = f"/trainyard/v1/projects/p/members/{name}"
            assert api.client.request("PUT", path, json={"role": role}, headers=ADMIN).status_code == 200

    def prepare(self) -> None:
        """Make what an earlier request has deleted, and new sessions of uploads."""
        for bucket, project in (*((name, "p") for name in OURS), *((name, "q") for name in THEIRS)):
            if self.project_of(bucket) is None:
                path = f"/storage/v1/b?project={project}"
                assert self.api.client.post(path, json={"name": bucket}, headers=ADMIN).status_code == 200
            if self.storage.store.find(bucket, "x") is None:
                with self.storage.store.drafting() as draft:
                    draft.write(THEIR_CONTENT if project == "q" else b"content")
                    self.storage.store.put(bucket, "x", draft, {}, Conditions())
        for whose in ("ours", "theirs"):
            upload = UploadRecord(f"of-{whose}", whose, "resumed", {}, Conditions(), None)
            self.storage.store.end_upload(upload)
            self.storage.store.begin_upload(upload)
        self.allowed.clear()
        self.asked.clear()
        self.changes.clear()

    def project_of(self, bucket: str) -> str | None:
        with self.api.use_cases.backend.store.read() as reader:
            return buckets.project_of(reader, bucket)

    def rows(self) -> list[AuditEntry]:
        with self.api.use_cases.backend.store.read() as reader:
            return list(audit.entries(reader, audit.AuditQuery(), 100))[::-1]

    def send(self, request: Request) -> tuple[int, bytes]:
        """The request as it is written: no client corrects it."""
        target = request.path + request.query
        method, headers, body = request.method, request.headers, request.body
        if request.in_batch:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            call = f"--x\r\nContent-Type: application/http\r\n\r\n{method} {target}\r\n{lines}\r\n".encode()
            method, target, body = "POST", "/batch/storage/v1", call + body + b"\r\n--x--"
            headers = {"Content-Type": "multipart/mixed; boundary=x"}
        port, token = self._port, self._tokens[request.who]
        sent = {**headers, "Host": request.way, "Authorization": f"Bearer {token}"}
        if request.way == AGENTS_FRONT:
            port, target = self._front, f"/{token}{target}"
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in {**sent, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read()


def noting(changes: list[tuple[str, str]], storage: StorageApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note every change that the store makes, whoever has asked for it."""
    store: Any = storage.store

    def note(name: str, action: str, subject: Callable[..., str]) -> None:
        change = getattr(store, name)

        def noted(*given: Any, **named: Any) -> Any:
            answer = change(*given, **named)
            changes.append((action, subject(*given)))
            return answer

        monkeypatch.setattr(store, name, noted)

    note("put", "objects.write", lambda bucket, name, *_: f"{bucket}/{name}")
    note("copy", "objects.write", lambda _source, bucket, name, *_: f"{bucket}/{name}")
    note("update", "objects.write", lambda bucket, name, *_: f"{bucket}/{name}")
    note("delete", "objects.delete", lambda bucket, name, *_: f"{bucket}/{name}")
    note("make_bucket", "buckets.create", lambda bucket, *_: bucket)
    note("update_bucket", "buckets.update", lambda bucket, *_: bucket)
    note("delete_bucket", "buckets.delete", lambda bucket: bucket)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")
    storage = StorageApi(root / "gcs")
    hosts = ("server", "127.0.0.1", "*.googleapis.com")
    unlimited: dict[str, Any] = {"requests_per_s": 0, "storage_requests_per_s": 0, "allowed_hosts": hosts}
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        local_storage(root / "gcs", storage) as address,
        server(root / "server", Clock(), storage_emulator=address, **unlimited) as api,
        serving(api.app) as url,
        in_thread(StorageApp(RemoteBackend(url, None, tmp_path_factory.mktemp("drafts")), None)) as front,
    ):
        run = next(iter(running_agent(api).runs.values()))
        port = urlsplit(url).port
        assert port is not None
        made = World(api, storage, port, front, run.run_token)
        check = ObjectStorage.check

        def checked(self: ObjectStorage, caller: Caller, call: StorageCall) -> None:
            check(self, caller, call)
            made.allowed.append(call)

        def parsed(method: str, path: str) -> StorageCall | None:
            call = parse(method, path)
            if call is not None:
                made.asked.append(call)
            return call

        monkeypatch.setattr(ObjectStorage, "check", checked)
        monkeypatch.setattr(storage_api, "parse", parsed)
        noting(made.changes, storage, monkeypatch)
        yield made


@given(sent=requests())
@example(sent=Request("PUT", "/storage/plain/batch-1/x", headers=MIXED, body=INNER))
@example(sent=Request("PUT", "/batch/x", headers=MIXED, body=INNER, way=STORAGE_NAME))
@example(sent=Request("DELETE", "/storage/plain/storage/v1/b/theirs/o/x"))
@example(sent=Request("PUT", "/storage/plain/storage/v1/b/ours", body=b"{}", who="anna"))
@example(sent=Request("DELETE", "/storage/v1/b/ours/o/x#/y"))
@example(sent=Request("POST", "/upload/storage/v1/b/ours/o", "?upload_id=of-ours&fields=id", body=b"content"))
@example(sent=Request("PUT", "/upload/storage/v1/b/ours/o", "?upload_id=of-theirs", body=b"content"))
@example(sent=Request("POST", "/storage/v1/b/ours/o", "?uploadType=media&name=new", body=b"c", in_batch=True))
@example(sent=Request("DELETE", "/storage/v1/b/ours/o/x", who="run", in_batch=True))
@settings(max_examples=300)
def test_what_was_allowed_is_what_the_storage_does_and_what_the_audit_says(world: World, sent: Request) -> None:
    world.prepare()
    last, is_ours = world.rows()[-1].id, world.project_of("nobodys") == "p"
    status, content = world.send(sent)
    assert status < 500, content
    assert b"HTTP/1.1 5" not in content
    assert set(world.asked) <= set(world.allowed)
    assert len(world.asked) <= len(world.allowed)
    rows = [row for row in world.rows() if row.id > last and row.action in CHANGES]
    assert [(row.action, row.subject) for row in rows if row.outcome == "done"] == world.changes
    assert {row.project for row in rows if row.outcome == "done"} <= {"p"}
    assert all(row.project != "q" for row in rows)
    buckets_changed = {subject.partition("/")[0] for _, subject in world.changes}
    is_ours |= ("buckets.create", "nobodys") in world.changes
    assert not buckets_changed & {*THEIRS, *(() if is_ours else ("nobodys",))}
    assert THEIR_CONTENT not in content
    for action, subject in world.changes:
        bucket, _, name = subject.partition("/")
        if action == "objects.write":
            with world.storage.store.open(bucket, name)[1] as file:
                assert THEIR_CONTENT not in file.read()


@given(st.sampled_from(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")), paths())
@settings(max_examples=1000)
def test_path_that_is_written_anew_is_read_as_the_same_call(method: str, path: str) -> None:
    for read, written in ((parse, "path"), (parse_at_server, "path_at_server")):
        call = read(method, path)
        if call is not None:
            assert read(method, getattr(call, written)) == call
            assert "." not in getattr(call, written).split("/")
