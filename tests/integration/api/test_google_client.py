"""The real client library of the service, against a server of ours on a loopback port."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials
from googleapiclient import discovery
from googleapiclient.errors import HttpError

from integration.api.api_support import Server, package_job, serving


@pytest.fixture
def ml(api: Server) -> Iterator[Any]:
    with (
        serving(api.app) as address,
        discovery.build(
            "ml",
            "v1",
            static_discovery=True,
            client_options={"api_endpoint": address},
            credentials=Credentials(token="admin-secret"),  # type: ignore[no-untyped-call]
        ) as client,
    ):
        yield client


def test_google_client_creates_reads_changes_and_cancels_a_job(ml: Any) -> None:
    jobs = ml.projects().jobs()
    created = jobs.create(
        parent="projects/p", body={"jobId": "census_1", "trainingInput": package_job()}
    ).execute()
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


def test_google_client_pages_through_a_list(ml: Any) -> None:
    jobs = ml.projects().jobs()
    for number in range(3):
        body = {"jobId": f"j{number}", "trainingInput": package_job()}
        jobs.create(parent="projects/p", body=body).execute()
    seen, request = [], jobs.list(parent="projects/p", pageSize=2)
    while request is not None:
        answer = request.execute()
        seen += [job["jobId"] for job in answer["jobs"]]
        request = jobs.list_next(request, answer)
    assert seen == ["j2", "j1", "j0"]


def test_google_client_understands_our_errors(ml: Any) -> None:
    jobs = ml.projects().jobs()
    body = {"jobId": "a", "trainingInput": package_job()}
    jobs.create(parent="projects/p", body=body).execute()
    with pytest.raises(HttpError) as caught:
        jobs.create(parent="projects/p", body=body).execute()
    assert caught.value.resp.status == 409
    assert caught.value.reason == "Field: job.job_id Error: A job with this id already exists."
    assert caught.value.error_details[0]["fieldViolations"][0]["field"] == "job.job_id"
    with pytest.raises(HttpError) as caught:
        jobs.get(name="projects/p/jobs/none").execute()
    assert caught.value.resp.status == 404


def test_google_client_with_a_wrong_token_is_refused(api: Server) -> None:
    with (
        serving(api.app) as address,
        discovery.build(
            "ml",
            "v1",
            static_discovery=True,
            client_options={"api_endpoint": address},
            credentials=Credentials(token="wrong"),  # type: ignore[no-untyped-call]
        ) as ml,
        pytest.raises(RefreshError),  # it takes a 401 as a token that has run out
    ):
        ml.projects().jobs().get(name="projects/p/jobs/none").execute()
