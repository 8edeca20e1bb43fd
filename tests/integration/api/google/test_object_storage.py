"""The API of Google Cloud Storage at the server, with a storage behind it: who may call, and what its clients send."""

import json
import re
import socket
import threading
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from integration.api.api_support import ADMIN, AGENT, ALICE, Clock, Server, eventually, package_job, server, serving
from trainyard_protocol.net import gcs
from trainyard_server.app import ACCESS
from trainyard_server.capabilities.google.storage.names import is_storage_host
from trainyard_server.capabilities.google.storage.object_storage import ObjectStorage
from trainyard_server.domain.access.route_access import STORAGE_AREAS
from trainyard_storage import batch, remote
from trainyard_storage.api import LocalBackend, StorageApi
from trainyard_storage.app import Limits, StorageApp
from trainyard_storage.proxy import RemoteBackend
from trainyard_storage.server import StorageServer

SECRET = "s3cret" * 6
PEOPLE = {"vera": ("p", "viewer"), "sam": ("p", "submitter"), "anna": ("p", "admin"), "other": ("q", "admin")}
"""Names, each with a project and a role there."""

UPLOAD = "/upload/storage/v1/b/{}/o?uploadType=media&name={}"


@contextmanager
def local_storage(directory: Path, api: StorageApi | None = None) -> Iterator[str]:
    """The storage of the local service, in a thread of its own; its address. It closes `api`."""
    with in_thread(StorageApp(LocalBackend(api or StorageApi(directory)), SECRET)) as port:
        yield f"http://127.0.0.1:{port}/{SECRET}"


