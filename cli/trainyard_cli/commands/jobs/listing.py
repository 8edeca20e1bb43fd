"""`jobs list`. It loads no models: see `v1_client`."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags, list_flags
from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.local.connect import connect_v1, notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo, printable
from trainyard_cli.settings import Target
from trainyard_protocol.states import JobState

if TYPE_CHECKING:
    from trainyard_cli.v1_client import V1Client

_EXITED = re.compile(
    r"The replica \w+ \d+ (?:exited with a non-zero status of \d+|was killed by signal \d+(?: \(\w+\))?)\. ?"
)
_CAUSE_WIDTH = 100


@click.command()
@click.option("--filter", "filter_", default="", help="Filter, such as: jobId:census* AND state:FAILED")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of jobs.")
@click.option("--sort-by", default="", metavar="KEY,~KEY", help="Sort by these keys; ~ means descending.")
@click.option("--uri", is_flag=True, help="Print only the jobs' URIs.")
@list_flags
@gcloud_wide_flags
@server_options
@output_options
def list_jobs(target: Target, output: Output, filter_: str, limit: int | None, sort_by: str, uri: bool) -> None:
    """List jobs."""
    with connect_v1(target) as client:
        text = _listed(client, output, filter_=filter_, limit=limit, sort_by=sort_by, uri=uri)
    if text:
        echo(text)


def _listed(client: "V1Client", output: Output, *, filter_: str, limit: int | None, sort_by: str, uri: bool) -> str:
    """List jobs as `JOB_ID STATUS CREATED`, with OWNER where they have several, or in `output`'s format. `limit`
    applies after sorting."""
    jobs = list(client.list_jobs(filter_, None if sort_by else limit, with_results=not uri))
    check_keys("--sort-by", [key.removeprefix("~") for key in _keys(sort_by)], jobs)
    check_keys("--format", [column.key for column in output.columns], jobs)
    if sort_by:
        jobs = sort(jobs, sort_by)[:limit]
    if uri:
        base = f"{client.server.url}/v1/projects/{client.project}/jobs"
        return "\n".join(f"{base}/{job['jobId']}" for job in jobs)
    if not output.for_people:
        return formats.render(output, jobs)
    if not jobs:
        notify("Listed 0 items.")
        return ""
    causes = [_cause(job) for job in jobs]
    owners = [str(job.get("owner", "")) for job in jobs]
    columns = {"JOB_ID": [job["jobId"] for job in jobs], "STATUS": [job["state"] for job in jobs]}
    columns |= {"CREATED": [_created(job) for job in jobs]}
    columns |= {"OWNER": owners} if len(set(owners)) > 1 else {}
    columns |= {"CAUSE": causes} if any(causes) else {}
    return formats.table(list(columns), [list(row) for row in zip(*columns.values(), strict=True)])


def check_keys(flag: str, keys: Iterable[str], jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise a usage error for a key that none of these jobs has, and that no job can have."""
    for key in keys:
        if all(formats.value_at(job, key) is None for job in jobs):
            from trainyard_protocol.job.job_keys import FIRST, is_key  # slow, and rarely needed

            if not is_key(key):
                near = difflib.get_close_matches(key, FIRST, n=1)
                did_you_mean = f" Did you mean {near[0]}?" if near else ""
                raise click.UsageError(
                    f"argument {flag}: jobs have no key {key!r}.{did_you_mean} Keys are {', '.join(sorted(FIRST))}, "
                    "and those inside them, such as trainingInput.workerCount."
                )


def _keys(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _cause(job: Mapping[str, Any]) -> str:
    """The cause of a failed job: the first line of its errorMessage, without the sentence before the cause."""
    if job["state"] != JobState.FAILED:
        return ""
    line = printable(str(job.get("errorMessage", "")).partition("\n")[0])
    cause = _EXITED.sub("", line) or line
    return cause if len(cause) <= _CAUSE_WIDTH else f"{cause[: _CAUSE_WIDTH - 1]}…"


def sort(jobs: Iterable[Mapping[str, Any]], sort_by: str) -> list[Any]:
    """Sort by `KEY,~KEY`: `~` is descending; jobs without the key come last."""
    ordered = list(jobs)
    for key in reversed(_keys(sort_by)):
        name = key.removeprefix("~")
        with_key = [job for job in ordered if formats.value_at(job, name) is not None]
        without = [job for job in ordered if formats.value_at(job, name) is None]
        with_key.sort(key=_sort_key(name), reverse=key.startswith("~"))
        ordered = with_key + without
    return ordered


def _sort_key(key: str) -> Callable[[Mapping[str, Any]], tuple[int, float, str]]:
    """Numbers, also as strings (int64 in JSON), by value and before other text."""

    def value_of(job: Mapping[str, Any]) -> tuple[int, float, str]:
        text = str(formats.value_at(job, key))
        return (0, float(text), "") if re.fullmatch(r"-?\d+(\.\d+)?", text) else (1, 0.0, text)

    return value_of


def _created(job: Mapping[str, Any]) -> str:
    created = job.get("createTime")
    return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%dT%H:%M:%S") if created else ""
