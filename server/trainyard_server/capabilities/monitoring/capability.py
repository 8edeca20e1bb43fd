"""Figures for a monitoring system, as Prometheus reads them."""

from trainyard_server.capabilities.monitoring import routes
from trainyard_server.capabilities.monitoring.exposition import Exposition
from trainyard_server.capability import Capability

MONITORING = Capability("monitoring", services=lambda cases: (Exposition(cases.backend),), routers=(routes.router,))
