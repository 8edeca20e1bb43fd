"""Tracking through MLflow: the runs, metrics, artifacts and models that the programs of jobs log."""

from collections.abc import Sequence

from trainyard_server.capabilities.tracking import artifact_routes, page, rest_routes, routes, store
from trainyard_server.capabilities.tracking.artifacts import TrackedArtifacts
from trainyard_server.capabilities.tracking.curves import LoggedCurves
from trainyard_server.capabilities.tracking.models import routes as model_routes
from trainyard_server.capabilities.tracking.models.logged_models import LoggedModels
from trainyard_server.capabilities.tracking.search.run_search import RunSearch
from trainyard_server.capabilities.tracking.targets import RunAccess, run_id
from trainyard_server.capabilities.tracking.tracking import Tracking
from trainyard_server.capability import Capability
from trainyard_server.use_cases import UseCases


def _services(cases: UseCases) -> Sequence[object]:
    backend, access = cases.backend, RunAccess(cases.backend, cases.run_tokens)
    service = Tracking(backend, access, cases.controller, cases.metrics)
    return (
        service,
        RunSearch(backend, access),
        LoggedModels(backend, access, cases.controller),
        TrackedArtifacts(backend, access, cases.job_files, service),
    )


TRACKING = Capability(
    "tracking",
    services=_services,
    job_events=store.JOB_EVENTS,
    order=lambda _backend, _reader, job, token: {"tracking_run": run_id(job.key) if token else ""},
    curves=LoggedCurves(),
    routers=(routes.router, model_routes.router, artifact_routes.router, rest_routes.router, page.router),
)
