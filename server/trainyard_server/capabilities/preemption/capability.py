"""Preemption: runs give way to jobs of a higher band, or leave a drained agent, with the least work lost."""

from trainyard_server.capabilities.preemption import routes, store
from trainyard_server.capabilities.preemption.preemption import Preemptions
from trainyard_server.capability import Capability, Loop
from trainyard_server.dashboard.views import JobCard

PREEMPTION = Capability(
    "preemption",
    services=lambda cases: (Preemptions(cases.backend, cases.controller),),
    routers=(routes.router,),
    job_cards=(JobCard("preemption/_lost.html", lambda *_: {}),),
    job_events=store.JOB_EVENTS,
    loops=(Loop(lambda cases: cases.of(Preemptions).step(), 1.0, "Runs cannot be asked to give way"),),
)
