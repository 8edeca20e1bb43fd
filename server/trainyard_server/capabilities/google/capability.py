"""Google's APIs beyond jobs: access tokens, Vertex AI's custom jobs and tuning jobs, logs, the storage."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trainyard_server.capabilities.google import vertex_routes as vertex
from trainyard_server.capabilities.google.custom_jobs import routes as custom_jobs
from trainyard_server.capabilities.google.custom_jobs.custom_jobs import CustomJobs
from trainyard_server.capabilities.google.logging import routes as cloud_logging
from trainyard_server.capabilities.google.logging.entries_list import EntriesList
from trainyard_server.capabilities.google.ml_v1 import access_routes as google_access
from trainyard_server.capabilities.google.ml_v1 import batch_routes as batch
from trainyard_server.capabilities.google.ml_v1 import discovery_routes as discovery
from trainyard_server.capabilities.google.ml_v1 import resource_routes as google_resources
from trainyard_server.capabilities.google.ml_v1.access import GoogleAccess
from trainyard_server.capabilities.google.ml_v1.google_calls import GoogleCalls
from trainyard_server.capabilities.google.ml_v1.resources import GoogleResources
from trainyard_server.capabilities.google.storage import routes as object_storage
from trainyard_server.capabilities.google.storage.names import StorageNames
from trainyard_server.capabilities.google.storage.object_storage import ObjectStorage
from trainyard_server.capabilities.google.tuning_jobs import routes as tuning_jobs
from trainyard_server.capabilities.google.tuning_jobs import training
from trainyard_server.capabilities.google.tuning_jobs.tuning_jobs import TuningJobs
from trainyard_server.capability import Capability, Middleware
from trainyard_server.config.settings import Settings
from trainyard_server.services.people.principals import Credentials
from trainyard_server.use_cases import UseCases

if TYPE_CHECKING:
    from trainyard_server.capabilities.google.ml_v1.keys import ServiceAccountKeys


def _credentials(settings: Settings, key: bytes) -> Iterable[Credentials]:
    if not settings.google_domain:
        return ()
    from trainyard_server.capabilities.google.ml_v1.keys import ServiceAccountKeys

    return (ServiceAccountKeys(key, settings.google_domain),)


def _keys(cases: UseCases) -> "ServiceAccountKeys | None":
    if not cases.backend.settings.google_domain:
        return None
    from trainyard_server.capabilities.google.ml_v1.keys import ServiceAccountKeys

    return next((keys for keys in cases.credentials if isinstance(keys, ServiceAccountKeys)), None)


def _services(cases: UseCases) -> Sequence[object]:
    backend, resources = cases.backend, GoogleResources(cases.backend)
    return (
        resources,
        EntriesList(backend, cases.log_executors),
        GoogleAccess(backend, _keys(cases), cases.principals, cases.guesses),
        CustomJobs(backend, cases.jobs, cases.job_lists, resources),
        TuningJobs(backend, cases.jobs, cases.job_lists, resources),
        ObjectStorage(backend),
    )


GOOGLE = Capability(
    "google",
    services=_services,
    credentials=_credentials,
    check=lambda _backend, _reader, _project, job: training.check(job),
    middleware=(
        Middleware(lambda app, settings: StorageNames(app, settings.google_domain)),
        Middleware(lambda app, _: GoogleCalls(app), reads_answers=True),
    ),
    close=lambda cases: cases.of(ObjectStorage).close(),
    routers=(
        google_resources.router,
        custom_jobs.router,
        tuning_jobs.router,
        vertex.router,
        discovery.router,
        google_access.router,
        batch.router,
        cloud_logging.router,
        object_storage.router,
    ),
)
