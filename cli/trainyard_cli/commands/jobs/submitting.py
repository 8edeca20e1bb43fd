"""`jobs submit training` and `jobs validate`, from flags to exit code.

What most submissions do not need, and what follows a job, is imported where it is used: an edit to a program is seen to
run that much sooner.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.local.connect import client_of, connect, find_server, notify, running_server, v1_client_of
from trainyard_cli.local.service import ensure_up
from trainyard_cli.local.state import LocalState
from trainyard_cli.origin import record
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.activity import Activity
from trainyard_cli.output.text.bottom_line import is_live
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Server, Target
from trainyard_cli.submission import places
from trainyard_cli.submission import submit as submission
from trainyard_cli.submission.config_file import STDIN, ConfigFile
from trainyard_cli.submission.existing_job import ExistingJob
from trainyard_cli.submission.flags import JobFlags
from trainyard_cli.submission.foreign import secret_hints
from trainyard_cli.submission.from_job import rerun_config, trial_config
from trainyard_cli.submission.submit import Uploader
from trainyard_cli.submission.upload import ensure_bucket, to_bucket, to_server
from trainyard_cli.v1_client import NO_RETRIES, V1Client
from trainyard_programs.archives import Archive
from trainyard_protocol.errors import AlreadyExists, FailedPrecondition, InvalidArgument, TrainyardError, Unavailable
from trainyard_protocol.fields import sized
from trainyard_protocol.job.machines import Catalog, load_catalog
from trainyard_protocol.job.runtimes import check_version, load_runtimes
from trainyard_protocol.job.training_input import Job

if TYPE_CHECKING:
    from trainyard_cli.runtimes.images import Recipe

_SUBMITTING = "submitting the job"
_PUSH = "trainyard build DIR --tag REGISTRY/NAME:TAG, docker push, and --master-image-uri in place of --build."


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job as the command line gives it. `words`: those of the command after its name, before `--`. `rerun_of`: the
    job whose config it has, in whose arguments `set_args` are changed. `no_diff`: its origin has no diff. `repeats`:
    the job or the trial whose config it has, once that is read. `code`: the directory that it comes from, where it has
    no program of its own. `change` is applied to its draft."""

    flags: JobFlags
    name: str
    config: Path | ConfigFile | None
    from_trial: str
    user_args: tuple[str, ...]
    words: tuple[str, ...]
    rerun_of: str = ""
    set_args: tuple[tuple[str, str], ...] = ()
    no_diff: bool = False
    repeats: str = ""
    code: str = ""
    change: Callable[[submission.JobDraft], submission.JobDraft] | None = None


@dataclass(frozen=True, slots=True)
class CreatedJob:
    """A job, and the server that has it. `is_new`: it was not there before. `program` is the plan of what was sent."""

    server: Server
    job: dict[str, Any]
    is_new: bool
    program: dict[str, Any] | None = None


def submit(
    target: Target,
    output: Output,
    request: JobRequest,
    *,
    stream_logs: bool,
    if_not_exists: bool = False,
    raw: bool = False,
    cancel_on_interrupt: bool = False,
) -> int:
    """Submit one job; with `stream_logs` follow it and return its exit code.

    With `if_not_exists` a job of that name with the same content counts as the submitted one; with another content it
    is an AlreadyExists with the differences.
    """
    created = create(target, request, if_not_exists=if_not_exists)
    if stream_logs:  # Ctrl-C is answered by who follows the job, which is still to be loaded
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _announce(created, output, target.flags, stream_logs=stream_logs)
    if not stream_logs:
        return 0
    return _follow(created.server, target, created.job["jobId"], raw, cancel_on_interrupt)


def create(target: Target, request: JobRequest, *, if_not_exists: bool = False) -> CreatedJob:
    """Create one job, as `submit` does."""
    request = _of_job(target, request)
    draft, project = _draft(request)
    _notify_secrets(request.flags)
    if if_not_exists and not draft.name:
        raise click.UsageError(
            "argument --if-not-exists: give the job a name, as JOB or as the config's jobId. The default name has the "
            "time in it, so that no such job ever exists."
        )
    state = LocalState(target.state_dir)
    server = find_server(target)
    draft = places.for_server(draft, notify, is_local=server is None or server.local)
    with _proposing_build(draft, request):
        checked = _check(draft, target, server, _catalog(server, state))
        _check_runtime(checked, draft, target, server, state)
    if checked.training_input.hyperparameters is not None:
        from trainyard_cli.output.jobs import study_plan

        notify(study_plan.headline(checked.training_input.hyperparameters))
    if project is not None:
        from trainyard_cli.commands.images.build import ensure_built

        ensure_built(project)
        if server is not None and not server.local:
            notify(f"The image is on this machine. Agents elsewhere need it in a registry: {_PUSH}")
    server = _ready(target, server, state)
    with v1_client_of(server, target) as client:
        bucket = request.flags.text("staging_bucket")
        storage = state.storage_url() if server.local else ""
        job_dir = draft.data.job_dir

        if storage and job_dir.startswith("gs://"):
            ensure_bucket(job_dir, storage, notify)
        existing = ExistingJob(client, draft.name)
        activity = Activity()
        upload = to_bucket(bucket, storage, activity.notify) if bucket else to_server(client)
        submitted = record.Submitted(
            draft, request.config, request.code or request.flags.text("build"), request.repeats, no_diff=request.no_diff
        )
        with activity, _proposing_build(draft, request), _naming_again(if_not_exists):
            origin = record.prepare(client, submitted, activity.notify)
            activity.report("packaging" if draft.program is not None else _SUBMITTING)
            job = submission.submit(
                draft,
                client,
                upload=_reported(upload, activity),
                notify=activity.notify,
                if_exists=existing if if_not_exists else None,
            )
            if existing.job is None:
                record.send(client, job, origin, activity.notify)
    plan = draft.program.plan() if draft.program is not None else None
    return CreatedJob(server, job, existing.job is None, plan)


