"""Routes of notification channels, and of the notifications that were sent."""

from trainyard_protocol.answers.operating.notifications import (
    ChannelRequest,
    ChannelsView,
    ChannelView,
    DeliveryTest,
    NotificationsView,
    SigningKey,
)
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.notifications.channels import Channels
from trainyard_server.domain.access.route_access import Access

router = Router(prefix="/trainyard/v1/projects/{project}")


@router.get("/channels", Access.VIEWER, "the project's notification channels, URLs without their paths")
def channels(project: str, cases: Cases) -> ChannelsView:
    """The notification channels of a project, with the state of their deliveries."""
    return cases.of(Channels).list(project)


@router.put("/channels/{name}", Access.ADMIN, "set a notification channel", "channels.set")
def set_channel(
    project: str, name: str, body: ChannelRequest, cases: Cases, caller: AuthenticatedCaller
) -> ChannelView:
    return cases.of(Channels).save(caller, project, name, body)


@router.post("/channels/{name}:test", Access.SUBMITTER, "send a test to a notification channel", "channels.test")
async def test_channel(project: str, name: str, cases: Cases, caller: AuthenticatedCaller) -> DeliveryTest:
    """Send one notification to the channel now; the answer has what went wrong, if anything did."""
    return await cases.of(Channels).test(caller, project, name)


@router.delete("/channels/{name}", Access.ADMIN, "delete a notification channel", "channels.delete")
def delete_channel(project: str, name: str, cases: Cases, caller: AuthenticatedCaller) -> dict[str, str]:
    cases.of(Channels).delete(caller, project, name)
    return {}


@router.get("/notifications", Access.VIEWER, "the notifications of the last days, with their deliveries")
def notifications(project: str, cases: Cases, job: str = "") -> NotificationsView:
    """The newest notifications of a project, or of one of its jobs."""
    return cases.of(Channels).notifications(project, job)


@router.get("/notifications/signingKey", Access.ADMIN, "the key of the signatures of the project's webhooks")
def signing_key(project: str, cases: Cases) -> SigningKey:
    """The key with which a receiver verifies the signatures (Standard Webhooks)."""
    return cases.of(Channels).signing_key(project)
