"""The files of a job over HTTP, on a local path and in a bucket; failures are plain errors."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from beds import storage_emulator
from integration.api.api_support import ALICE, VERA, Clock, ScriptedAgent, Server, running_agent, server, serving
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net.gcs import CloudStorage
from trainyard_server.api.own.files import disposition
from trainyard_server.services.measurements import job_files
from trainyard_server.storage.job_files import gcs
from trainyard_server.storage.job_files.tree import PAGE_SIZE

ODD = 'a "b" %41 <script>alert(1)<\\script> ü;.txt'


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    made = tmp_path / "jobs" / "digits"
    (made / "model").mkdir(parents=True)
    (made / "model" / "weights").write_bytes(bytes(range(256)) * 10_000)
    (made / ODD).write_text("odd")
    return made


@pytest.fixture
def api(tmp_path: Path, emulator: str) -> Iterator[Server]:
    roots = (str(tmp_path / "jobs"),)
    given = {"job_dir_roots": roots, "storage_emulator": emulator, "one_user": True}
    with server(tmp_path / "server", Clock(), **given) as running:
        yield running


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with storage_emulator.emulator("models") as url:
        yield url


@pytest.fixture
def bucket(emulator: str) -> Iterator[Any]:
    client = CloudStorage("The test", emulator).client()
    bucket = client.bucket("models")
    yield bucket
    for blob in client.list_blobs("models"):
        blob.delete()
    client.close()


def submit(api: Server, job_dir: str, job_id: str = "job") -> None:
    api.create(job_id, **({"jobDir": job_dir} if job_dir else {}))


def ask(api: Server, below: str = "", /, job_id: str = "job", **params: str) -> httpx.Response:
    where = f"/trainyard/v1/projects/p/jobs/{job_id}/files{below}"
    return api.client.get(where, params=params, headers=VERA)


def listed(api: Server, **params: str) -> dict[str, Any]:
    answer = ask(api, **params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(listing: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry["name"], entry["kind"]) for entry in listing["entries"]]


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def test_local_job_dir_is_listed_and_its_files_downloaded(api: Server, job_dir: Path) -> None:
    submit(api, str(job_dir))
    listing = listed(api)
    assert names(listing) == [(ODD, "file"), ("model", "directory")]
    assert (listing["job_dir"], listing["path"], listing["next_page_token"]) == (str(job_dir), "", "")
    assert listing["model"] == f"{job_dir}/model"
    assert names(listed(api, path="model")) == [("weights", "file")]
    answer = ask(api, "/content", path="model/weights")
    assert answer.content == bytes(range(256)) * 10_000
    kind = {"content-type": "application/octet-stream", "x-content-type-options": "nosniff"}
    assert (kind | {"content-length": "2560000"}).items() <= dict(answer.headers).items()
    assert answer.headers["content-security-policy"].endswith("sandbox")
    assert answer.headers["content-disposition"].startswith('attachment; filename="weights"')
    assert ask(api, "/content", path=ODD).content == b"odd"


def test_job_without_job_dir_has_one_that_is_no_argument_of_its_program(tmp_path: Path) -> None:
    roots = (str(tmp_path / "jobs"),)
    settings = {"default_job_dir": f"{tmp_path}/jobs/", "job_dir_roots": roots}
    with server(tmp_path / "server", Clock(), **settings) as api:
        agent = running_agent(api)
        directory = tmp_path / "jobs" / "p" / "admin" / "job"
        assert agent.run.directory == agent.run.job_dir == str(directory)
        assert agent.run.owner == "admin"
        detail = api.detail()
        assert detail["job_dir"] == str(directory)
        assert "jobDir" not in detail["job"]["trainingInput"]
        explained = api.get("/trainyard/v1/projects/p/jobs/job/explain")
        assert explained["environment"]["TRAINYARD_JOB_DIR"] == str(directory)
        assert "--job-dir" not in explained["command"]
        assert api.get("/trainyard/v1/projects/p/jobs/job/config")["clone"]["job_dir"] == ""
        directory.mkdir(parents=True)
        (directory / "out.txt").write_text("x")
        assert names(listed(api)) == [("out.txt", "file")]


def test_paths_out_of_the_job_dir_are_refused(api: Server, job_dir: Path) -> None:
    outside = (400, "below the job-dir and without '..'")
    table = {
        "..": outside,
        "../../server/trainyard.db": outside,
        "/etc/passwd": outside,
        "none": (404, "There is no none in the job-dir."),
        "out": (403, "out is a link to outside the job-dir."),
        "model": (400, "model is a directory: only files can be downloaded."),
        "": (400, "only files can be downloaded"),
    }
    (job_dir / "out").symlink_to("../../server/trainyard.db")
    submit(api, str(job_dir))
    for path, (status, says) in table.items():
        code, message = refusal(ask(api, "/content", path=path))
        assert (code, says in message) == (status, True), (path, message)


def test_files_of_another_owner_are_neither_shown_nor_known_to_exist(tmp_path: Path) -> None:
    with server(tmp_path / "server", Clock(), job_dir_roots=(str(tmp_path / "jobs"),)) as api:
        for number, owner in enumerate(("p/bob", "q/admin", "p", ".")):
            (tmp_path / "jobs" / owner / "model").mkdir(parents=True)
            directories = {f"there_{number}": f"{owner}/model", f"not_there_{number}": f"{owner}/none"}
            for job_id, directory in directories.items():
                submit(api, f"{tmp_path}/jobs/{directory}", job_id)
            there, not_there = (refusal(ask(api, job_id=job_id)) for job_id in directories)
            assert there[0] == not_there[0] == 400
            assert "that this server may show for its owner" in there[1]
            assert there[1].replace("model", "none") == not_there[1]


def test_missing_or_forbidden_job_dir_is_a_plain_error(api: Server, tmp_path: Path) -> None:
    submit(api, "", "without")
    submit(api, str(tmp_path), "outside")
    submit(api, str(tmp_path / "jobs" / "none"), "missing")
    for job_id, status, says in (
        ("without", 400, "The job without has no job-dir: it was submitted without jobDir (--job-dir)."),
        ("outside", 400, "--job-dir-root of the server"),
        ("missing", 400, "It may not have been created yet"),
        ("never", 404, ""),
    ):
        code, message = refusal(ask(api, job_id=job_id))
        assert (code, says in message) == (status, True), message


def test_job_dir_in_a_bucket_is_listed_and_its_files_downloaded(api: Server, bucket: Any) -> None:
    weights = bytes(range(256)) * 100_000  # several reads of it
    bucket.blob("runs/digits/model/weights").upload_from_string(weights)
    bucket.blob(f"runs/digits/{ODD}").upload_from_string("odd")
    bucket.blob("runs/digits-2/other").upload_from_string("of another job")
    submit(api, "gs://models/runs/digits/")
    listing = listed(api)
    assert names(listing) == [(ODD, "file"), ("model", "directory")]
    assert (listing["entries"][0]["size"], listing["entries"][0]["updated"] is None) == (3, False)
    assert listing["model"] == "gs://models/runs/digits/model"
    assert names(listed(api, path="model")) == [("weights", "file")]
    assert ask(api, "/content", path="model/weights").content == weights
    assert ask(api, "/content", path=ODD).content == b"odd"
    assert refusal(ask(api, "/content", path="none")) == (404, "There is no file gs://models/runs/digits/none.")
    assert refusal(ask(api, "/content", path="../digits-2/other"))[0] == 400


def test_large_directory_of_a_bucket_is_paged_without_duplicates(
    api: Server, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_server.storage.job_files.tree.PAGE_SIZE", 4)
    monkeypatch.setattr("trainyard_server.storage.job_files.gcs.PAGE_SIZE", 4)
    expected = {("a", "file"), ("a", "directory"), ("a-b", "file")}
    for name in ("a", "a-b", "a/x", "a/y", *(f"f{number}" for number in range(6)), "z/x", "z/y"):
        bucket.blob(f"big/{name}").upload_from_string("")
    bucket.blob("big/").upload_from_string("")  # as some programs mark a directory
    expected |= {(f"f{number}", "file") for number in range(6)} | {("z", "directory")}
    submit(api, "gs://models/big")
    seen: list[Any] = []
    token = ""
    while not seen or token:
        listing = listed(api, **({"pageToken": token} if token else {}))
        seen += names(listing)
        token = listing["next_page_token"]
    assert (len(seen), set(seen), PAGE_SIZE) == (len(expected), expected, 200)


def test_empty_and_missing_buckets_are_distinguished(api: Server, bucket: Any) -> None:
    submit(api, "gs://models/nothing/yet", "empty")
    listing = listed(api, job_id="empty")
    assert (listing["entries"], listing["model"]) == ([], "")
    submit(api, "gs://no-such-bucket/x", "lost")
    code, message = refusal(ask(api, job_id="lost"))
    assert (code, message.startswith("There is no bucket gs://no-such-bucket at http://127.0.0.1")) == (404, True)


def test_storage_that_hangs_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_files, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(gcs, "_TIMEOUT_S", 1.0)
        with server(tmp_path, Clock(), storage_emulator=where) as api:
            submit(api, "gs://models/x")
            code, message = refusal(ask(api))
    assert (code, message.startswith("No answer for gs://models/x within")) == (503, True)


def test_own_credentials_are_used_for_allowed_buckets_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitter chooses the job-dir, and must not read the server's own buckets through it."""
    table = (  # the root, one user, whether it is shown
        ("gs://", True, True),
        ("gs://models", True, True),
        ("gs://models/p/", True, True),
        ("gs://models/p/admin/digits", True, True),
        ("gs://mod", True, False),
        ("gs://models/p/admin/dig", True, False),
        ("gs://others", True, False),
        ("gs://models", False, True),
        ("gs://", False, False),
        ("gs://models/p/", False, False),
    )
    asked: list[str] = []

    def without_any(storage: CloudStorage) -> None:
        asked.append(storage.emulator)
        raise FailedPrecondition("none")

    monkeypatch.setattr(CloudStorage, "client", without_any)
    for number, (root, one_user, shown) in enumerate(table):
        asked.clear()
        settings = {"job_dir_roots": (root,), "one_user": one_user}
        with server(tmp_path / str(number), Clock(), **settings) as api:
            submit(api, "gs://models/p/admin/digits")
            code, message = refusal(ask(api))
            says = "its --job-dir-root gs://BUCKET" in message
            assert (code, bool(asked), says) == (400, shown, not shown), (root, one_user)
            assert ("own credentials" in refusal(ask(api, "/content", path="x"))[1]) is not shown


