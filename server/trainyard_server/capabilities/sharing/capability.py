"""Sharing of machines between projects: fair shares, budgets, idle GPUs, and what each used."""

import time

from trainyard_server.capabilities.sharing import page, routes
from trainyard_server.capabilities.sharing.fair_share import FairShareUpdate
from trainyard_server.capabilities.sharing.idle_gpus import IdleGpus
from trainyard_server.capabilities.sharing.reports import UsageReports
from trainyard_server.capabilities.sharing.usage_recording import UsageRecording
from trainyard_server.capability import Capability, Loop
from trainyard_server.dashboard.views import Link

_EVERY_S = 5.0

SHARING = Capability(
    "sharing",
    services=lambda cases: (
        UsageRecording(cases.backend),
        IdleGpus(cases.backend, cases.controller),
        FairShareUpdate(cases.backend),
        UsageReports(cases.backend),
    ),
    before_removal=lambda backend, keys: UsageRecording(backend).record_jobs(keys),
    links=(Link("/usage", "Usage", 30),),
    routers=(routes.router, page.router),
    loops=(
        Loop(lambda cases: cases.of(UsageRecording).step(), _EVERY_S, "What runs used cannot be recorded"),
        Loop(lambda cases: cases.of(IdleGpus).step(time.monotonic()), _EVERY_S, "Idle GPUs cannot be found"),
        Loop(
            lambda cases: cases.of(FairShareUpdate).step(time.monotonic()),
            _EVERY_S,
            "The standing of projects cannot be computed",
            leads=False,
        ),
    ),
)
