"""`jobs list`. It loads no models: see `v1_client`."""

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags, list_flags
from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.local.connect import connect_v1, notify
from trainyard_cli.output.jobs import formats, job_table
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.bottom_line import is_live
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target
from trainyard_protocol.errors import nearest

if TYPE_CHECKING:
    from trainyard_cli.v1_client import V1Client


@click.command()
@click.option("--filter", "filter_", default="", help="Filter, such as: jobId:census* AND state:FAILED")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of jobs.")
@click.option("--sort-by", default="", metavar="KEY,~KEY", help="Sort by these keys; ~ means descending.")
@click.option("--uri", is_flag=True, help="Print only the jobs' URIs.")
@click.option("--wide", is_flag=True, help="Also owner, duration, main metric and labels, each value whole.")
@click.option("--watch", is_flag=True, help="On a terminal: active jobs, then the newest ones, live; q quits.")
@list_flags
@gcloud_wide_flags
@server_options
@output_options
def list_jobs(
    target: Target, output: Output, filter_: str, limit: int | None, sort_by: str, uri: bool, wide: bool, watch: bool
) -> None:
    """List jobs, the newest first.

    On a terminal the table is as wide as that, and shows what active jobs do. In a pipe each value is whole.
    """
    if watch:
        if sort_by or uri or wide or not output.for_people:
            raise click.UsageError("argument --watch: It goes with --filter and --limit alone.")
        from trainyard_cli.commands.jobs.watching import watch_jobs

        watch_jobs(target, filter_, limit)
        return
    with connect_v1(target) as client:
        jobs = _jobs(client, filter_, limit, sort_by, with_results=not uri)
        if not jobs:
            _report_none("" if filter_ else client.other_projects(), output)
        check_keys("--format", [column.key for column in output.columns], jobs)
        is_fitted = not uri and output.for_people and not wide and is_live(sys.stdout)
        if uri:
            base = f"{client.server.url}/v1/projects/{client.project}/jobs"
            text = "\n".join(f"{base}/{job['jobId']}" for job in jobs)
        elif not output.for_people:
            text = formats.render(output, jobs)
        elif is_fitted and jobs:
            columns = shutil.get_terminal_size().columns
            text = job_table.fitted(jobs, job_table.activities(client, jobs), columns, datetime.now(UTC))
        else:
            text = job_table.plain(jobs, wide=wide) if jobs else ""
    if text:
        echo(text, colours=is_fitted)


def _jobs(
    client: "V1Client", filter_: str, limit: int | None, sort_by: str, *, with_results: bool
) -> list[dict[str, Any]]:
    """The jobs, of which `limit` applies after sorting."""
    jobs = list(client.list_jobs(filter_, None if sort_by else limit, with_results=with_results))
    check_keys("--sort-by", [key.removeprefix("~") for key in _keys(sort_by)], jobs)
    return sort(jobs, sort_by)[:limit] if sort_by else jobs


def _report_none(other_projects: str, output: Output) -> None:
    if other_projects or output.for_people:
        notify(other_projects or "Listed 0 items.")


def check_keys(flag: str, keys: Iterable[str], jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise a usage error for a key that none of these jobs has, and that no job can have."""
    for key in keys:
        if all(formats.value_at(job, key) is None for job in jobs):
            from trainyard_protocol.job.job_keys import FIRST, is_key

            if not is_key(key):
                near = nearest(key, FIRST)
                did_you_mean = f" Did you mean {near}?" if near else ""
                raise click.UsageError(
                    f"argument {flag}: jobs have no key {key!r}.{did_you_mean} Keys are {', '.join(sorted(FIRST))}, "
                    "and those inside them, such as trainingInput.workerCount."
                )


def _keys(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


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
