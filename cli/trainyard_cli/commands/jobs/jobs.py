"""Commands on existing jobs: describe, update, metrics, explain."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.jobs.listing import check_keys
from trainyard_cli.commands.jobs.logs import task_name
from trainyard_cli.commands.service.completion import task_names
from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags
from trainyard_cli.commands.shared.options import as_wrong_usage, job_argument, output_options, server_options
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target
from trainyard_cli.submission.flag_types import CommaSeparated, KeyValues
from trainyard_protocol.errors import Aborted

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_FEWEST_POINTS = 10

_LABEL_ATTEMPTS = 5


@click.command()
@job_argument
@click.option("--all", "everything", is_flag=True, help="Show runs, replicas and events, too.")
@click.option("--summarize", is_flag=True, help="Show only the summary, without the job as YAML.")
@gcloud_wide_flags
@server_options
@output_options
def describe(target: Target, output: Output, job: str, everything: bool, summarize: bool) -> None:
    """Show a job."""
    from trainyard_cli.output.jobs import job_texts

    if summarize and not output.for_people:
        raise click.UsageError("argument --summarize: It has a form of its own, without --format.")
    with connect(target) as client:
        detail = client.detail(job)
    lines = job_texts.summary(detail, datetime.now(UTC), client.flags)
    if summarize:
        echo("\n".join([f"{detail.job['jobId']}: {detail.state}", *lines]))
        return
    if everything:
        echo(formats.render(output, detail.model_dump(mode="json", exclude_none=True)))
        return
    check_keys("--format", [column.key for column in output.columns], [detail.job])
    echo(formats.render(output, _without_vertex_job(detail.job) if output.for_people else detail.job))
    if output.for_people:
        notify("\n" + "\n".join(lines))


def _without_vertex_job(job: dict[str, Any]) -> dict[str, Any]:
    """The job without that of Vertex AI that its training input was made from: it says the same again."""
    kept = job["trainingInput"].items()
    training_input = {key: value for key, value in kept if key not in ("customJob", "tuningJob")}
    return {**job, "trainingInput": training_input}


@click.command()
@job_argument
@click.option("--update-labels", type=KeyValues(), multiple=True, help="Set these labels.")
@click.option("--remove-labels", type=CommaSeparated(), multiple=True, metavar="KEY,...", help="Remove these labels.")
@click.option("--clear-labels", is_flag=True, help="Remove all labels, before --update-labels.")
@click.option("--note", default=None, help='Set the note about the job; "" removes it.')
@gcloud_wide_flags
@server_options
@output_options
def update(target: Target, output: Output, job: str, note: str | None, **parameters: Any) -> None:
    """Change a job's labels, or the note about it."""
    changes = {key: value for pairs in parameters["update_labels"] for key, value in pairs.items()}
    remove = [key for words in parameters["remove_labels"] for key in words]
    clear = parameters["clear_labels"]
    if clear and remove:
        raise click.UsageError(
            "argument --clear-labels: At most one of --clear-labels | --remove-labels can be specified."
        )
    has_labels = bool(changes or remove or clear)
    if not has_labels and note is None:
        raise click.UsageError(
            "At least one of --clear-labels | --note | --remove-labels | --update-labels must be specified."
        )
    with connect(target) as client:
        if note is not None:
            client.set_note(job, note)
        if has_labels:
            updated = _update_labels(client, job, update=changes, remove=remove, clear=clear)
        else:
            updated = client.get_job(job)
    if not formats.printed(output, updated):
        echo(f"Updated job [{job}].", err=True)


@click.command()
@job_argument
@click.option("--name", "names", multiple=True, metavar="METRIC", help="Only this metric. May be given several times.")
@click.option("--task", "--task-name", default="", shell_complete=task_names, help="Only of this replica.")
@click.option("--curves", is_flag=True, help="With -o json: also every curve as steps, values and times.")
@click.option(
    "--points", type=click.IntRange(_FEWEST_POINTS, 10_000), default=1000, help="Points of each curve.  [default: 1000]"
)
@server_options
@output_options
def metrics(target: Target, output: Output, job: str, **parameters: Any) -> None:
    """Show the metrics of a job: of each the last value, the best one and the extremes."""
    from trainyard_cli.output.jobs import job_texts

    with as_wrong_usage():
        task = task_name(parameters["task"]) if parameters["task"] else ""
    with connect(target) as client:
        names = parameters["names"]
        view = client.metrics(job, names=names, task=task, points=parameters["points"])
        if not view.results or not {*names} <= {series.name for series in view.results}:
            for message in job_texts.missing_metrics(client.metrics(job, points=_FEWEST_POINTS), names, task):
                notify(message)
    rows = job_texts.metrics_rows(view, curves=parameters["curves"])
    if not formats.printed(output, rows) and rows:
        echo(job_texts.metrics_text(rows))


@click.command()
@job_argument
@click.argument("replica", default="master-replica-0", shell_complete=task_names)
@click.option("--run", type=click.IntRange(1), help="Number of the run.  [default: the latest]")
@server_options
@output_options
def explain(target: Target, output: Output, job: str, replica: str, run: int | None) -> None:
    """Show a replica's environment and the command to run it by hand."""
    from trainyard_cli.output.jobs import job_texts

    with as_wrong_usage():
        task = task_name(replica)
    with connect(target) as client:
        explanation = client.explain(job, task, run)
        if client.server.local:
            explanation = job_texts.with_storage(explanation, LocalState(target.state_dir).storage_url())
    if not formats.printed(output, explanation):
        echo(job_texts.explanation_text(explanation))


def _update_labels(
    client: "Client", job: str, *, update: Mapping[str, str], remove: Sequence[str], clear: bool
) -> dict[str, Any]:
    """Change some labels and keep the others, with retries if they are changed concurrently."""
    for _ in range(_LABEL_ATTEMPTS):
        current = client.get_job(job)
        labels = {} if clear else dict(current.get("labels", {}))
        labels = {key: value for key, value in labels.items() if key not in remove} | dict(update)
        if labels == current.get("labels", {}):
            return current
        try:
            return client.patch_labels(job, labels, current.get("etag", ""))
        except Aborted:
            continue
    raise Aborted(f"The labels of {job} were changed at the same time, {_LABEL_ATTEMPTS} times. Try again.")
