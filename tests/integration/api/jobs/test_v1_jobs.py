"""The v1 surface: bodies, errors, paging, filters, labels."""

import base64
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import (
    ADMIN,
    AGENT,
    BOSS,
    VERA,
    Clock,
    ScriptedAgent,
    Server,
    eventually,
    package_job,
    server,
    serving,
)
from trainyard_protocol.errors import AlreadyExists, Violation, to_body
from trainyard_protocol.job.config import limits
from trainyard_server.storage.db.queries import reader

JOBS = "/v1/projects/p/jobs"
UPLOAD = "/upload/trainyard/v1/projects/p/packages/x.whl"
DRY_RUN = {"validateOnly": "true"}


@on_every_database
def test_create_echoes_the_training_input_as_it_was_sent(api: Server) -> None:
    sent = package_job(workerType="local-1", workerCount="2", args=["--epochs", "5"], region="us-central1")
    job = api.client.post(JOBS, json={"jobId": "a", "trainingInput": sent}, headers=ADMIN).json()
    assert job["trainingInput"] == sent
    assert (job["jobId"], job["state"], job["trainingOutput"]) == ("a", "QUEUED", {})
    assert job["createTime"] == "2026-11-20T12:00:00Z"
    assert len(base64.b64decode(job["etag"], validate=True)) == 9
    assert api.job("a") == job


@on_every_database
def test_create_twice_is_409_and_of_the_same_id_in_another_project_another_job(api: Server) -> None:
    dry = api.submit("a", params=DRY_RUN)
    assert (dry.json()["trainingInput"], api.get(JOBS)) == (package_job(), {}), "a dry run creates nothing"
    api.create("a")
    for params in ({}, DRY_RUN):
        answer = api.submit("a", params=params)
        error = AlreadyExists(Violation("job.job_id", "A job with this id already exists."))
        assert (answer.status_code, answer.json()) == (409, to_body(error))
    assert api.submit("a", project="q").status_code == 200
    assert len(api.get(JOBS)["jobs"]) == 1


def test_create_that_is_wrong_is_refused_with_one_message_and_creates_nothing(api: Server) -> None:
    ScriptedAgent(api).sync()
    never = f"staging://{'0' * 64}/x.tar.gz"
    image = {"scaleTier": "BASIC", "masterConfig": {"imageUri": "gcr.io/p/i"}}
    unknown = "Invalid JSON payload received. Unknown name \"pythonModul\" at 'job.training_input': Cannot find field. "
    table = [
        (package_job(pythonModul="x"), "INVALID_ARGUMENT", f'{unknown}Did you mean "pythonModule"?'),
        (
            package_job(packageUris=[never]),
            "FAILED_PRECONDITION",
            f"Field: package_uris Error: The provided paths [{never}] cannot be read",
        ),
        (image, "INVALID_ARGUMENT", "Field: master_config.image_uri Error: "),
        (image, "INVALID_ARGUMENT", "no agent here can run container images: laptop (fake runtime)."),
    ]
    for training_input, status, says in table:
        body = {"jobId": "a", "trainingInput": training_input}
        error = api.refusal("POST", JOBS, 400, json=body)
        assert (error["status"], says in error["message"]) == (status, True), error
    no_json = (b"{", b"[1", b"\xff", b"nonsense", b"[" * 100_000)
    for content in (*no_json, b"[]", b"1", b'"x"', b"null", b"{}"):
        error = api.refusal("POST", JOBS, 400, content=content)
        assert error["status"] == "INVALID_ARGUMENT", content[:9]
        assert content not in no_json or error["message"].startswith("Invalid JSON payload received."), content[:9]
    for project in ("%2Ehidden", "%2E%2E", "a b", "x" * 200):
        answer = api.submit("a", project=project)
        assert (answer.status_code in (400, 404), "error" in answer.json()) == (True, True), project
    assert api.get(JOBS) == {}
    ScriptedAgent(api, "docker-host", runs_images=True).sync()
    assert api.status("POST", JOBS, json={"jobId": "a", "trainingInput": image}) == 200


