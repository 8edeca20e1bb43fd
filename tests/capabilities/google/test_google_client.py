"""The real client library of the service, against a server of ours on a loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
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
