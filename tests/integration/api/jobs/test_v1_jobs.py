"""The v1 surface: bodies, errors, paging, filters, labels."""

import base64
import json
import socket
from collections.abc import Iterator
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


def refused(api: Server, body: object, **params: Any) -> dict[str, Any]:
    answer = api.client.post(JOBS, json=body, params=params, headers=ADMIN)
    error: dict[str, Any] = answer.json()["error"]
    assert answer.status_code == error["code"]
    assert api.get(JOBS) == {}, "nothing is created"
    return error


@on_every_database
def test_create_echoes_the_training_input_as_it_was_sent(api: Server) -> None:
    sent = {
        "scaleTier": "CUSTOM",
        "masterType": "local-1",
        "workerType": "local-1",
        "workerCount": "2",
        "pythonModule": "trainer.task",
        "args": ["--epochs", "5"],
        "region": "us-central1",
    }
    job = api.client.post(JOBS, json={"jobId": "a", "trainingInput": sent}, headers=ADMIN).json()
    assert job["trainingInput"] == sent
    assert (job["jobId"], job["state"], job["trainingOutput"]) == ("a", "QUEUED", {})
    assert job["createTime"] == "2026-11-20T12:00:00Z"
    assert len(base64.b64decode(job["etag"], validate=True)) == 9
    assert api.job("a") == job


@on_every_database
def test_create_twice_is_409_and_of_the_same_id_in_another_project_another_job(api: Server) -> None:
    api.create("a")
    body = {"jobId": "a", "trainingInput": package_job()}
    for params in ({}, {"validateOnly": "true"}):
        answer = api.client.post(JOBS, json=body, params=params, headers=ADMIN)
        error = AlreadyExists(Violation("job.job_id", "A job with this id already exists."))
        assert (answer.status_code, answer.json()) == (409, to_body(error))
    assert api.client.post("/v1/projects/q/jobs", json=body, headers=ADMIN).status_code == 200
    assert len(api.get(JOBS)["jobs"]) == 1


def test_create_only_to_validate_creates_nothing(api: Server) -> None:
    body = {"jobId": "a", "trainingInput": package_job()}
    answer = api.client.post(JOBS, json=body, params={"validateOnly": "true"}, headers=ADMIN)
    assert answer.json()["trainingInput"] == package_job()
    assert api.get(JOBS) == {}


def test_create_that_is_wrong_is_one_message(api: Server) -> None:
    error = refused(api, {"jobId": "a", "trainingInput": package_job(pythonModul="x")})
    assert (error["status"], error["message"]) == (
        "INVALID_ARGUMENT",
        "Invalid JSON payload received. Unknown name \"pythonModul\" at 'job.training_input': Cannot find field. "
        'Did you mean "pythonModule"?',
    )


def test_create_with_a_package_that_was_never_uploaded_is_a_failed_precondition(api: Server) -> None:
    uri = f"staging://{'0' * 64}/x.tar.gz"
    error = refused(api, {"jobId": "a", "trainingInput": package_job(packageUris=[uri])})
    assert error["status"] == "FAILED_PRECONDITION"
    assert error["message"].startswith(f"Field: package_uris Error: The provided paths [{uri}] cannot be read")


