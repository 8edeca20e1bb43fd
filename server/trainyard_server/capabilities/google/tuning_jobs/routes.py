"""Routes of the hyperparameter tuning jobs of Vertex AI's API. `/v1beta1` has the same: `google_calls` passes it on."""

from typing import Annotated

from fastapi import Query, Request

from trainyard_protocol.answers.custom_jobs import Deletion, TuningJobAnswer, TuningJobPage
from trainyard_protocol.job.tuning_jobs import HyperparameterTuningJob
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonOnly
from trainyard_server.api.json_answer import JsonAnswer
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.tuning_jobs.tuning_jobs import TuningJobs
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/v1/projects/{project}/locations/{location}", dependencies=[JsonOnly])


@router.post(
    "/hyperparameterTuningJobs", Access.SUBMITTER, "submit a tuning job", "jobs.create", response_model=TuningJobAnswer
)
def create(
    project: str, location: str, body: HyperparameterTuningJob, cases: Cases, caller: AuthenticatedCaller
) -> JsonAnswer:
    cases.health.admit()
    return JsonAnswer(cases.of(TuningJobs).create(caller, project, location, body))


@router.get("/hyperparameterTuningJobs", Access.VIEWER, "list the tuning jobs", response_model=TuningJobPage)
def list_tuning_jobs(
    project: str,
    location: str,
    cases: Cases,
    filter_text: Annotated[str, Query(alias="filter")] = "",
    page_size: Annotated[int | None, Query(alias="pageSize", json_schema_extra={"minimum": 0})] = None,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> JsonAnswer:
    return JsonAnswer(cases.of(TuningJobs).list(project, location, filter_text, page_size, page_token))


@router.get(
    "/hyperparameterTuningJobs/{job_id}", Access.VIEWER, "get one, with its trials", response_model=TuningJobAnswer
)
def get(request: Request, project: str, location: str, job_id: str, cases: Cases) -> JsonAnswer:
    return JsonAnswer(cases.of(TuningJobs).get(project, location, job_id, str(request.base_url)))


@router.post(
    "/hyperparameterTuningJobs/{job_id}:cancel",
    Access.SUBMITTER,
    "cancel your own job; admins: any",
    "jobs.cancel",
    own=True,
    response_model=dict[str, str],
)
def cancel(project: str, location: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> JsonAnswer:
    """The body is ignored: `{}`, empty or `{"name": ...}`."""
    return JsonAnswer(cases.of(TuningJobs).cancel(caller, project, location, job_id))


@router.delete(
    "/hyperparameterTuningJobs/{job_id}",
    Access.SUBMITTER,
    "delete your own job, once it has ended; admins: any",
    "jobs.delete",
    own=True,
    response_model=Deletion,
)
def delete(project: str, location: str, job_id: str, cases: Cases, caller: AuthenticatedCaller) -> JsonAnswer:
    return JsonAnswer(cases.of(TuningJobs).delete(caller, project, location, job_id))
