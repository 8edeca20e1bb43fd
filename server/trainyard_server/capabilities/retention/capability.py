"""Retention: jobs that ended long ago, and old rows of the audit, are deleted."""

from trainyard_server.capabilities.retention.retention import Retention
from trainyard_server.capability import Capability, Loop

RETENTION = Capability(
    "retention",
    services=lambda cases: (Retention(cases.backend, cases.stopwatch),),
    loops=(Loop(lambda cases: cases.of(Retention).step(), 1.0, "What is kept too long cannot be found"),),
)