def test_create_with_a_body_that_is_no_job_is_400(api: Server) -> None:
    no_json = (b"{", b"[1", b"\xff", b"nonsense", b"[" * 100_000)
    for body in (*no_json, b"[]", b"1", b'"x"', b"null", b"{}"):
        error = api.client.post(JOBS, content=body, headers=ADMIN).json()["error"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT"), body[:9]
        assert body not in no_json or error["message"].startswith("Invalid JSON payload received."), body[:9]


def test_create_with_a_body_without_measure_is_413(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, body_limit=1000) as api:
        answer = api.client.post(JOBS, content=b"x" * 1001, headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")


def test_create_with_an_image_needs_an_agent_that_runs_images(api: Server) -> None:
    image = {"scaleTier": "BASIC", "masterConfig": {"imageUri": "gcr.io/p/i"}}
    body = {"jobId": "a", "trainingInput": image}
    ScriptedAgent(api).sync()
    error = refused(api, body)
    assert error["details"][0]["fieldViolations"][0]["field"] == "master_config.image_uri"
    assert "no agent here can run container images: laptop (fake runtime)." in error["message"]
    ScriptedAgent(api, "docker-host", runs_images=True).sync()
    assert api.client.post(JOBS, json=body, headers=ADMIN).status_code == 200


def test_create_in_a_project_with_another_name_is_400(api: Server) -> None:
    body = {"jobId": "a", "trainingInput": package_job()}
    for project in ("%2Ehidden", "%2E%2E", "a b", "x" * 200):
        answer = api.client.post(f"/v1/projects/{project}/jobs", json=body, headers=ADMIN)
        assert (answer.status_code in (400, 404), "error" in answer.json()) == (True, True), project


@on_every_database
def test_list_pages_through_everything_newest_first(api: Server) -> None:
    for number in range(5):
        api.create(f"j{number}")
    seen, token = [], ""
    for expected in (2, 2, 1):
        page = api.get(JOBS, pageSize=2, pageToken=token)
        assert len(page["jobs"]) == expected
        seen += [job["jobId"] for job in page["jobs"]]
        token = page.get("nextPageToken", "")
    assert seen == ["j4", "j3", "j2", "j1", "j0"]
    assert token == ""
    assert len(api.get(JOBS, pageSize=5)["jobs"]) == 5
    assert "nextPageToken" not in api.get(JOBS, pageSize=5)


@on_every_database
def test_list_of_large_jobs_has_fewer_on_a_page(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is larger than a page is alone on it."""
    monkeypatch.setattr(reader, "PAGE_BYTES", 2500)
    for name, size in (("a", 600), ("b", 600), ("huge", 9000), ("c", 600), ("d", 600)):
        api.create(name, args=["x" * size])
    pages: list[list[str]] = []
    token = ""
    while not pages or token:
        page = api.get(JOBS, pageToken=token)
        pages.append([job["jobId"] for job in page["jobs"]])
        token = page.get("nextPageToken", "")
    assert pages == [["d", "c"], ["huge"], ["b", "a"]]


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
    assert len(api.get(JOBS)["jobs"]) == 20
    assert len(api.get(JOBS, pageSize=5000)["jobs"]) == 100


def test_list_with_a_bad_parameter_is_400(api: Server) -> None:
    for params in (
        {"pageToken": "nonsense"},
        {"pageToken": "MTIz"},
        {"pageToken": base64.urlsafe_b64encode(f"{2**63}:".encode()).decode()},
        {"pageSize": "-1"},
        {"pageSize": "many"},
        {"filter": "jobId"},
        {"alt": "proto"},
    ):
        error = api.client.get(JOBS, params=params, headers=ADMIN).json()["error"]
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT"), params


def test_list_with_the_token_of_another_filter_is_400(api: Server) -> None:
    api.create("a1")
    api.create("a2")
    token = api.get(JOBS, pageSize=1, filter="jobId:a*")["nextPageToken"]
    answer = api.client.get(JOBS, params={"pageToken": token}, headers=ADMIN)
    assert "belongs to another filter" in answer.json()["error"]["message"]


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
def test_patch_replaces_the_labels_and_makes_a_new_etag(api: Server) -> None:
    before = api.create()
    patched = patch(api, "labels", {"labels": {"a": "1", "b": "2"}}).json()
    assert patched["labels"] == {"a": "1", "b": "2"}
    assert patched["etag"] != before["etag"]
    assert patch(api, "labels", {"labels": {"c": "3"}}).json()["labels"] == {"c": "3"}
    assert "labels" not in patch(api, "labels", {}).json()
    whole = api.job() | {"labels": {"a": "1"}}
    assert patch(api, "labels", whole).json()["labels"] == {"a": "1"}
    assert api.job()["state"] == "QUEUED"


@on_every_database
def test_patch_with_the_etag_in_the_mask_needs_the_newest(api: Server) -> None:
    stale = api.create()["etag"]
    fresh = patch(api, "labels,etag", {"labels": {"a": "1"}, "etag": stale}).json()["etag"]
    answer = patch(api, "labels,etag", {"labels": {"a": "2"}, "etag": stale})
    assert (answer.status_code, answer.json()["error"]["status"]) == (409, "ABORTED")
    assert api.job()["labels"] == {"a": "1"}
    assert patch(api, "labels", {"labels": {"a": "3"}, "etag": stale}).status_code == 200
    assert api.job()["etag"] != fresh


def test_patch_of_anything_else_is_400(api: Server) -> None:
    api.create()
    table: tuple[tuple[str, dict[str, Any]], ...] = (
        ("", {"labels": {}}),
        ("state", {"state": "FAILED"}),
        ("labels,trainingInput", {"labels": {}}),
        ("labels", {"labels": {"A": "1"}}),
        ("labels", {"labels": []}),
        ("labels", {"nonsense": 1}),
    )
    assert [row for row in table if patch(api, *row).status_code != 400] == []


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
    path = "/upload/trainyard/v1/projects/p/packages/trainer-0.0.0.tar.gz"
    staged = api.client.post(path, content=b"package", headers=ADMIN).json()
    assert staged["size"] == 7
    assert api.client.post(path, content=b"package", headers=ADMIN).json() == staged
    agent = ScriptedAgent(api)
    agent.sync()
    api.create(packageUris=[staged["uri"]])
    api.tick()
    fetched = api.client.get(f"/agent/v1/staging/{staged['sha256']}/trainer-0.0.0.tar.gz", headers=AGENT)
    assert (fetched.status_code, fetched.content) == (200, b"package")
    missing = api.client.get(f"/agent/v1/staging/{'0' * 64}/x.tar.gz", headers=AGENT)
    assert missing.status_code == 404


def test_upload_that_is_too_large_is_413(tmp_path: Path, clock: Clock) -> None:
    path = "/upload/trainyard/v1/projects/p/packages/x.whl"
    with server(tmp_path, clock, upload_limit=10) as api:
        assert api.client.post(path, content=b"x" * 10, headers=ADMIN).status_code == 200
        assert api.client.post(path, content=b"x" * 11, headers=ADMIN).status_code == 413

        async def parts() -> Any:
            yield b"x" * 6
            yield b"x" * 6

        assert api.client.post(path, content=parts(), headers=ADMIN).status_code == 413
        assert len([path for path in (tmp_path / "staging").iterdir() if path.is_file()]) == 1


def test_upload_ends_when_the_disk_comes_to_its_reserve_and_leaves_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start where it says its size, else meanwhile, as when others fill the disk."""
    path = "/upload/trainyard/v1/projects/p/packages/x.whl"
    free: Iterator[int] = iter(())

    async def parts() -> Any:
        for _ in range(4):
            yield bytes(3 << 20)

    with server(tmp_path, clock, disk_reserve=1 << 30) as api:
        health = api.use_cases.health
        monkeypatch.setattr(health, "_free", lambda: next(free, 0))
        for content, looks, says in (
            (bytes(3 << 20), [(1 << 30) + (1 << 20)], "too full for"),
            (parts(), [1 << 40], "accepts nothing new"),
        ):
            free = iter(looks)
            refused = api.client.post(path, content=content, headers=ADMIN)
            assert (refused.status_code, says in refused.text) == (503, True), refused.text
            assert [one for one in (tmp_path / "staging").iterdir() if one.is_file()] == []
        free = iter([1 << 40] * 9)
        assert api.client.post(path, content=parts(), headers=ADMIN).status_code == 200


def test_upload_that_breaks_off_leaves_nothing_and_is_no_error_of_the_server(
    api: Server, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/upload/trainyard/v1/projects/p/packages/x.whl"
    with serving(api.app) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = (
                f"POST {path} HTTP/1.1",
                "Host: localhost",
                "Authorization: Bearer admin-secret",
                "Content-Length: 99",
            )
            connection.sendall("\r\n".join([*head, "", "only the beginning"]).encode())
            staging = api.use_cases.backend.settings.data_dir / "staging"
            eventually(lambda: list(staging.glob(".upload-*")))
        eventually(lambda: not list(staging.iterdir()))
    assert "Traceback" not in caplog.text
