"""Findings of `trainyard doctor`, and the state of the server for a debug bundle."""

from trainyard_server.capabilities.health import routes
from trainyard_server.capabilities.health.debugging import Debugging
from trainyard_server.capabilities.health.diagnosis import Diagnosis
from trainyard_server.capability import Capability

HEALTH = Capability(
    "health", services=lambda cases: (Diagnosis(cases.backend), Debugging(cases.backend)), routers=(routes.router,)
)
