"""Pages behind the links that MLflow's client prints: those of a job, or the jobs of a project (links.js)."""

from urllib.parse import urlencode

from fastapi.responses import RedirectResponse

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.tracking.search.run_search import RunSearch
from trainyard_server.dashboard.rendering import job_path
from trainyard_server.domain.access.route_access import MLFLOW_LINKS, Access

router = Router(prefix=MLFLOW_LINKS)


@router.get("/{experiment}", Access.PERSON, "MLflow: the jobs of a project", response_class=RedirectResponse)
def experiment(cases: Cases, caller: AuthenticatedCaller, experiment: str) -> RedirectResponse:
    found = cases.of(RunSearch).experiment(caller, wanted_id=experiment)
    return RedirectResponse(f"/?{urlencode({'project': found['name']})}", 303)


@router.get("/{experiment}/{kind}/{wanted}", Access.PERSON, "MLflow: the job of a run", response_class=RedirectResponse)
def job_of_run(cases: Cases, caller: AuthenticatedCaller, kind: str, wanted: str) -> RedirectResponse:  # noqa: ARG001 - the route has it
    return RedirectResponse(job_path(*cases.of(RunSearch).job_of(caller, wanted)), 303)
