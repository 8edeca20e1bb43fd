"""The real client library of the service, against a server of ours on a loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.api_core.universe import UniverseMismatchError
from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from integration.api.api_support import Server, package_job, serving


@contextmanager
def client_of(address: str, token: str = "admin-secret", *, own: bool = False) -> Iterator[Any]:
    """A client that is built from the service's document, or from our own discovery document."""
    document: dict[str, Any] = {"client_options": {"api_endpoint": address}}
    if own:
        document = {"discoveryServiceUrl": f"{address}/$discovery/rest?version={{apiVersion}}"}
    credentials = Credentials(token=token)  # type: ignore[no-untyped-call]
    with discovery.build("ml", "v1", static_discovery=not own, credentials=credentials, **document) as client:
        yield client


@pytest.fixture
def ml(api: Server) -> Iterator[Any]:
    with serving(api.app) as address, client_of(address) as client:
        yield client


@pytest.fixture
def described(api: Server) -> Iterator[Any]:
    with serving(api.app) as address, client_of(address, own=True) as client:
        yield client


def test_google_client_with_a_wrong_token_is_refused(api: Server) -> None:
    with (
        serving(api.app) as address,
        client_of(address, "wrong") as client,
        pytest.raises(RefreshError),  # it takes a 401 as a token that has run out
    ):
        client.projects().jobs().get(name="projects/p/jobs/none").execute()


def test_google_client_creates_reads_changes_and_cancels_a_job(ml: Any) -> None:
    jobs = ml.projects().jobs()
    created = jobs.create(parent="projects/p", body={"jobId": "census_1", "trainingInput": package_job()}).execute()
    assert created["trainingInput"] == package_job()
    name = "projects/p/jobs/census_1"
    assert jobs.get(name=name).execute() == created
    assert jobs.list(parent="projects/p", filter="jobId:census*", pageSize=1).execute()["jobs"] == [created]
    assert jobs.list(parent="projects/p", filter="jobId:other*").execute() == {}
    patched = jobs.patch(
        name=name, body={"labels": {"a": "b"}, "etag": created["etag"]}, updateMask="labels,etag"
    ).execute()
    assert patched["labels"] == {"a": "b"}
    assert jobs.cancel(name=name).execute() == {}
    assert jobs.cancel(name=name, body={}).execute() == {}
    ended = jobs.get(name=name).execute()
    assert (ended["state"], ended["errorMessage"]) == ("CANCELLED", "The job was cancelled by the user.")


def test_google_client_pages_through_a_list_and_sends_a_long_query_as_a_body(ml: Any, api: Server) -> None:
    jobs = ml.projects().jobs()
    for number in range(3):
        api.create(f"j{number}")
    seen, request = [], jobs.list(parent="projects/p", pageSize=2)
    while request is not None:
        answer = request.execute()
        seen += [job["jobId"] for job in answer["jobs"]]
        request = jobs.list_next(request, answer)
    assert seen == ["j2", "j1", "j0"]
    ids = " OR ".join(f"jobId=other_{number}" for number in range(150))
    found = jobs.list(parent="projects/p", filter=f"jobId=j1 OR {ids}", fields="jobs/jobId").execute()
    assert found == {"jobs": [{"jobId": "j1"}]}, "with the fields that it asks for"
    with pytest.raises(HttpError) as caught:
        jobs.create(parent="projects/p", body={"jobId": "j0", "trainingInput": package_job()}).execute()
    assert caught.value.resp.status == 409
    assert caught.value.reason == "Field: job.job_id Error: A job with this id already exists."
    assert caught.value.error_details[0]["fieldViolations"][0]["field"] == "job.job_id"
    with pytest.raises(HttpError) as caught:
        jobs.get(name="projects/p/jobs/none").execute()
    assert caught.value.resp.status == 404


