"""A job as the place where it runs gets it: with an image that was built here, or on a server elsewhere."""

from dataclasses import replace

from trainyard_cli.submission import machine_types
from trainyard_cli.submission.job_data import ROLES, JobData
from trainyard_cli.submission.submit import JobDraft, Notify, in_users_terms
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.config import placeholders


def with_image(draft: JobDraft, image: str) -> JobDraft:
    """The job with an image that is built from --build, in place of the master's and of every placeholder."""
    data = JobData(draft.data.body)
    data.image = image
    for path in (f"{role}Config.imageUri" for role in ROLES):
        if placeholders.in_image(str(data.training(path) or "")):
            data.put_training(path, image)
    return replace(draft, data=data, origins={**draft.origins, "master_config.image_uri": "--build"})


def with_default_machine(draft: JobDraft, notify: Notify) -> JobDraft:
    """The job as this machine's own service gets it: with one CPU where it is a program, and names no machines."""
    data = JobData(draft.data.body)
    if not machine_types.add_default(data):
        return draft
    notify(machine_types.ONE_CPU)
    return replace(draft, data=data)


def for_server(draft: JobDraft, notify: Notify, *, is_local: bool) -> JobDraft:
    """The job as this machine's own service gets it, or a server elsewhere. Raises InvalidArgument for a job-dir that
    is relative to a directory of this machine, where the job runs on another one."""
    if is_local:
        return with_default_machine(draft, notify)
    if draft.relative_job_dir:
        text = (
            f"{draft.relative_job_dir} is relative to a directory of this machine, and the job runs on another one. "
            "Give gs://BUCKET/DIRECTORY, or an absolute path there."
        )
        with in_users_terms(draft):
            raise InvalidArgument(Violation("job_dir", text))
    return draft
