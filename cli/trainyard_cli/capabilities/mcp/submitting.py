"""Jobs as an agent gives them: the dry run of their submission, and the submission after one that is clean."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from trainyard_cli.capabilities.mcp.answers import DryRun, DryRunFinding, ReplicaGroupAnswer, SubmitAnswer
from trainyard_cli.capabilities.mcp.program_text import cut, plain
from trainyard_cli.capabilities.mcp.user import McpUser
from trainyard_cli.client import Client
from trainyard_cli.origin import record
from trainyard_cli.output.jobs import study_plan
from trainyard_cli.output.jobs.gang import gang_text
from trainyard_cli.output.text.safe import without_field
from trainyard_cli.submission import config_file, places
from trainyard_cli.submission import submit as submission
from trainyard_cli.submission.existing_job import ExistingJob
from trainyard_cli.submission.flags import JobFlags, job_flags, pop_flags
from trainyard_cli.submission.submit import JobDraft
from trainyard_cli.submission.upload import ensure_bucket, to_bucket, to_server
from trainyard_protocol.answers.configs import ConfigCheckRequest, ReplicaGroup
from trainyard_protocol.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    TooManyRequests,
    TrainyardError,
)
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.job.runtimes import load_runtimes
from trainyard_protocol.job.training_input import Job

_MOST_FINDINGS = 30
_MOST_NOTES = 20
_LONGEST = 1000
_LOCATED = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+): (?P<text>.+)", re.S)
_HEADING = "The job is not valid; nothing was created.\n"
_NO_PACKAGE = "It has no package:"  # a note of the server about a job whose package is not uploaded yet


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A job as a tool's arguments give it. `flags` and `args` are those of `jobs submit training`."""

    config: str = ""
    config_path: str = ""
    package_path: str = ""
    job: str = ""
    args: Sequence[str | int | float] = ()
    flags: Sequence[str | int | float] = ()


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
        flags = _parse_flags(list(map(str, request.flags)))
        draft = _drafted(request, flags)
        draft = places.for_server(draft, notes.append, is_local=client.server.local)
    except (InvalidArgument, FailedPrecondition) as error:
        return Prepared(_refused(error))
    result = _checked(client, draft)
    return Prepared(result.model_copy(update={"notes": [*notes, *result.notes]}), draft, flags.text("staging_bucket"))


def submit(client: Client, request: AgentRequest, user: McpUser) -> SubmitAnswer:
    """Submit a job whose dry run is clean. A job of this name with the same content counts as the submitted one, so
    that an agent may call again. Raises AlreadyExists for one with another content."""
    ready = prepared(client, request)
    draft, result = ready.draft, ready.dry_run
    if draft is None or not (result.ok or result.name_exists):
        return SubmitAnswer(job="", state="", is_new=False, dry_run=result)
    existing = ExistingJob(client, draft.name)
    notes: list[str] = []
    storage, job_dir = user.storage(client), draft.data.job_dir
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


def _drafted(request: AgentRequest, flags: JobFlags) -> JobDraft:
    """The job with its flags and its program. Raises InvalidArgument, with file and line where there are."""
    if request.package_path:
        flags = JobFlags({**flags.given, "package_path": request.package_path})
    if not (request.config.strip() or request.config_path or flags.given):
        raise InvalidArgument("No job was given: set config, config_path, package_path or flags.")
    if request.config.strip() and request.config_path:
        raise InvalidArgument("Give either config or config_path.")
    if flags.text("build"):
        raise InvalidArgument(
            "--build: build the image with `trainyard build DIR` first, and give it as --master-image-uri."
        )
    source: Path | config_file.ConfigFile | None = None
    if request.config_path:
        source = Path(request.config_path).expanduser()
    elif request.config.strip():
        source = config_file.parse(request.config)
    return submission.draft(
        source, flags, current_dir=Path.cwd(), name=request.job, user_args=tuple(map(str, request.args))
    )


