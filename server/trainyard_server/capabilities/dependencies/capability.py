"""Dependencies of jobs: a job starts after others have ended, by the key `after`."""

from trainyard_server.capabilities.dependencies import routes, store
from trainyard_server.capabilities.dependencies.dependencies import (
    Dependencies,
    check_predecessors,
    refuse_removal,
    variables,
)
from trainyard_server.capability import Capability, Loop
from trainyard_server.dashboard.views import JobCard
from trainyard_server.storage.events.notifier import JOBS_TOPIC

_CARD = JobCard(
    "dependencies/_neighbours.html",
    lambda cases, project, job_id, _: {"neighbours": cases.of(Dependencies).of(project, job_id)},
    of_studies=True,
)

DEPENDENCIES = Capability(
    "dependencies",
    services=lambda cases: (Dependencies(cases.backend, cases.controller),),
    routers=(routes.router,),
    job_cards=(_CARD,),
    check=check_predecessors,
    job_events=store.JOB_EVENTS,
    before_removal=refuse_removal,
    order=variables,
    loops=(
        Loop(
            lambda cases: cases.of(Dependencies).step(),
            every_s=5.0,  # the metrics of a job that has ended come without a topic
            failure="Jobs that start after others cannot be released",
            topic=JOBS_TOPIC,
        ),
    ),
)