def test_google_client_sends_several_calls_as_one(ml: Any, api: Server) -> None:
    api.create("first")
    answers: dict[str, Any] = {}

    def note(request_id: str, answer: Any, error: HttpError | None) -> None:
        answers[request_id] = error.resp.status if error is not None else answer

    jobs = ml.projects().jobs()
    batch = ml.new_batch_http_request(callback=note)
    batch._batch_uri = (
        f"{ml._baseUrl.rstrip('/')}/batch"  # of the document; an endpoint of one's own does not change it
    )
    body = {"jobId": "second", "labels": {}, "trainingInput": package_job(args=["\u00f6"])}
    batch.add(jobs.get(name="projects/p/jobs/first"), request_id="read")
    batch.add(jobs.create(parent="projects/p", body=body), request_id="made")
    batch.add(jobs.get(name="projects/p/jobs/none"), request_id="none")
    batch.add(jobs.list(parent="projects/p", filter="jobId:sec*", fields="jobs(jobId)"), request_id="list")
    batch.execute()
    assert (answers["read"]["jobId"], answers["none"]) == ("first", 404)
    assert answers["made"]["trainingInput"]["args"] == ["\u00f6"]
    assert answers["list"] == {"jobs": [{"jobId": "second"}]}


@pytest.mark.parametrize("built", ["ml", "described"])
def test_every_method_beside_jobs_answers_as_documented(built: str, request: pytest.FixtureRequest) -> None:
    """Clients that are built from the service's document, and from our own."""
    projects = request.getfixturevalue(built).projects()
    assert projects.getConfig(name="projects/p").execute() == {"config": {}}
    training = {"type": "TRAINING"}
    local = {"name": "projects/p/locations/local", "capabilities": [training]}
    locations, operations = projects.locations(), projects.operations()
    assert locations.list(parent="projects/p").execute() == {"locations": [local]}
    region = "projects/p/locations/us-central1"
    assert locations.get(name=region).execute() == {"name": region, "capabilities": [training]}
    assert operations.list(name="projects/p").execute() == {}
    assert projects.models().list(parent="projects/p").execute() == {}
    assert locations.studies().list(parent=region).execute() == {}

    def refusal(call: Any) -> tuple[int, str]:
        with pytest.raises(HttpError) as caught:
            call.execute()
        return caught.value.resp.status, caught.value.reason

    missing = "projects/p/operations/x"
    for call in (operations.get(name=missing), operations.cancel(name=missing)):
        assert refusal(call) == (404, f"Field: name Error: The operation {missing} was not found.")
    missing = f"{region}/operations/x"
    for call in (locations.operations().get(name=missing), locations.operations().cancel(name=missing)):
        assert refusal(call) == (404, f"Field: name Error: The operation {missing} was not found.")


def test_models_and_predictions_are_refused_in_a_sentence(ml: Any) -> None:
    projects = ml.projects()
    for call in (
        projects.models().create(parent="projects/p", body={"name": "m"}),
        projects.models().versions().create(parent="projects/p/models/m", body={"name": "v"}),
        projects.predict(name="projects/p/models/m", body={}),
        projects.locations().studies().create(parent="projects/p/locations/a", studyId="s", body={}),
    ):
        with pytest.raises(HttpError, match="This service runs training jobs"):
            call.execute()
    with pytest.raises(HttpError, match="The model projects/p/models/m was not found"):
        projects.models().get(name="projects/p/models/m").execute()


def test_credentials_of_a_program_need_the_domain_of_a_connected_shell(
    api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is of a connected shell, as docs/coming-from/google.md says."""
    domain = "trainyard.localhost:8472"
    monkeypatch.setenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN", domain)

    def first_page(address: str, **given: str) -> Any:
        credentials = Credentials(token="admin-secret", **given)  # type: ignore[no-untyped-call]
        options = {"api_endpoint": address}
        with discovery.build(
            "ml", "v1", static_discovery=True, client_options=options, credentials=credentials
        ) as client:
            return client.projects().jobs().list(parent="projects/p").execute()

    with serving(api.app) as address:
        with pytest.raises(UniverseMismatchError):
            first_page(address)
        assert first_page(address, universe_domain=domain) == {}