@contextmanager
def in_thread(app: StorageApp) -> Iterator[int]:
    """Serve in a thread of its own; the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        storage = StorageServer(app, port)
        thread = threading.Thread(target=storage.run, args=([listener],))
        thread.start()
        try:
            eventually(lambda: storage.started)
            yield port
        finally:
            storage.should_exit = True
            thread.join()


@dataclass(frozen=True)
class Front:
    """A server before a storage, behind a socket."""

    url: str
    api: Server
    client: httpx.Client
    people: dict[str, dict[str, str]]

    def ask(self, method: str, path: str, who: str = "sam", **given: Any) -> httpx.Response:
        headers = {**self.people[who], **given.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **given)

    def upload(self, name: str, content: Any, who: str = "sam", bucket: str = "ours", **headers: str) -> Any:
        answer = self.ask("POST", UPLOAD.format(bucket, name), who, content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def token(self, who: str) -> str:
        return self.people[who]["Authorization"].removeprefix("Bearer ")

    def last_row(self) -> tuple[str, str, str]:
        (row,) = self.ask("GET", "/trainyard/v1/audit?pageSize=1", "operator").json()["entries"]
        return row["action"], row["subject"], row["outcome"]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    root = tmp_path_factory.mktemp("front")
    settings: dict[str, Any] = {"requests_per_s": 0, "allowed_hosts": ("server", "*.googleapis.com")}
    with (
        local_storage(root / "gcs") as address,
        server(root / "server", Clock(), storage_emulator=address, **settings) as api,
        serving(api.app) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=60) as client,
    ):
        people = {"operator": ADMIN, "agent": AGENT, "alice": ALICE, "nobody": {}}
        for name, (project, role) in PEOPLE.items():
            people[name] = api.token(owner=name)[1]
            assert api.set_role(name, role, project) == 200
        found = Front(url, api, client, people)
        assert found.ask("POST", "/storage/v1/b?project=p", json={"name": "ours"}).status_code == 200
        found.upload("x", b"mine")
        yield found


def test_bucket_is_its_projects(front: Front) -> None:
    theirs = front.ask("POST", "/storage/v1/b?project=q", "other", json={"name": "theirs"})
    assert theirs.status_code == 200
    front.upload("x", b"theirs", "other", "theirs")
    front.upload("x", b"made elsewhere", "operator", "unowned")
    read, write = ("GET", "/storage/v1/b/ours/o/x"), ("POST", UPLOAD.format("ours", "y"))
    bucket = "/storage/v1/b/ours"
    copy = "/storage/v1/b/{}/o/x/rewriteTo/b/{}/o/copy"
    table = [
        *[(*read, who, 200) for who in ("vera", "sam", "anna", "operator", "alice")],
        *[(*read, who, status) for who, status in (("other", 403), ("agent", 403), ("nobody", 401))],
        *[(*write, who, 200) for who in ("sam", "anna", "operator", "alice")],
        *[(*write, who, 403) for who in ("vera", "other", "agent")],
        *[("DELETE", "/storage/v1/b/ours/o/none", who, s) for who, s in (("vera", 403), ("sam", 404))],
        ("GET", "/download/storage/v1/b/theirs/o/x?alt=media", "anna", 403),
        ("GET", "/storage/plain/theirs/x", "anna", 403),
        ("GET", "/storage/v1/b/theirs/o", "anna", 403),
        ("GET", "/storage/v1/b/unowned/o", "anna", 403),
        ("GET", "/storage/v1/b/unowned/o", "operator", 200),
        ("GET", "/storage/v1/b/theirs%2Fo%2Fx", "anna", 400),
        ("POST", copy.format("theirs", "ours"), "sam", 403),
        ("POST", copy.format("ours", "theirs"), "sam", 403),
        ("POST", copy.format("ours", "ours"), "sam", 200),
        ("POST", "/storage/v1/b/ours/o/x%2FrewriteTo%2Fb%2Ftheirs%2Fo%2Fy/compose", "sam", 400),
        ("PUT", "/upload/storage/v1/b/theirs/o?upload_id=guessed", "sam", 403),
        ("PATCH", bucket, "sam", 403),
        ("GET", "/storage/v1/b?project=p", "vera", 200),
        ("GET", "/storage/v1/b?project=q", "vera", 403),
        ("GET", "/storage/v1/b", "vera", 400),
        ("GET", "/storage/v1/b/none/o", "vera", 403),
        ("GET", "/storage/v1/x", "vera", 404),
    ]
    found = [(method, path, who, front.ask(method, path, who).status_code) for method, path, who, _ in table]
    assert found == table
    listed = front.ask("GET", "/storage/v1/b?project=p", "vera").json()
    assert [one["name"] for one in listed["items"]] == ["ours"]
    everywhere = front.ask("GET", "/storage/v1/b?project=p", "operator").json()
    assert [one["name"] for one in everywhere["items"]] == ["ours", "theirs", "unowned"]
    # A header that names another object does not reach the storage.
    front.ask("PUT", "/storage/plain/ours/z", content=b"z", headers={"x-goog-copy-source": "/theirs/x"})
    assert front.ask("GET", "/storage/plain/ours/z").content == b"z"
    hidden, absent = (front.ask("GET", f"/storage/v1/b/{name}/o", "vera").text for name in ("theirs", "nowhere"))
    assert hidden.replace("theirs", "nowhere") == absent


def test_job_dir_shows_no_bucket_of_another_project(front: Front) -> None:
    """The submitter of a job chooses its job-dir, and the server reads it with what it knows of the storage."""
    front.upload("run/model", b"mine")
    for who, project, status in (("sam", "p", 200), ("other", "q", 404)):
        job = {"jobId": "spy", "trainingInput": {**package_job(), "jobDir": "gs://ours/run"}}
        assert front.ask("POST", f"/v1/projects/{project}/jobs", who, json=job).status_code == 200
        files = f"/trainyard/v1/projects/{project}/jobs/spy/files"
        found = [front.ask("GET", path, who).status_code for path in (files, f"{files}/content?path=model")]
        assert found == [status] * 2


def test_location_that_there_cannot_be_is_refused_with_a_sentence(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a job which an earlier release accepted, wherever it is read."""
    jobs = "/v1/projects/p/jobs"
    for given in ({"jobDir": "gs://../x"}, {"jobDir": "gs://-/x"}, {"packageUris": ["gs://../a.whl"]}):
        job = {"jobId": "nowhere", "trainingInput": {**package_job(), **given}}
        refused = front.ask("POST", jobs, json=job)
        assert (refused.status_code, "names no bucket: " in refused.text) == (400, True), given
    with monkeypatch.context() as earlier:
        earlier.setattr(gcs, "problem_of", lambda _: "")
        job = {"jobId": "nowhere", "trainingInput": {**package_job(), "jobDir": "gs://../x"}}
        assert front.ask("POST", jobs, json=job).status_code == 200
    reads = ("files", "files/content?path=x", "metrics", "metrics.csv")
    for path in [f"/trainyard/v1/projects/p/jobs/nowhere/{name}" for name in reads]:
        answer = front.ask("GET", path)
        assert answer.status_code in (200, 400), (path, answer.text)
        assert answer.status_code == 200 or "names no bucket: " in answer.text
    for page in ("", "/files", "/metrics", "/config"):
        answer = front.ask("GET", f"/projects/p/jobs/nowhere{page}", headers={"Accept": "text/html"})
        assert answer.status_code == 200, (page, answer.text)


