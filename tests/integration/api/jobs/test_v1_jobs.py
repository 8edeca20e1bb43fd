"""The v1 surface: bodies, errors, paging, filters, labels."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, BOSS, VERA, Clock, ScriptedAgent, Server, package_job, server
from trainyard_server.storage.db.queries import reader

JOBS = "/v1/projects/p/jobs"
UPLOAD = "/upload/trainyard/v1/projects/p/packages/x.whl"


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


pytestmark = on_every_database


def test_list_is_not_asked_for_more_than_any_job_has(api: Server) -> None:
    """A pattern of that length, and conditions of that number, are what SQLite refuses."""
    for path in (f"/?q={'x' * 60_000}", f"/trainyard/v1/jobs?q={'x' * 60_000}", f"/?{'label=a&' * 5000}"):
        answer = api.client.get(path, headers=VERA)
        assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
