"""Submission of a job for an agent: the dry run first, and nothing after one that is not clean."""

from dataclasses import dataclass
from pathlib import Path

from trainyard_cli.client import Client
from trainyard_cli.mcp import dry_run
from trainyard_cli.mcp.answers import DryRun, SubmitAnswer
from trainyard_cli.mcp.dry_run import AgentRequest
from trainyard_cli.mcp.user import McpUser
from trainyard_cli.origin import record
from trainyard_cli.submission import submit as submission
from trainyard_cli.submission.flags import get
from trainyard_cli.submission.submit import JobDraft
from trainyard_cli.submission.upload import ensure_bucket, to_bucket, to_server
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job and its dry run. `draft` is None where the job cannot be read. `bucket` is that of --staging-bucket."""

    dry_run: DryRun
    draft: JobDraft | None = None
    bucket: str = ""


def prepared(client: Client, request: AgentRequest) -> Prepared:
    """The job and its dry run. Raises what is not about the job."""
    notes: list[str] = []
    try:
        flags = dry_run.parse_flags(request.flags)
        draft = dry_run.drafted(request, flags)
        draft = submission.for_server(draft, notes.append, is_local=client.server.local)
    except (InvalidArgument, FailedPrecondition) as error:
        return Prepared(dry_run.refused(error))
    result = dry_run.checked(client, draft)
    return Prepared(result.model_copy(update={"notes": [*notes, *result.notes]}), draft, flags.text("staging_bucket"))


def submit(client: Client, request: AgentRequest, user: McpUser) -> SubmitAnswer:
    """Submit a job whose dry run is clean. A job of this name with the same content counts as the submitted one, so
    that an agent may call again. Raises AlreadyExists for one with another content."""
    ready = prepared(client, request)
    draft, result = ready.draft, ready.dry_run
    if draft is None or not (result.ok or result.name_exists):
        return SubmitAnswer(job="", state="", is_new=False, dry_run=result)
    existing = submission.ExistingJob(client, draft.name)
    notes: list[str] = []
    storage, job_dir = user.storage(client), str(get(draft.data, "trainingInput.jobDir") or "")
    if storage and job_dir.startswith("gs://"):
        ensure_bucket(job_dir, storage, notes.append)
    bucket = ready.bucket
    upload = to_bucket(bucket, storage, notes.append) if bucket else to_server(client)
    config = Path(request.config_path).expanduser() if request.config_path else None
    origin = record.prepare(client, record.Submitted(draft, config), notes.append)
    # What is packaged stands in the dry run already.
    if_exists = existing if draft.name else None
    job = submission.submit(draft, client, upload=upload, notify=lambda _: None, if_exists=if_exists)
    if existing.job is None:
        record.send(client, job, origin, notes.append)
    return SubmitAnswer(
        job=str(job["jobId"]),
        state=str(job.get("state", "QUEUED")),
        is_new=existing.job is None,
        dry_run=result.model_copy(update={"notes": [*result.notes, *notes]}),
    )
