"""The API of Google Cloud Storage at the server, with a storage behind it: who may call, and what its clients send."""

import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from integration.api.api_support import ADMIN, AGENT, ALICE, Clock, Server, eventually, package_job, server, serving
from trainyard_server.capabilities.google.storage.object_storage import ObjectStorage
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