def test_emulator_of_the_agent_must_be_a_plain_address(tmp_path: Path) -> None:
    metadata = "http://169.254.169.254/latest/?x="
    no_server = (metadata, "http://a@b:1", "file:///etc", "gopher://x", "h:1#x", "a b")
    table = dict.fromkeys(no_server, "is not the address of a server")
    table["http://h:1/***"] = "a secret in its address, which this server does not know"
    with server(tmp_path, Clock()) as api:
        submit(api, "gs://models/theirs")
        agent = ScriptedAgent(api)
        for address, says in table.items():
            agent.change(replica_environment={"STORAGE_EMULATOR_HOST": address}).sync()
            agent.sync()
            code, message = refusal(ask(api))
            assert (code, says in message) == (400, True), (address, message)


class _Elsewhere(BaseHTTPRequestHandler):
    """An emulator that leads on to another server, or says what that is not to be shown."""

    def do_GET(self) -> None:
        if self.path.startswith("/secret"):
            self.server.met = True  # type: ignore[attr-defined]
        self.send_response(302 if "/o/" not in self.path else 500)
        self.send_header("Location", "/secret")
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"passphrase")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_emulator_cannot_redirect_and_its_errors_are_not_shown(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Elsewhere) as elsewhere:
        elsewhere.met = False  # type: ignore[attr-defined]
        thread = threading.Thread(target=elsewhere.serve_forever)
        thread.start()
        try:
            where = f"http://127.0.0.1:{elsewhere.server_port}"
            with server(tmp_path, Clock(), storage_emulator=where) as api:
                submit(api, "gs://models/x")
                assert refusal(ask(api)) == (503, f"Google Cloud Storage at {where} does not answer.")
                code, message = refusal(ask(api, "/content", path="y"))
                assert (code, "HTTP 500" in message, "passphrase" in message) == (503, True, False)
        finally:
            elsewhere.shutdown()
            thread.join()
        assert not elsewhere.met  # type: ignore[attr-defined]