def test_new_bucket_has_one_name_for_every_reader_of_json(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a project could note the bucket of another as its own: some storages take `NAME` for the name."""
    sent: list[bytes] = []
    send = remote.RemoteStorage.send

    async def noted(
        self: remote.RemoteStorage, method: str, target: str, headers: dict[str, str], body: AsyncIterator[bytes]
    ) -> httpx.Response:
        sent.extend([part async for part in body])
        return await send(self, method, target, headers, parts(sent[-1]))

    async def parts(body: bytes) -> AsyncIterator[bytes]:
        yield body

    monkeypatch.setattr(remote.RemoteStorage, "send", noted)
    body = '{"name": "other-one", "NAME": "x", "labels": {"name": "y"}, "name": "one-name"}'
    made = front.ask("POST", "/storage/v1/b?project=p", content=body)
    assert (made.status_code, sent) == (200, [b'{"name": "one-name", "labels": {"name": "y"}}'])
    assert front.ask("DELETE", "/storage/v1/b/one-name", "anna").status_code == 204


def test_batch_has_streamed_answers_and_no_large_ones(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch holds its answers in memory. An answer that is streamed waits for the end of the connection meanwhile."""
    monkeypatch.setattr(batch, "MAX_ANSWERS", 2000)
    front.upload("large", b"x" * 10_000)
    query = "X-HTTP-Method-Override: GET\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\nalt=media"
    calls = ("GET /storage/v1/b/ours/o/none", f"POST /storage/v1/b/ours/o/large\r\n{query}")
    body = "".join(f"--x\r\nContent-Type: application/http\r\n\r\n{call}\r\n" for call in calls) + "--x--"
    kind = {"Content-Type": "multipart/mixed; boundary=x"}
    answer = front.ask("POST", "/batch/storage/v1", content=body, headers=kind)
    assert re.findall(r"HTTP/1.1 (\d+)", answer.text) == ["404", "413"]


def test_query_in_a_body_may_be_of_a_download_and_too_long(front: Front) -> None:
    headers = {"X-HTTP-Method-Override": "GET", "Content-Type": "application/x-www-form-urlencoded"}
    found = front.ask("POST", "/storage/v1/b/ours/o/x", content="alt=media", headers=headers)
    assert (found.status_code, found.content) == (200, b"mine")
    long = front.ask("POST", "/storage/v1/b/ours/o", content=f"prefix={'x' * 65_000}", headers=headers)
    longest = front.ask("POST", "/storage/v1/b/ours/o", content=f"prefix={'x' * 65_529}", headers=headers)
    assert (long.status_code, longest.status_code) == (200, 400), longest.text
    raw = front.ask("POST", "/storage/v1/b/ours/o", content=b"prefix=\xff", headers=headers)
    assert (raw.status_code, "must be encoded" in raw.text) == (400, True)
    # A body of a call that has none is left out.
    for method, path, status in (("GET", "/storage/v1/b/ours/o", 200), ("DELETE", "/storage/v1/b/ours/o/none", 404)):
        assert front.ask(method, path, content=b"body").status_code == status


def test_batch_has_calls_below_the_address_that_its_client_knows(front: Front, tmp_path: Path) -> None:
    """At the storage itself, and at the front of an agent's machine. Both have a secret in their addresses."""
    token = front.token("sam")
    proxy = StorageApp(RemoteBackend(front.url, None, tmp_path), None)
    with local_storage(tmp_path / "gcs") as own, in_thread(proxy) as port, httpx.Client() as client:
        for base in (own, f"http://127.0.0.1:{port}/{token}"):
            assert client.post(base + UPLOAD.format("ours", "mentioned"), content=b"x").status_code == 200
            for address in (base, urllib.parse.urlsplit(base).path, ""):
                assert client.post(base + UPLOAD.format("ours", "batched"), content=b"x").status_code == 200
                calls = (
                    ("DELETE", "batched", ""),
                    ("PATCH", "mentioned", json.dumps({"metadata": {"at": f"{base}/"}})),
                )
                parts = (
                    f"--x\r\nContent-Type: application/http\r\n\r\n{method} {address}/storage/v1/b/ours/o/{name} "
                    f"HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}\r\n"
                    for method, name, body in calls
                )
                answer = client.post(
                    f"{base}/batch/storage/v1",
                    content="".join([*parts, "--x--"]),
                    headers={"Content-Type": "multipart/mixed; boundary=x"},
                )
                assert re.findall(r"HTTP/1.1 (\d+)", answer.text) == ["204", "200"], (address, answer.text)
                read = client.get(f"{base}/storage/v1/b/ours/o/mentioned").json()
                assert read["metadata"] == {"at": f"{base}/"}
            assert client.delete(f"{base}/storage/v1/b/ours/o/mentioned").status_code == 204


def test_calls_of_nobody_at_an_agents_front_hold_up_no_job(front: Front, tmp_path: Path) -> None:
    """Each has a secret that no server has taken, and sends no body."""
    tokens = [front.token(name) for name in ("sam", "anna")]
    limits = Limits(strangers=4, callers=4)
    proxy = StorageApp(RemoteBackend(front.url, None, tmp_path), None, limits)
    with in_thread(proxy) as port, httpx.Client() as client, ExitStack() as stack:
        path = f"http://127.0.0.1:{port}/{{}}/storage/v1/b/ours"
        statuses = [client.get(path.format(token)).status_code for token in (tokens[0], "nobodys")]
        for n in range(9):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(
                f"PUT /nobody-{n}/ours/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n".encode()
            )
        statuses += [client.get(path.format(token)).status_code for token in tokens]
    assert statuses == [200, 401, 200, 200]


def test_each_change_of_a_bucket_and_its_objects_has_a_row_in_the_audit(front: Front) -> None:
    """Among them of a bucket whose name begins as the path of batches does."""
    made = front.ask("POST", "/storage/v1/b?project=p", json={"name": "batches"})
    assert (made.status_code, made.json()["selfLink"]) == (200, f"{front.url}/storage/v1/b/batches")
    plain, session = "/storage/plain/batches/a", "/upload/storage/v1/b/batches/o?uploadType=resumable&name=b"
    kind = {"Content-Type": "multipart/mixed; boundary=x"}
    call = b"--x\r\nContent-Type: application/http\r\n\r\nDELETE /storage/v1/b/batches/o/a\r\n\r\n\r\n--x--"
    begun = front.ask("POST", session).headers["location"].removeprefix(front.url)
    part, whole = ({"Content-Range": f"bytes {span}/4"} for span in ("0-1", "2-3"))
    table = [
        front.ask("POST", "/storage/v1/b?project=q", "other", json={"name": "batches"}),
        front.ask("PUT", plain, content=b"a", headers=kind),
        front.ask("GET", plain),
        front.ask("DELETE", plain, "vera"),
        front.ask("PUT", begun, content=b"ab", headers=part),
        front.ask("PUT", f"{begun}&fields=size", content=b"cd", headers=whole),
        front.ask("POST", "/storage/v1/b/batches/o/b/copyTo/b/batches/o/c"),
        front.ask("POST", "/batch", content=call, headers=kind),
        front.ask("DELETE", "/storage/v1/b/batches", "anna"),
        front.ask("PATCH", "/storage/v1/b/batches", "anna", json={"labels": {"a": "b"}}),
        front.ask("DELETE", "/storage/plain/batches/b"),
        front.ask("DELETE", "/storage/v1/b/batches/o/c"),
        front.ask("DELETE", "/storage/v1/b/batches", "anna"),
        front.ask("GET", "/storage/v1/b/batches", "anna"),
    ]
    statuses = [409, 200, 200, 403, 308, 200, 200, 200, 409, 200, 204, 204, 204, 403]
    assert [answer.status_code for answer in table] == statuses
    assert (table[2].content, table[5].json()) == (b"a", {"size": "4"})
    rows = front.ask("GET", "/trainyard/v1/audit?pageSize=50", "operator").json()["entries"]
    found = [
        (row["actor"], row["action"], row["subject"], row["project"], row["outcome"])
        for row in rows[::-1]
        if row["subject"].startswith("batches")
    ]
    assert found == [
        ("sam", "buckets.create", "batches", "p", "done"),
        ("other", "buckets.create", "batches", "q", "refused"),
        ("sam", "objects.write", "batches/a", "p", "done"),
        ("vera", "objects.delete", "batches/a", "p", "refused"),
        ("sam", "objects.write", "batches/b", "p", "done"),
        ("sam", "objects.write", "batches/c", "p", "done"),
        ("sam", "objects.delete", "batches/a", "p", "done"),
        ("anna", "buckets.delete", "batches", "p", "refused"),
        ("anna", "buckets.update", "batches", "p", "done"),
        ("sam", "objects.delete", "batches/b", "p", "done"),
        ("sam", "objects.delete", "batches/c", "p", "done"),
        ("anna", "buckets.delete", "batches", "p", "done"),
        ("anna", "GET /storage/v1/b/{bucket}", "batches", "", "refused"),
    ]


def test_googles_client_uploads_and_reads_with_a_token(front: Front) -> None:
    from google.api_core.exceptions import Forbidden, PreconditionFailed
    from google.cloud import storage
    from google.oauth2.credentials import Credentials

    content = bytes(range(256)) * 4096
    credentials = Credentials(token=front.token("sam"))  # type: ignore[no-untyped-call]
    made = storage.Client(project="p", credentials=credentials, client_options={"api_endpoint": front.url})
    with closing(made) as client:
        bucket = client.bucket("ours")
        for name, size in (("big/chunks é", 1 << 18), ("big/one?#", None)):
            blob: Any = bucket.blob(name, chunk_size=size)
            blob.upload_from_string(content, content_type="text/html")
            assert blob.media_link.startswith(f"{front.url}/download/storage/v1/b/ours/o/big%2F")
            assert bucket.get_blob(name).download_as_bytes() == content
            assert bucket.blob(name).download_as_bytes(start=255, end=256) == b"\xff\0"
        with pytest.raises(PreconditionFailed):
            bucket.blob("big/one?#").upload_from_string(b"again", if_generation_match=0)
        with pytest.raises(Forbidden):
            client.bucket("nowhere").blob("x").upload_from_string(b"x")
        with bucket.blob("written").open("wb", chunk_size=1 << 18) as file:
            for _ in range(3):
                file.write(content[: 1 << 17])
        assert bucket.blob("written").download_as_bytes() == content[: 1 << 17] * 3
        listed = client.list_blobs("ours", prefix="big", delimiter="/", page_size=1)
        assert ([blob.name for blob in listed], listed.prefixes) == ([], {"big/"})
        bucket.rename_blob(bucket.blob("written"), "moved")
        with client.batch():
            bucket.delete_blob("moved")
            bucket.blob("big/one?#").patch()
        assert bucket.get_blob("moved") is None
        assert [one.name for one in client.list_buckets()] == ["ours"]


def test_gclouds_uploads_are_understood(front: Front) -> None:
    described = json.dumps({"name": "job/hash/trainer.tar.gz", "bucket": "ours"}).encode()
    mark = b"===============1234567890=="
    content = b"\x1f\x8b package\r\n--" + mark[:5]
    head = b"Content-Type: application/json; charset=utf-8\nMIME-Version: 1.0\n\n" + described
    second = b"Content-Type: application/octet-stream\nMIME-Version: 1.0\nContent-Transfer-Encoding: binary\n\n"
    parts = (b"--" + mark + b"\n" + head, b"\n--" + mark + b"\n" + second + content, b"\n--" + mark + b"--")
    path = "/upload/storage/v1/b/ours/o?alt=json&uploadType=multipart&projection=noAcl&fields=name,size"
    headers = {"Content-Type": f'multipart/related; boundary="{mark.decode()}"'}
    made = front.ask("POST", path, content=b"".join(parts), headers=headers)
    assert made.json() == {"name": "job/hash/trainer.tar.gz", "size": str(len(content))}
    begin = {"X-Goog-Hash": "", "X-Upload-Content-Type": "application/gzip", "X-Upload-Content-Length": "8"}
    path = "/resumable/upload/storage/v1/b/ours/o?alt=json&uploadType=resumable"
    begun = front.ask("POST", path, json={"name": "resumed"}, headers=begin)
    location = begun.headers["location"]
    assert location.startswith(f"{front.url}/resumable/upload/storage/v1/b/ours/o?")
    path = location.removeprefix(front.url)
    assert front.ask("PUT", path, headers={"Content-Range": "bytes */8"}).status_code == 308
    half = front.ask("PUT", path, content=b"1234", headers={"Content-Range": "bytes 0-3/8"})
    assert (half.status_code, half.headers["range"]) == (308, "bytes=0-3")
    last = front.ask("PUT", path, content=b"5678", headers={"Content-Range": "bytes 4-7/8"})
    assert (last.status_code, last.json()["contentType"]) == (200, "application/gzip")
    again = front.ask("PUT", path, "vera", content=b"5678", headers={"Content-Range": "bytes 4-7/8"})
    assert again.status_code == 403
    assert front.upload("chunked", iter([b"ab", b"cd"]))["size"] == "4"
    read = f"/storage/v1/b/ours/o/chunked?alt=media&access_token={front.token('sam')}"
    assert front.ask("GET", read, "nobody").text == "abcd"
    overridden = front.ask("POST", "/storage/v1/b/ours/o/chunked", headers={"X-HTTP-Method-Override": "DELETE"})
    assert overridden.status_code == 204


def test_tensorflows_calls_by_googles_names(front: Front) -> None:
    """Calls as its C++ client makes them, by the names that are compiled into it."""
    www, name = {"Host": "www.googleapis.com"}, {"Host": "storage.googleapis.com"}
    start = {"X-Upload-Content-Length": "6", **www}
    begun = front.ask("POST", "/upload/storage/v1/b/ours/o?uploadType=resumable&name=a%2Fck", headers=start)
    assert b"Location" in dict(begun.headers.raw)  # it looks for names as they are written
    location = urllib.parse.urlsplit(begun.headers["location"])
    assert location.netloc == "www.googleapis.com"
    session = f"{location.path}?{location.query}"
    status = front.ask("PUT", session, headers={**www, "Content-Range": "bytes */6"})
    assert (status.status_code, "range" in status.headers) == (308, False)
    sent = front.ask("PUT", session, content=b"tensor", headers={**www, "Content-Range": "bytes 0-5/6"})
    assert sent.status_code == 200
    stat = front.ask("GET", "/storage/v1/b/ours/o/a%2Fck?fields=size%2Cgeneration%2Cupdated", headers=www).json()
    assert (stat["size"], stat.keys()) == ("6", {"size", "generation", "updated"})
    part = front.ask("GET", "/ours/a%2Fck", headers={**name, "Range": "bytes=2-100"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"nsor", "bytes 2-5/6")
    assert front.ask("GET", "/ours/a/ck", headers={**name, "Range": "bytes=6-9"}).status_code == 416
    head = front.ask("HEAD", "/ours/a%2Fck", headers=name)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "6", b"")
    assert front.ask("GET", "/ours/none", headers=name).status_code == 404
    listed = front.ask("GET", "/storage/v1/b/ours/o?prefix=a%2F&fields=items%2Fname%2CnextPageToken", headers=www)
    assert listed.json() == {"items": [{"name": "a/ck"}]}
    copied = front.ask("POST", "/storage/v1/b/ours/o/a%2Fck/rewriteTo/b/ours/o/b%2Fck", headers=www).json()
    assert copied["done"] is True
    assert front.ask("DELETE", "/storage/v1/b/ours/o/a%2Fck", headers=www).status_code == 204
    assert front.ask("GET", "/ours/b%2Fck", headers={"Host": "localhost"}).status_code == 404
    hosts = ("storage.x.localhost:1", "STORAGE.a.localhost", "storage.evil", "localhost")
    assert [is_storage_host(host) for host in hosts] == [True, True, False, False]
    assert is_storage_host("storage.example.com", "example.com:8472")


def test_upload_ends_when_the_disk_fills_and_leaves_nothing(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its start where it says its size, else as soon as the disk is full: others write to it meanwhile."""
    free: Iterator[int] = iter(())

    def disk_usage(_path: object) -> Any:
        return Mock(free=next(free, 0))

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    whole, path = bytes(3 << 20), UPLOAD.format("ours", "filling")
    for content, looks in ((whole, []), (iter([whole] * 3), [1 << 40] * 4)):
        free = iter(looks)
        refused = front.ask("POST", path, content=content)
        assert (refused.status_code, "Free some space" in refused.text) == (507, True), refused.text
    monkeypatch.undo()
    assert front.ask("GET", "/storage/v1/b/ours/o/filling").status_code == 404
    assert front.last_row() == ("objects.write", "ours/filling", "failed")


def test_policy_of_a_bucket_is_read_and_not_set(front: Front) -> None:
    """Calls as of `gcloud storage buckets add-iam-policy-binding`: Google's answer to who may not, and where roles
    are."""
    path = "/storage/v1/b/ours/iam"
    assert front.ask("GET", path, "sam").json()["bindings"] == []
    command = "trainyard projects add-member"
    for who, says in {"anna": command, "operator": command, "sam": "admin"}.items():
        refused = front.ask("PUT", path, who, json={"bindings": [{"role": "x", "members": ["allUsers"]}]})
        assert (refused.status_code, refused.json()["error"]["status"]) == (403, "PERMISSION_DENIED")
        assert says in refused.json()["error"]["message"], who
    assert front.last_row() == ("buckets.update", "ours", "refused")


def test_stored_pages_are_no_pages(front: Front) -> None:
    front.upload("page", b"<script>", **{"Content-Type": "text/html"})
    for path in ("/storage/plain/ours/page", "/storage/v1/b/ours/o/page?alt=media"):
        headers = front.ask("GET", path).headers
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"] == "attachment"
        assert "sandbox" in headers["content-security-policy"]


def test_secret_of_the_storage_is_in_no_answer_and_no_log(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        answers = [
            front.ask("GET", "/storage/v1/b", "operator"),
            front.ask("POST", "/upload/storage/v1/b/ours/o?uploadType=resumable&name=x"),
            front.ask("POST", UPLOAD.format("ours", "x") + "&ifGenerationMatch=1", content=b"x"),
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 412]
    assert SECRET not in caplog.text
    assert all(SECRET not in f"{answer.headers}{answer.text}" for answer in answers)


def test_googles_service_gets_the_credentials_of_the_server_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    class Credentials:
        token, valid = "", False

        def refresh(self, _request: object) -> None:
            self.token, self.valid = "of-the-server", True

    def without(**_: object) -> None:
        raise DefaultCredentialsError

    asked: list[httpx.Request] = []

    async def resource() -> AsyncIterator[bytes]:
        yield b'{"selfLink": "https://www.googleapis.com/storage/v1/b/x"}'

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200, headers={"Content-Type": "application/json"}, content=resource())

    with server(tmp_path, Clock(), storage=remote.GOOGLE) as api:
        api.use_cases.of(ObjectStorage).remote._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        monkeypatch.setattr(google.auth, "default", without)
        refused = api.client.get("/storage/v1/b/x", headers=ADMIN)
        assert (refused.status_code, "GOOGLE_APPLICATION_CREDENTIALS" in refused.text) == (400, True)
        monkeypatch.setattr(google.auth, "default", lambda **_: (Credentials(), "p"))
        found = api.client.get("/storage/v1/b/x?userProject=p", headers=ADMIN | {"X-Goog-User-Project": "q"})
        assert found.json() == {"selfLink": "http://server/storage/v1/b/x"}
    (request,) = asked
    assert str(request.url) == "https://storage.googleapis.com/storage/v1/b/x?userProject=p"
    assert request.headers["authorization"] == "Bearer of-the-server"
    assert "x-goog-user-project" not in request.headers
    assert "cookie" not in request.headers


def test_storage_that_is_missing_or_silent_is_explained(tmp_path: Path) -> None:
    with server(tmp_path / "none", Clock()) as api:
        answer = api.client.get("/storage/v1/b/x", headers=ADMIN)
        assert (answer.status_code, "--storage" in answer.text) == (400, True)
    with server(tmp_path / "silent", Clock(), storage=f"http://127.0.0.1:9/{SECRET}") as api:
        answer = api.client.get("/storage/v1/b/x", headers=ADMIN)
        assert (answer.status_code, SECRET in answer.text, "***" in answer.text) == (503, False, True)


def test_no_call_is_an_error_of_the_server_or_waits(front: Front) -> None:
    """Every route with what its clients, or others, may put around a call: alone, and in a batch."""
    front.ask("POST", "/storage/v1/b?project=p", json={"name": "any"})
    form = {"X-HTTP-Method-Override": "GET", "Content-Type": "application/x-www-form-urlencoded"}
    kinds: list[dict[str, str]] = [{}, form, {"X-HTTP-Method-Override": "DELETE"}, {"Content-Encoding": "gzip"}]
    kinds += [{"Range": "bytes=5-2"}, {"If-None-Match": "*"}]
    queries = ("", "?alt=media", "?uploadType=resumable&name=x", "?pageToken=%ff&maxResults=-1", "?fields=items(")
    bodies = (b"", b"{}", b"alt=media", b"\xff\x00", b'{"sourceObjects": [{"name": "x"}]}')
    batched = {"Content-Type": "multipart/mixed; boundary=x"}
    paths = {(route.method, route.path) for route in ACCESS.rows if route.path.startswith(STORAGE_AREAS)}
    found = []
    for number, (method, path) in enumerate(sorted(paths) * 6):
        path = path.replace("{bucket}", "any").replace("{rest:path}", "o/x").replace("{name:path}", "x")
        path += queries[number % len(queries)]
        kind, body = kinds[number % len(kinds)], bodies[number // 7 % len(bodies)]
        answer = front.ask(method, path, "anna", content=body, headers=kind)
        lines = "".join(f"{name}: {value}\r\n" for name, value in kind.items())
        call = f"Content-Type: application/http\r\n\r\n{method} {path}\r\n{lines}\r\n".encode() + body
        in_batch = front.ask("POST", "/batch", "anna", content=b"--x\r\n" + call + b"\r\n--x--", headers=batched)
        found += [
            (status, method, path, kind, body)
            for status in (answer.status_code, *map(int, re.findall(r"HTTP/1.1 (\d+)", in_batch.text)))
            if status >= 500
        ]
    assert not found
