"""Routes of attachments for people: a command in a replica, and its ports."""

import shlex

from fastapi import WebSocket

from trainyard_protocol.wire.attachments import AttachReceipt, AttachRequest
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.middleware.audit import Audited
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.attachments.attachments import Attachments
from trainyard_server.capabilities.attachments.web_sockets import serve
from trainyard_server.domain.access.route_access import UNRECORDED, Access

router = Router(prefix="/trainyard/v1")


@router.post(
    "/projects/{project}/jobs/{job_id}/attachments",
    Access.SUBMITTER,
    "a command in a replica of your own job, or connections to its ports; admins: any",
    "attachments.create",
    own=True,
)
def create(
    project: str, job_id: str, body: AttachRequest, cases: Cases, caller: AuthenticatedCaller, trail: Audited
) -> AttachReceipt:
    """Create an attachment. Its streams are the WebSockets `/trainyard/v1/attachments/ID/streams/N`."""
    ports = f"ports {', '.join(map(str, body.ports))}"
    trail.subject = f"{job_id}/{body.task or 'master-replica-0'}: {shlex.join(body.command) or ports}"
    return cases.of(Attachments).create(caller, project, job_id, body)


@router.delete("/attachments/{attachment_id}", Access.PERSON, "end your own attachment", UNRECORDED)
def end(attachment_id: str, cases: Cases, caller: AuthenticatedCaller) -> dict[str, str]:
    """End an attachment whose streams may wait for their slower end. One that has ended: nothing."""
    cases.of(Attachments).end(caller, attachment_id)
    return {}


@router.socket(
    "/attachments/{attachment_id}/streams/{stream}", Access.PERSON, "the input and output of your own attachment"
)
async def stream(attachment_id: str, stream: int, socket: WebSocket) -> None:
    await serve(socket, attachment_id, stream)