def test_unreachable_storage_and_requests_above_the_limit_get_503(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), storage_emulator="127.0.0.1:9") as api:
        submit(api, "gs://models/x")
        assert refusal(ask(api)) == (503, "Google Cloud Storage at http://127.0.0.1:9 does not answer.")
        assert refusal(ask(api, "/content", path="x"))[0] == 503
        slots = api.use_cases.job_files._slots
        for _ in range(job_files._MAX_WAITING):
            assert slots.acquire(blocking=False)
        assert refusal(ask(api)) == (503, "Too many requests for files at the moment: try again.")
        slots.release()
        assert "does not answer" in refusal(ask(api))[1]
        assert "does not answer" in refusal(ask(api))[1]


def test_model_is_at_the_location_reported_last(api: Server, job_dir: Path) -> None:
    agent = running_agent(api, jobDir=str(job_dir))
    agent.log('{"event": "saved", "model": "gs://a/first"}', '{"event": "saved", "model": "gs://a/<script>"}')
    agent.log('{"event": "saved", "model": 3}', '"saved"', "saved", '{"event": "saved"', '{"event": "x"}')
    assert listed(api)["model"] == "gs://a/<script>"
    assert listed(api, path="model")["model"] == ""


def test_download_of_a_shrinking_file_aborts_the_connection(api: Server, job_dir: Path) -> None:
    """A reader over a socket sees that something is missing."""
    large = job_dir / "large"
    with large.open("wb") as file:
        file.truncate(200 * 2**20)
    submit(api, str(job_dir))

    def read(url: str) -> None:
        where = f"{url}/trainyard/v1/projects/p/jobs/job/files/content"
        with httpx.stream("GET", where, params={"path": "large"}, headers=ALICE, trust_env=False, timeout=60) as answer:
            parts = answer.iter_raw(2**16)
            next(parts)
            large.write_bytes(b"")
            for _ in parts:
                pass

    with serving(api.app) as url, pytest.raises(httpx.RemoteProtocolError):
        read(url)


def test_disposition_escapes_the_file_name() -> None:
    table = {
        "weights": "attachment; filename=\"weights\"; filename*=UTF-8''weights",
        'a"b\\c;%': "attachment; filename=\"a_b_c__\"; filename*=UTF-8''a%22b%5Cc%3B%25",
        "ü\r\nSet-Cookie: x": 'attachment; filename="___Set-Cookie: x"; '
        "filename*=UTF-8''%C3%BC%0D%0ASet-Cookie%3A%20x",
    }
    assert {name: disposition(name) for name in table} == table
