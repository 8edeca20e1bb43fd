"""`jobs dev`: a job that waits, with a shell or a notebook in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.jobs.submit import config_option, no_diff_option
from trainyard_cli.commands.service.completion import job_names
from trainyard_cli.commands.shared.options import JobName, server_options
from trainyard_cli.local.options import Duration
from trainyard_cli.settings import Target
from trainyard_cli.submission.flags import JobFlags, job_flags, pop_flags
from trainyard_protocol.states import FINAL_JOB_STATES

if TYPE_CHECKING:
    from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory
    from trainyard_cli.client import Client

_SHORTEST_S = 1.0
_NOT_OFFERED = ("module_name", "pass_job_dir", "sweep", "metric", "goal", "parallel_trials")


@click.command()
@click.argument("job", type=JobName(), shell_complete=job_names, required=False)
@config_option
@job_flags
@no_diff_option
@click.option(
    "--idle",
    type=Duration(),
    default="1h",
    metavar="DURATION",
    help="End the job after it was idle for this long: no shell, and less than 1 % of a CPU.  [default: 1h]",
)
@click.option("--notebook", is_flag=True, help="Install and start JupyterLab, and open it at a port of this machine.")
@click.option("--no-open", is_flag=True, help="Print the address of JupyterLab without opening a browser.")
@click.option("--no-shell", is_flag=True, help="Synchronise once, and return.")
@click.option("--rm", is_flag=True, help="Cancel the job on leaving.")
@server_options
def dev(
    target: Target, job: str | None, idle: float, notebook: bool, no_open: bool, no_shell: bool, rm: bool, **given: Any
) -> int:
    """Open a shell in a job that waits, with the code of a directory in it, synchronised while the shell is open.

    The job has the packages that a training with this --package-path would have, by default the current directory. A
    JOB that runs already is entered again. What changes here is changed there within a second or two; nothing comes
    back. Without a terminal it synchronises once, and prints how to enter.
    """
    flags = pop_flags(given)
    _check(flags, idle, notebook=notebook, no_shell=no_shell)
    from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory
    from trainyard_cli.local.connect import client_of, find_server, notify, running_server

    include = tuple(Path(name).absolute() for name in flags.given.get("include", ()))
    code = CodeDirectory.of(Path(flags.text("package_path") or ".").expanduser(), include)
    server = running_server(target)
    if server is None and (configured := find_server(target)) is not None and not configured.local:
        server = configured
    exists = False
    if job is not None and server is not None:
        with client_of(server, target) as client:
            exists = _is_there(client, job)
    if exists and flags.given.keys() - {"package_path", "include"}:
        notify(f"{job} exists, and keeps the flags that it was submitted with.")
    if job is None or not exists:
        server, job = _submit(target, job, code, flags, given, idle=idle, notebook=notebook)
    assert server is not None
    with client_of(server, target) as client:
        return _enter(client, job, code, flags, notebook=notebook, no_open=no_open, no_shell=no_shell, rm=rm)


def _check(flags: JobFlags, idle: float, *, notebook: bool, no_shell: bool) -> None:
    """Raises UsageError."""
    for name in _NOT_OFFERED:
        if flags.text(name):
            raise click.UsageError(
                f"argument --{name.replace('_', '-')}: `jobs dev` has a shell in place of a program."
            )
    if idle < _SHORTEST_S:
        raise click.UsageError("argument --idle: must be at least 1s.")
    if notebook and no_shell:
        raise click.UsageError("argument --no-shell: At most one of --notebook | --no-shell can be specified.")


def _is_there(client: "Client", job: str) -> bool:
    """Whether the job exists. Raises FailedPrecondition for another kind of job."""
    from trainyard_cli.capabilities.attachments.dev.job import is_dev_job
    from trainyard_protocol.errors import FailedPrecondition, NotFound

    try:
        found = client.get_job(job)
    except NotFound:
        return False
    if not is_dev_job(found):
        raise FailedPrecondition(
            f"{job} is not a job of `jobs dev`, so files are not copied to it. `jobs shell {job}` opens a shell in it."
        )
    return True


def _submit(
    target: Target,
    job: str | None,
    code: "CodeDirectory",
    flags: JobFlags,
    given: dict[str, Any],
    *,
    idle: float,
    notebook: bool,
) -> tuple[Any, str]:
    """Create the job. Returns its server and its name."""
    from trainyard_cli.capabilities.attachments.dev.job import dev_job
    from trainyard_cli.commands.jobs import submitting
    from trainyard_cli.local.connect import notify
    from trainyard_cli.submission import config_file

    config = config_file.load(given["config"]) if given["config"] is not None else None
    with dev_job(config, flags, code, idle_s=idle, notebook=notebook) as waiting:
        request = submitting.JobRequest(
            waiting.flags,
            job or "",
            config,
            "",
            waiting.arguments,
            (),
            no_diff=given["no_diff"],
            code=str(code.path),
            change=waiting.change,
        )
        created = submitting.create(target, request)
    name = str(created.job["jobId"])
    notify(f"Job [{name}] submitted successfully.")
    return created.server, name


def _enter(
    client: "Client",
    job: str,
    code: "CodeDirectory",
    flags: JobFlags,
    *,
    notebook: bool,
    no_open: bool,
    no_shell: bool,
    rm: bool,
) -> int:
    from trainyard_cli.capabilities.attachments.command import is_terminal
    from trainyard_cli.capabilities.attachments.dev.session import VisitKind, visit, wait_until_running
    from trainyard_cli.commands.service.dashboard import has_browser
    from trainyard_cli.local.connect import notify

    kind = VisitKind.NOTEBOOK if notebook else VisitKind.SHELL
    if no_shell or (not notebook and not is_terminal()):
        kind = VisitKind.ONCE
    has_path = bool(flags.text("package_path"))
    with _leaving(client, job, rm=rm):
        wait_until_running(client, job)
        opens = not no_open and has_browser(os.environ)
        return visit(client, job, code, kind, replaces=has_path, notify=notify, opens=opens)


@contextmanager
def _leaving(client: "Client", job: str, *, rm: bool) -> Iterator[None]:
    """Cancel the job at the end with --rm, or say what can be done with it unless there was an error."""
    from trainyard_cli.local.connect import notify
    from trainyard_protocol.errors import TrainyardError

    failed = False
    try:
        yield
    except TrainyardError:
        failed = True
        raise
    finally:
        if rm and client.get_job(job)["state"] not in FINAL_JOB_STATES:
            client.cancel_job(job)
            notify(f"Cancelled {job}.")
        elif not failed:
            notify(
                f"{job} continues until it is idle. Enter it again: jobs dev {job}{client.flags}   "
                f"End it: jobs cancel {job}{client.flags}"
            )
