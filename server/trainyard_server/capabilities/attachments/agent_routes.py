"""The route at which agents serve attachments to their replicas."""

from fastapi import WebSocket

from trainyard_server.api.routing import Router
from trainyard_server.capabilities.attachments.web_sockets import serve
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/agent/v1")


@router.socket(
    "/attachments/{attachment_id}/streams/{stream}",
    Access.AGENT,
    "commands in replicas, and connections to their ports",
)
async def stream(attachment_id: str, stream: int, socket: WebSocket) -> None:
    await serve(socket, attachment_id, stream, for_agent=True)
