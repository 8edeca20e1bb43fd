"""Backups of all that the server stores, and the examination of one."""

from functools import partial

from trainyard_server.capabilities.backups import routes
from trainyard_server.capabilities.backups.backups import Backups
from trainyard_server.capabilities.backups.examination import Examination
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_server.capability import Capability

BACKUPS = Capability(
    "backups",
    services=lambda cases: (
        Backups(cases.backend),
        Examination(
            cases.backend,
            cases.job_details,
            {
                what: partial(examine, cases)
                for capability in cases.backend.capabilities
                for what, examine in capability.stored.items()
            },
        ),
    ),
    routers=(routes.router,),
    options=BackupOptions,
    heading="backups\nwhat is in them beside the data directory",
)