def _follow(server: Server, target: Target, job: str, raw: bool, cancel_on_interrupt: bool) -> int:
    """Follow a job to its end. The models of its stream are loaded while the job is already starting."""
    from trainyard_cli.output.log.follow import stream
    from trainyard_cli.output.log.terminal_screen import screen_for

    with client_of(server, target) as client:
        return stream(client, job, screen_for(sys.stderr, sys.stderr, raw=raw), cancel_on_interrupt=cancel_on_interrupt)


def validate(target: Target, output: Output, request: JobRequest) -> None:
    """Run the checks of submit, locally and at a running server, and print the gang."""
    from trainyard_cli.output.jobs import gang, study_plan

    request = _of_job(target, request)
    draft, project = _draft(request)
    _notify_secrets(request.flags)
    state = LocalState(target.state_dir)
    address = find_server(target)
    draft = places.for_server(draft, notify, is_local=address is None or address.local)
    catalog = _catalog(address, state)
    server = running_server(target)
    with _proposing_build(draft, request):
        job = _check(draft, target, address, catalog)
        _check_runtime(job, draft, target, address, state)
        if server is not None:
            with v1_client_of(server, target) as client, submission.in_users_terms(draft):
                client.validate_job(draft.named(draft.name or next(submission.job_names(draft))))
    groups = gang.gang_of(job.training_input, catalog or _shown_catalog(server, state))
    study = job.training_input.hyperparameters
    if not output.for_people:
        plan = {} if study is None else {"study": study_plan.data(study)}
        plan |= {} if draft.program is None else {"program": draft.program.plan()}
        checked_input = job.canonical()["trainingInput"]
        echo(formats.render(output, {"trainingInput": checked_input, **plan, "replicas": groups}))
        return
    checked = f"accepted by the server at {server.url}" if server else "checked locally only: no server is running"
    echo(f"The job is valid ({checked}). Nothing was submitted.")
    if draft.program is not None:
        for line in submission.packaging_lines(draft, draft.program, names_all=True):
            echo(line)
    if project is not None:
        echo(f"It would build {project.name} as {project.image}.")
    if study is not None:
        echo("\n" + "\n".join(study_plan.lines(study)))
    if groups:
        echo("\n" + ("Of each trial:\n" if study is not None else "") + gang.gang_text(groups))


def _of_job(target: Target, request: JobRequest) -> JobRequest:
    """The request with the config of the job that it repeats, or with the config and the flags of a trial, if it names
    one."""
    if request.rerun_of:
        with connect(target) as client:
            config, name = rerun_config(
                client, request.rerun_of, request.name, request.set_args, request.user_args, notify, request.flags
            )
        return replace(request, config=config, name=name, user_args=(), repeats=request.rerun_of)
    if not request.from_trial:
        return request
    if request.config is not None:
        raise click.UsageError("argument --from-trial: At most one of --config | --from-trial can be specified.")
    with connect(target) as client:
        config, flags, trial = trial_config(client, request.from_trial, request.user_args, notify, request.flags)
    return replace(request, config=config, flags=flags, user_args=(), repeats=trial)


def _draft(request: JobRequest) -> tuple[submission.JobDraft, "Recipe | None"]:
    """The job, and the project of --build, whose image it has."""
    draft = submission.draft(
        request.config, request.flags, current_dir=_current_dir(), name=request.name, user_args=request.user_args
    )
    change = request.change or (lambda draft: draft)
    if not request.flags.text("build"):
        return change(draft), None
    from trainyard_cli.runtimes import images

    project = images.project(Path(request.flags.text("build")).expanduser())
    return change(places.with_image(draft, project.image)), project


@contextmanager
def _proposing_build(draft: submission.JobDraft, request: JobRequest) -> Iterator[None]:
    """Add the command line with --build to the errors of a job whose image is still to be built."""
    try:
        yield
    except InvalidArgument as error:
        if not submission.lacks_program(draft):
            raise
        from trainyard_cli.commands.images.build import command_with_build

        beside = [draft.config.path.absolute().parent] if draft.config and draft.config.path != STDIN else []
        command = command_with_build(request.words, request.user_args, [*beside, _current_dir()])
        if command:
            hint = f"A Dockerfile is beside it. To build its image and submit the job:  {command}"
        else:
            hint = (
                "To run a program of yours, name it with --package-path: a script, a directory or a package. With a "
                "Dockerfile, --build DIR builds its image and uses it."
            )
        raise InvalidArgument(f"{error.message}\n{hint}") from error


