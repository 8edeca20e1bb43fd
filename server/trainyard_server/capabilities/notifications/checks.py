"""Check of a submission: whether the destinations of its notifications are there."""

from trainyard_protocol.errors import FailedPrecondition, Violation
from trainyard_protocol.job.keys.notifications import is_channel_name
from trainyard_protocol.job.training_input import Job
from trainyard_server.capabilities.notifications import store
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.context import Backend
from trainyard_server.storage.db.queries.reader import Reader


def check_destinations(backend: Backend, reader: Reader, project: str, job: Job) -> None:
    """Raises FailedPrecondition for a destination that is no channel of the project, and for mail without a mail
    server."""
    wrong = []
    for number, notification in enumerate(job.training_input.notifications):
        field, to = f"notifications[{number}].to", notification.to
        if is_channel_name(to) and store.channel(reader, project, to) is None:
            wrong.append(
                Violation(
                    field,
                    f"The project {project} has no channel {to}. An admin of the project makes it: `trainyard "
                    f"channels set {to} ADDRESS`; `trainyard channels list` shows which there are.",
                )
            )
        elif "://" not in to and "@" in to and not backend.settings.of(NotificationOptions).smtp:
            wrong.append(Violation(field, "This server has no mail server: its operator gives it one (--smtp)."))
    if wrong:
        raise FailedPrecondition(wrong)
