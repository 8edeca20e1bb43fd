"""Commands in replicas and forwarded ports: a person's terminal and an agent's replica meet at the server."""

from trainyard_server.capabilities.attachments import agent_routes, routes, store
from trainyard_server.capabilities.attachments.attachments import Attachments
from trainyard_server.capability import Capability

ATTACHMENTS = Capability(
    "attachments",
    services=lambda cases: (Attachments(cases.backend),),
    agent_orders=lambda reader, agent_id, now: {"attachments": store.orders_for(reader, agent_id, now)},
    routers=(routes.router, agent_routes.router),
)
