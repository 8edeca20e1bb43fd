"""Check of a submission: whether the project has the secrets that the job refers to."""

from trainyard_protocol.errors import FailedPrecondition, Violation
from trainyard_protocol.job.training_input import Job
from trainyard_server.capabilities.secrets import store
from trainyard_server.context import Backend
from trainyard_server.storage.db.queries.reader import Reader


def check_secrets(_backend: Backend, reader: Reader, project: str, job: Job) -> None:
    """Raises FailedPrecondition for a secret that the project does not have."""
    names = [reference.name for reference in job.training_input.secrets]
    if not names:
        return
    missing = store.missing(reader, project, names)
    if missing:
        raise FailedPrecondition(
            [
                Violation(
                    f"secrets[{number}].name",
                    f"The project {project} has no secret {name}. An admin of the project sets it: `trainyard secrets "
                    f"set {name}`; `trainyard secrets list` shows which there are.",
                )
                for number, name in enumerate(names)
                if name in missing
            ]
        )