def _parse_flags(words: list[str]) -> JobFlags:
    """The flags of `jobs submit training`. Raises InvalidArgument."""
    command = click.command("flags", add_help_option=False)(job_flags(lambda **_: None))
    try:
        context = command.make_context("flags", words)
    except click.UsageError as error:
        raise InvalidArgument(
            f"flags: {error.format_message()} They are those of `trainyard jobs submit training`, each word an item of "
            "the list; arguments of the program are args."
        ) from error
    return pop_flags(dict(context.params))


def _checked(client: Client, draft: JobDraft) -> DryRun:
    """The result of the submission of a draft, all checks included: nothing is uploaded or created."""
    name = draft.name or next(submission.job_names(draft))
    body = draft.named(name)
    try:
        with submission.in_users_terms(draft):
            client.validate_job(body)
        job = submission.check_locally(draft, None)
        check = client.check_config(ConfigCheckRequest(config=json.dumps(body), format="json"))
    except TooManyRequests:
        raise
    except (InvalidArgument, FailedPrecondition, ResourceExhausted) as error:
        return _refused(error)
    if not check.ok:
        return _refused(InvalidArgument("\n".join(problem.message for problem in check.problems)))
    is_uploaded_later = draft.program is not None or bool(draft.packages)
    moot = _NO_PACKAGE if is_uploaded_later else ()
    notes = [*_notes(draft, job), *(note for note in check.notes if not note.startswith(moot))]
    return DryRun(
        ok=True,
        replicas=[_replicas(group) for group in check.gang],
        starts_now=check.outlook.starts if check.outlook else None,
        outlook=cut(check.outlook.summary if check.outlook else "", _LONGEST),
        notes=[cut(note, _LONGEST) for note in notes[:_MOST_NOTES]],
    )


def _refused(error: TrainyardError) -> DryRun:
    """The dry run of a job that is refused."""
    return DryRun(
        ok=False, findings=list(_findings(error.message))[:_MOST_FINDINGS], name_exists=isinstance(error, AlreadyExists)
    )


def text(result: DryRun) -> str:
    """The dry run for a language model."""
    if not result.ok:
        places = [f"{finding.file}:{finding.line}: " if finding.file else "" for finding in result.findings]
        found = [f"- {place}{finding.message}" for place, finding in zip(places, result.findings, strict=True)]
        return "\n".join(["Not accepted:", *found])
    groups = [
        {
            "taskType": group.task_type,
            "count": group.count,
            "machineType": group.machine_type,
            "vcpus": group.vcpus,
            "memoryGb": group.memory_gb,
            "acceleratorType": group.accelerators.partition(" x ")[2],
            "acceleratorCount": int(group.accelerators.partition(" x ")[0] or 0),
        }
        for group in result.replicas
    ]
    lines = ["The job is valid.", result.outlook, *(f"Note: {note}" for note in result.notes)]
    return "\n".join([*filter(None, lines), *([gang_text(groups)] if groups else [])])


def _findings(message: str) -> Iterator[DryRunFinding]:
    """The parts of an error, each with its file and line: an indented line belongs to the one before it."""
    for part in re.split(r"\n(?=\S)", without_field(plain(message)).removeprefix(_HEADING).strip()):
        match = _LOCATED.fullmatch(part)
        file, line = (match["file"], int(match["line"])) if match else ("", None)
        yield DryRunFinding(message=(match["text"] if match else part)[:_LONGEST], file=file, line=line)


def _notes(draft: JobDraft, job: Job) -> Iterator[str]:
    if draft.program is not None:
        yield from submission.packaging_lines(draft, draft.program)
    if job.training_input.hyperparameters is not None:
        yield study_plan.headline(job.training_input.hyperparameters)
    if substitution := load_runtimes().substitution(job.training_input.runtime_version):
        yield substitution


def _replicas(group: ReplicaGroup) -> ReplicaGroupAnswer:
    accelerators = f"{group.accelerator_count} x {group.accelerator_type}" if group.accelerator_count else ""
    return ReplicaGroupAnswer(
        task_type=group.task_type,
        count=group.count,
        machine_type=group.machine_type,
        vcpus=group.vcpus,
        memory_gb=group.memory_bytes / GIGABYTE,
        accelerators=accelerators,
    )