@on_every_database
def test_list_pages_through_everything_newest_first(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large jobs are fewer on a page, and one that is larger than a page is alone on it."""
    for number in range(5):
        api.create(f"j{number}")
    assert pages(api, pageSize=2) == [["j4", "j3"], ["j2", "j1"], ["j0"]]
    assert pages(api, pageSize=5) == [["j4", "j3", "j2", "j1", "j0"]]
    monkeypatch.setattr(reader, "PAGE_BYTES", 2500)
    for name, size in (("a", 600), ("b", 600), ("huge", 9000), ("c", 600), ("d", 600)):
        api.create(name, args=["x" * size])
    assert pages(api, filter="NOT jobId:j*") == [["d", "c"], ["huge"], ["b", "a"]]


def pages(api: Server, **params: Any) -> list[list[str]]:
    """The ids of the jobs on each page."""
    found: list[list[str]] = []
    token = ""
    while not found or token:
        page = api.get(JOBS, pageToken=token, **params)
        found.append([job["jobId"] for job in page["jobs"]])
        token = page.get("nextPageToken", "")
    return found


def test_create_that_is_larger_than_a_job_is_refused_before_it_is_validated(api: Server) -> None:
    """Viewers may check configs, so they can send any body: neither time nor answer grow with it."""
    many = b"{}," * (limits.MAX_BYTES // 3 - 100)
    checks = "/trainyard/v1/projects/p/configs:check"
    for path, body, status in (
        (JOBS, b'{"jobId": "a", "trainingInput": {"args": [' + many + b"{}]}}", 400),
        (JOBS, b'{"jobId": "a"' + b" " * limits.MAX_BYTES + b"}", 413),
        (JOBS, json.dumps({f"k{number}": 1 for number in range(600)}).encode(), 400),
        (JOBS, json.dumps({f"k{number}": 1 for number in range(400)}).encode(), 400),
        (f"{JOBS}/a?updateMask=labels", b'{"labels": {"a": [' + many + b"{}]}}", 400),
        (checks, b'{"packageUris": [' + many + b"{}]}", 400),
        (checks, b'{"args": [' + b"{}," * 9000 + b"{}]}", 400),
        (checks, b'{"config": "a: 1"' + b" " * limits.MAX_BYTES + b"}", 413),
    ):
        method = "PATCH" if "updateMask" in path else "POST"
        answer = api.client.request(method, path, content=body, headers=VERA if path == checks else ADMIN)
        assert (answer.status_code, len(answer.content) < 20_000) == (status, True), (path, answer.text[:300])


def test_list_page_is_20_by_default_and_100_at_most(api: Server) -> None:
    for number in range(101):
        api.use_cases.jobs.create(BOSS, "p", {"jobId": f"j{number}", "trainingInput": package_job()})
    assert (len(api.get(JOBS)["jobs"]), len(api.get(JOBS, pageSize=5000)["jobs"])) == (20, 100)
    token = api.get(JOBS, pageSize=1, filter="jobId:j1*")["nextPageToken"]
    for params, says in (
        ({"pageToken": token}, "belongs to another filter"),
        ({"pageToken": "nonsense"}, ""),
        ({"pageToken": "MTIz"}, ""),
        ({"pageToken": base64.urlsafe_b64encode(f"{2**63}:".encode()).decode()}, ""),
        ({"pageSize": "-1"}, ""),
        ({"pageSize": "many"}, ""),
        ({"filter": "jobId"}, ""),
        ({"alt": "proto"}, ""),
    ):
        assert api.refusal("GET", JOBS, 400, says, params=params)["status"] == "INVALID_ARGUMENT", params


@on_every_database
def test_list_with_a_filter_finds_what_matches(api: Server) -> None:
    for job_id, labels in (("census", {"team": "nlp"}), ("rnn_1", {}), ("RNN", {}), ("rnn_2", {"team": "vision"})):
        body = {"jobId": job_id, "trainingInput": package_job(), "labels": labels}
        api.use_cases.jobs.create(BOSS, "p", body)
        api.clock.advance(1)
    api.cancel("rnn_1")
    expected = {
        "jobId:rnn* AND state:CANCELLED": ["rnn_1"],
        "NOT state=QUEUED": ["rnn_1"],
        "jobId=census OR jobId=RNN": ["RNN", "census"],
        "jobId:rnn_*": ["rnn_2", "rnn_1"],
        "jobId:r*2": ["rnn_2"],
        "jobId:*s*": ["census"],
        "jobId:rnn%": [],
        "labels.team=vision": ["rnn_2"],
        "labels.team:v*": ["rnn_2"],
        "labels.team:*": ["rnn_2", "census"],
        "-labels.team:*": ["RNN", "rnn_1"],
        "labels.team!=vision": ["RNN", "rnn_1", "census"],
        "createTime<=2026-11-20T12:00:01Z AND endTime>2026-01-01": ["rnn_1"],
    }
    assert {text: listed(api, text) for text in expected} == expected


def listed(api: Server, text: str) -> list[str]:
    return [job["jobId"] for job in api.get(JOBS, filter=text).get("jobs", [])]


@on_every_database
def test_list_is_filtered_by_any_field_and_by_patterns(api: Server) -> None:
    image = {"imageUri": "gcr.io/site/rnn:1", "acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"}}
    for job_id, given in (
        ("census_1", {"region": "us-central1", "args": ["a"]}),
        ("census_2", {"useChiefInTfConfig": True}),
        ("images", {"masterConfig": image, "pythonModule": "", "masterType": "n1-standard-8"}),
    ):
        training = {name: value for name, value in package_job(**given).items() if value != ""}
        api.use_cases.jobs.create(BOSS, "p", {"jobId": job_id, "trainingInput": training})
        api.clock.advance(0.7)
    api.cancel("images")
    expected = {
        "trainingInput.region:us-*": ["census_1"],
        "trainingInput.region:CENTRAL": ["census_1"],
        "trainingInput.region=central OR trainingInput.region:us%": [],
        "errorMessage:cancelled": ["images"],
        "trainingInput.scaleTier=CUSTOM": ["images", "census_2", "census_1"],
        "training_input.master_config.image_uri:*rnn*": ["images"],
        "trainingInput.masterConfig.acceleratorConfig.count=2": ["images"],
        "trainingInput.pythonModule:* AND -trainingInput.region:*": ["census_2"],
        "trainingInput.nothing.at.all:*": [],
        'errorMessage:"*by the user."': ["images"],
        "errorMessage:* AND endTime:*": ["images"],
        "errorMessage!=* AND endTime!=* AND NOT endTime=*": ["census_2", "census_1"],
        "jobId='images' OR errorMessage:'by the user'": ["images"],
        "jobId~^census": ["census_2", "census_1"],
        "jobId~s$": ["images"],
        "jobId~c.n.*_2": ["census_2"],
        "jobId~e_": [],
        r"trainingInput.masterConfig.imageUri~gcr\.io/": ["images"],
        "state~CANCEL.*": ["images"],
        "NOT jobId~census": ["images"],
        'createTime="2026-11-20T12:00:00Z"': ["census_2", "census_1"],
        "createTime>2026-11-20T12:00:00Z": ["images"],
        "createTime<=2026-11-20T12:00:00Z": ["census_2", "census_1"],
        "createTime>=2026-11-20T12:00:00.7Z": ["images", "census_2"],
        "createTime<9999-12-31T23:59:59Z": ["images", "census_2", "census_1"],
    }
    assert {text: listed(api, text) for text in expected} == expected
    for wrong, says in (
        ('jobId~"(a+)+"', "~ takes text, `.`, `.*`"),
        ("createTime~2026", "~ looks into texts"),
        ("createTime>*", "'*' is not a time"),
        ("trainingInput.a-b:c", "cannot be filtered by"),
        ("priority=3", "fields are jobId, state, owner, project, errorMessage"),
    ):
        answer = api.client.get(JOBS, params={"filter": wrong}, headers=ADMIN)
        assert (answer.status_code, says in answer.text) == (400, True), answer.text


def patch(api: Server, mask: str, body: object) -> Any:
    return api.client.patch(f"{JOBS}/job", json=body, params={"updateMask": mask}, headers=ADMIN)


@on_every_database
def test_patch_replaces_the_labels_and_makes_a_new_etag_which_may_be_asked_for(api: Server) -> None:
    before = api.create()
    patched = patch(api, "labels", {"labels": {"a": "1", "b": "2"}}).json()
    assert patched["labels"] == {"a": "1", "b": "2"}
    assert patched["etag"] != before["etag"]
    assert patch(api, "labels", {"labels": {"c": "3"}}).json()["labels"] == {"c": "3"}
    assert "labels" not in patch(api, "labels", {}).json()
    whole = api.job() | {"labels": {"a": "1"}}
    assert patch(api, "labels", whole).json()["labels"] == {"a": "1"}
    stale = api.job()["etag"]
    fresh = patch(api, "labels,etag", {"labels": {"a": "1"}, "etag": stale}).json()["etag"]
    answer = patch(api, "labels,etag", {"labels": {"a": "2"}, "etag": stale})
    assert (answer.status_code, answer.json()["error"]["status"]) == (409, "ABORTED")
    assert api.job()["labels"] == {"a": "1"}
    assert patch(api, "labels", {"labels": {"a": "3"}, "etag": stale}).status_code == 200
    table: tuple[tuple[str, dict[str, Any]], ...] = (
        ("", {"labels": {}}),
        ("state", {"state": "FAILED"}),
        ("labels,trainingInput", {"labels": {}}),
        ("labels", {"labels": {"A": "1"}}),
        ("labels", {"labels": []}),
        ("labels", {"nonsense": 1}),
    )
    assert [row for row in table if patch(api, *row).status_code != 400] == []
    assert (api.job()["state"], api.job()["labels"]) == ("QUEUED", {"a": "3"})
    assert api.job()["etag"] != fresh


def test_job_that_is_not_there_is_404(api: Server) -> None:
    ours = "/trainyard/v1/projects/p/jobs/none"
    views = ("config", "usage", "why", "metrics", "metrics.csv", "logs", "logs/page", "logs/first", "logs/download")
    table = [
        *(("GET", path) for path in (f"{JOBS}/none", ours, *(f"{ours}/{view}" for view in views))),
        ("POST", f"{JOBS}/none:cancel"),
        ("PATCH", f"{JOBS}/none?updateMask=labels"),
        ("DELETE", ours),
    ]
    for method, path in table:
        answer = api.client.request(method, path, json=None if method == "GET" else {}, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["status"]) == (404, "NOT_FOUND"), (method, path)


def test_upload_gives_a_uri_that_a_job_can_name_and_an_agent_can_fetch(api: Server) -> None:
    staged = api.upload()
    assert staged["size"] == 7
    assert api.upload() == staged
    agent = ScriptedAgent(api)
    agent.sync()
    api.create(packageUris=[staged["uri"]])
    api.tick()
    fetched = api.client.get(f"/agent/v1/staging/{staged['sha256']}/trainer-0.0.0.tar.gz", headers=AGENT)
    assert (fetched.status_code, fetched.content) == (200, b"package")
    assert api.status("GET", f"/agent/v1/staging/{'0' * 64}/x.tar.gz", AGENT) == 404


async def parts(size: int, number: int) -> AsyncIterator[bytes]:
    """A body without a length."""
    for _ in range(number):
        yield bytes(size)


def staged_files(directory: Path) -> int:
    return sum(path.is_file() for path in (directory / "staging").iterdir())


def test_body_that_is_too_large_is_413_and_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, upload_limit=10, body_limit=1000) as api:
        assert api.refusal("POST", JOBS, 413, content=b"x" * 1001)["status"] == "INVALID_ARGUMENT"
        api.upload(b"x" * 10)
        for content in (b"x" * 11, parts(6, 2)):
            assert api.status("POST", UPLOAD, content=content) == 413
        assert staged_files(tmp_path) == 1


def test_upload_ends_when_the_disk_comes_to_its_reserve_and_leaves_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start where it says its size, else meanwhile, as when others fill the disk."""
    free: Iterator[int] = iter(())
    with server(tmp_path, clock, disk_reserve=1 << 30) as api:
        monkeypatch.setattr(api.use_cases.health, "_free", lambda: next(free, 0))
        for content, looks, says in (
            (bytes(3 << 20), [(1 << 30) + (1 << 20)], "too full for"),
            (parts(3 << 20, 4), [1 << 40], "accepts nothing new"),
        ):
            free = iter(looks)
            api.refusal("POST", UPLOAD, 503, says, content=content)
            assert staged_files(tmp_path) == 0
        free = iter([1 << 40] * 9)
        assert api.status("POST", UPLOAD, content=parts(3 << 20, 4)) == 200


def test_upload_that_breaks_off_leaves_nothing_and_is_no_error_of_the_server(
    api: Server, caplog: pytest.LogCaptureFixture
) -> None:
    staging = api.use_cases.backend.settings.data_dir / "staging"
    head = (
        f"POST {UPLOAD} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer admin-secret\r\nContent-Length: 99\r\n\r\n"
    )
    with serving(api.app) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}only the beginning".encode())
            eventually(lambda: list(staging.glob(".upload-*")))
        eventually(lambda: not list(staging.iterdir()))
    assert "Traceback" not in caplog.text
