"""`jobs cancel` and `jobs delete`: what the latter removes, the question at a terminal, and the removal."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.service.completion import job_names
from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags
from trainyard_cli.commands.shared.options import JobName, connected, jobs_argument, server_options
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.jobs.formats import count
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_protocol.answers.jobs import JobDetail

_SHOWN = 20
"""Jobs that the question names."""


@click.command()
@jobs_argument
@gcloud_wide_flags
@connected
def cancel(client: "Client", names: tuple[str, ...]) -> None:
    """Cancel jobs. One that has ended is left alone.

    Until a job is CANCELLED, `jobs why` shows the machines that it waits for, and until when.
    """
    jobs = {name: client.detail(name) for name in dict.fromkeys(names)}
    for name, before in jobs.items():
        client.cancel_job(name)
        notify(cancellation(name, before))


def cancellation(name: str, before: "JobDetail") -> str:
    """The message about a job that is cancelled, which was in that state before. Pure."""
    if before.state in FINAL_JOB_STATES:
        return f"{name} has already ended ({before.state}); nothing to cancel."
    if before.state is JobState.CANCELLING:
        return f"{name} is already being cancelled."
    if before.is_study:
        return f"Cancelling {name} and its trials."
    replicas = [replica for run in before.runs[-1:] for replica in run.replicas]
    active = sum(replica.state is not ReplicaState.EXITED for replica in replicas)
    if not active:
        return f"Cancelling {name}: no replica of it is running."
    verb = "is" if active == 1 else "are"
    return f"Cancelling {name}: {count(active, 'replica')} {verb} asked to stop."


@click.command()
@click.argument("names", type=JobName(), shell_complete=job_names, nargs=-1, metavar="[JOB...]")
@click.option(
    "--filter",
    "filter_",
    default="",
    help="The jobs that match and have ended, as in jobs list: createTime<2026-01-01 AND labels.team=vision",
)
@click.option("--yes", "--quiet", "confirmed", is_flag=True, help="Do not ask.")
@server_options
def delete(target: Target, names: tuple[str, ...], filter_: str, confirmed: bool) -> None:
    """Delete jobs that have ended: record, log, curves, resource usage. Asks before.

    The local service's own directory of a job goes with it; a --job-dir, also on gs://, stays. A name is never used
    again.
    """
    if bool(names) == bool(filter_.strip()):
        raise click.UsageError("Name jobs, or give --filter: exactly one of JOB... | --filter must be given.")
    with connect(target) as client:
        if chosen := names or _ended_jobs(client, filter_):
            _delete(client, chosen, LocalState(target.state_dir), confirmed=confirmed)


def _ended_jobs(client: "Client", filter_: str) -> list[str]:
    """The names of the jobs that match and have ended; says how many of those that match have not."""
    jobs = list(client.list_jobs(filter_))
    ended = [job["jobId"] for job in jobs if job["state"] in FINAL_JOB_STATES]
    if active := len(jobs) - len(ended):
        verbs = ("has", "stays") if active == 1 else ("have", "stay")
        notify(f"{count(active, 'job')} of those that match {verbs[0]} not ended, and {verbs[1]}.")
    if not ended:
        notify("No job that has ended matches. Nothing was deleted.")
    return ended


def _delete(client: "Client", names: Sequence[str], state: LocalState, *, confirmed: bool) -> None:
    """Delete jobs that have ended: all of them, or none if one is unknown or has not ended.

    Raises NotFound, FailedPrecondition; a usage error without a terminal to ask at, unless `confirmed`.
    """
    jobs = {name: client.detail(name) for name in dict.fromkeys(names)}
    active = {name: detail.state for name, detail in jobs.items() if detail.state not in FINAL_JOB_STATES}
    if active:
        states = ", ".join(f"{name} is {state}" for name, state in active.items())
        raise FailedPrecondition(
            f"Only jobs that have ended can be deleted: {states}. Nothing was deleted.\n"
            f"To end it first:  jobs cancel {next(iter(active))}{client.flags}"
        )
    root = state.jobs / client.project if client.server.local else None
    directories = {name: own_directory(detail, root, name) for name, detail in jobs.items()}
    if not confirmed:
        _ask(consequences(jobs, directories))
    for name in jobs:
        client.delete_job(name)
        directory = directories[name]
        if directory is not None:
            _remove(directory)
        notify(f"Deleted the job [{name}]" + (f" and {directory}." if directory is not None else "."))


def own_directory(detail: "JobDetail", root: Path | None, name: str) -> Path | None:
    """The default directory of a job in the local state; None for a job with a jobDir, and where there is none."""
    if root is None or detail.job.get("trainingInput", {}).get("jobDir"):
        return None
    directory = root / name
    return directory if directory.is_dir() and not directory.is_symlink() else None


def consequences(jobs: "Mapping[str, JobDetail]", directories: Mapping[str, Path | None]) -> str:
    """The text of the question: what is removed, and what stays. Pure."""
    lines = [f"This deletes {count(len(jobs), 'job')} with record, log, curves and resource usage:"]
    for name, detail in list(jobs.items())[:_SHOWN]:
        own, job_dir = directories[name], detail.job.get("trainingInput", {}).get("jobDir")
        also = f", and its directory {own} with all files" if own is not None else ""
        stays = f"; {job_dir} stays" if job_dir else ""
        lines.append(f"  {name} ({detail.state}){also}{stays}")
    if len(jobs) > _SHOWN:
        lines.append(f"  and {len(jobs) - _SHOWN} more, with their own directories; directories of --job-dir stay")
    return "\n".join([*lines, "This cannot be undone. The names are never used again."])


def _ask(text: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{text}\nThere is no terminal to confirm this. Add --yes.")
    echo(text, err=True)
    if not click.confirm("Delete?", err=True):
        raise click.ClickException("Nothing was deleted.")


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except OSError as error:
        notify(f"WARNING: {directory} could not be removed: {error.strerror}.")
