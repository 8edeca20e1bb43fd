"""The reason why a job waits, and what would start it."""

from trainyard_server.capabilities.why import routes
from trainyard_server.capabilities.why.queue_explanation import QueueExplanation
from trainyard_server.capability import Capability

WHY = Capability("why", services=lambda cases: (QueueExplanation(cases.backend),), routers=(routes.router,))
