"""Notifications of what happened to a job: mails and webhooks to people and channels."""

from collections.abc import Sequence

from trainyard_server.capabilities.notifications import page, routes
from trainyard_server.capabilities.notifications.channels import Channels
from trainyard_server.capabilities.notifications.checks import check_destinations
from trainyard_server.capabilities.notifications.mail import Mail
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.capabilities.notifications.sender import Sender
from trainyard_server.capabilities.notifications.store import JOB_EVENTS
from trainyard_server.capabilities.notifications.webhooks import Webhooks
from trainyard_server.capability import Capability, Loop
from trainyard_server.dashboard.views import Link
from trainyard_server.storage.events.notifier import NOTIFICATIONS_TOPIC
from trainyard_server.use_cases import UseCases


def _services(cases: UseCases) -> Sequence[object]:
    settings = cases.backend.settings
    options = settings.of(NotificationOptions)
    allow_local = options.local_webhooks or (settings.one_user and not settings.https_address)
    sender = Sender(cases.backend, Webhooks(cases.key, allow_local=allow_local), Mail(options))
    return sender, Channels(cases.backend, sender, cases.key)


NOTIFICATIONS = Capability(
    "notifications",
    services=_services,
    close=lambda cases: cases.of(Sender).close(),
    links=(Link("/notifications", "Notifications", 40),),
    routers=(routes.router, page.router),
    check=check_destinations,
    job_events=JOB_EVENTS,
    options=NotificationOptions,
    heading="notifications\na mail server, and what webhooks may reach",
    loops=(
        Loop(
            lambda cases: cases.of(Sender).step(),
            every_s=2.0,
            failure="Notifications cannot be sent",
            topic=NOTIFICATIONS_TOPIC,
        ),
    ),
)
