"""Notifications of what happened to a job: mails and webhooks to people and channels."""

from collections.abc import Iterator, Sequence

from trainyard_server.capabilities.notifications import page, routes, store
from trainyard_server.capabilities.notifications.channels import Channels
from trainyard_server.capabilities.notifications.checks import check_destinations
from trainyard_server.capabilities.notifications.mail import Mail
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.capabilities.notifications.sender import Sender
from trainyard_server.capabilities.notifications.webhooks import Webhooks
from trainyard_server.capability import Capability, Figure, Loop
from trainyard_server.context import Backend
from trainyard_server.dashboard.views import Link
from trainyard_server.storage.events.notifier import NOTIFICATIONS_TOPIC
from trainyard_server.use_cases import UseCases


def _services(cases: UseCases) -> Sequence[object]:
    settings = cases.backend.settings
    options = settings.of(NotificationOptions)
    allow_local = options.local_webhooks or (settings.one_user and not settings.https_address)
    sender = Sender(cases.backend, Webhooks(cases.key, allow_local=allow_local), Mail(options))
    return sender, Channels(cases.backend, sender, cases.key)


def _figures(backend: Backend) -> Iterator[Figure]:
    with backend.store.read() as reader:
        counts = store.by_state(reader)
    yield Figure("trainyard_notifications", "Notifications of the last week by state.", "state", counts)


NOTIFICATIONS = Capability(
    "notifications",
    services=_services,
    figures=_figures,
    close=lambda cases: cases.of(Sender).close(),
    links=(Link("/notifications", "Notifications", 40),),
    routers=(routes.router, page.router),
    check=check_destinations,
    job_events=store.JOB_EVENTS,
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