@contextmanager
def _naming_again(if_not_exists: bool) -> Iterator[None]:
    """Add to the refusal of a name that is in use what to do about it."""
    try:
        yield
    except AlreadyExists as error:
        if if_not_exists:
            raise
        raise AlreadyExists(
            f"{error.message}\nGive the job another name. With --if-not-exists a job of this name that has the same "
            "content counts as the submitted one."
        ) from error


def _notify_secrets(flags: JobFlags) -> None:
    if flags.env and (hint := secret_hints.hint(flags.env)):
        notify(hint)


def _check_runtime(
    job: Job, draft: submission.JobDraft, target: Target, server: Server | None, state: LocalState
) -> None:
    """Say what stands in for the framework of the job's runtime version, by the shipped file or this machine's: those
    of agents elsewhere are not known here. Raises InvalidArgument for a version that neither these nor a running
    server know."""
    version = job.training_input.runtime_version
    site_file = state.options().runtimes if server is None or server.local else ""
    table = load_runtimes(Path(site_file) if site_file else None)
    try:
        with submission.in_users_terms(draft):
            check_version(version, table.offered)
    except InvalidArgument:
        if _catalog(server, state) is None and server is not None:
            if (refusal := _refusal(draft, target, server)) is None:
                return
            raise refusal from None
        raise
    if text := table.substitution(version):
        notify(text)


def _announce(created: CreatedJob, output: Output, flags: str, *, stream_logs: bool) -> None:
    job, is_new = created.job, created.is_new
    job_id = job["jobId"]
    if is_new:
        notify(f"Job [{job_id}] submitted successfully.")
    else:
        notify(f"Job [{job_id}] exists with the same content: it is {job['state']}. Nothing was submitted.")
    if is_new and not stream_logs:
        notify(
            "Your job is still active. You may view the status of your job with the command\n\n"
            f"  $ jobs describe {job_id}{flags}\n\n"
            "or continue streaming the logs with the command\n\n"
            f"  $ jobs stream-logs {job_id}{flags}\n"
        )
    if output.for_people:
        # The live view follows, and says the same.
        if not (stream_logs and is_live(sys.stdout) and is_live(sys.stderr)):
            echo(f"jobId: {job_id}\nstate: {job.get('state', 'QUEUED')}")
    else:
        echo(formats.render(output, job if created.program is None else {**job, "program": created.program}))
    sys.stdout.flush()


def _check(draft: submission.JobDraft, target: Target, server: Server | None, catalog: Catalog | None) -> Job:
    """Check locally. Raises InvalidArgument with every violation, also those that only a running server knows."""
    try:
        return submission.check_locally(draft, catalog)
    except InvalidArgument as error:
        if catalog is None and server is not None:
            raise _refusal(draft, target, server) or error from None
        raise


def _refusal(draft: submission.JobDraft, target: Target, server: Server) -> InvalidArgument | None:
    """The server's refusal of the job; None if it does not answer, or refuses for another reason."""
    try:
        with V1Client(server, target.project, retry_delays=NO_RETRIES) as client, submission.in_users_terms(draft):
            client.validate_job(draft.named(draft.name or "job"))
    except InvalidArgument as error:
        return error
    except TrainyardError:
        return None
    return None


def _catalog(server: Server | None, state: LocalState) -> Catalog | None:
    """The catalog that the local server will start with; None for a running server, which validates itself."""
    if server is not None and (not server.local or state.process("server")):
        return None
    site_file = state.options().machine_types
    return load_catalog(Path(site_file) if site_file else None)


def _shown_catalog(server: Server | None, state: LocalState) -> Catalog:
    """The probable catalog of a running server, for display only."""
    process = state.process("server") if server is not None and server.local else None
    command = process.command if process else ()
    if "--machine-types" in command[:-1]:
        with suppress(InvalidArgument):
            return load_catalog(Path(command[command.index("--machine-types") + 1]))
    return load_catalog()


def _current_dir() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise FailedPrecondition("The current directory was deleted. Change to another one.") from None


def _ready(target: Target, server: Server | None, state: LocalState) -> Server:
    """The configured server, or the local one, started if necessary."""
    if server is not None and not server.local:
        return server
    with Activity() as activity:
        ensure_up(state, activity.notify, activity.report)
    started = state.server()
    if started is None:
        raise Unavailable(f"The state directory {target.state_dir} was removed.")
    return started


def _reported(upload: Uploader, activity: Activity) -> Uploader:
    """The uploader, with its steps shown."""

    def reported(job_id: str, archive: Archive) -> str:
        activity.report(f"uploading {archive.path.name} ({sized(archive.size)})")
        address = upload(job_id, archive)
        activity.report(_SUBMITTING)
        return address

    return reported
