"""Commands on existing jobs: describe, update, metrics, why, explain, tensorboard."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import click

from trainyard_cli.client import Client
from trainyard_cli.commands.jobs.listing import check_keys
from trainyard_cli.commands.jobs.logs import task_name
from trainyard_cli.commands.service.completion import task_names
from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags
from trainyard_cli.commands.shared.options import (
    as_wrong_usage,
    connected,
    job_argument,
    output_options,
    server_options,
)
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.local.state import LocalState
from trainyard_cli.output.jobs import formats, queue_explanation, study_status
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.log import progress
from trainyard_cli.output.log.log_screen import elapsed, without_control
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target
from trainyard_cli.submission.flags import CommaSeparated, KeyValues
from trainyard_protocol.errors import Aborted
from trainyard_protocol.net.gcs import EMULATOR, HIDDEN
from trainyard_protocol.states import JobState, ReplicaState
from trainyard_protocol.views.health import sized
from trainyard_protocol.views.views import (
    Explanation,
    JobDetail,
    MetricsView,
    ReplicaView,
    RunView,
    describe_runtime,
    number,
)

_FEWEST_POINTS = 10

_LABEL_ATTEMPTS = 5


@click.command()
@job_argument
@click.option("--all", "everything", is_flag=True, help="Show runs, replicas and events, too.")
@click.option("--summarize", is_flag=True, help="Show the summary alone, without the job as YAML.")
@gcloud_wide_flags
@server_options
@output_options
def describe(target: Target, output: Output, job: str, everything: bool, summarize: bool) -> None:
    """Show a job."""
    if summarize and not output.for_people:
        raise click.UsageError("argument --summarize: It has a form of its own, without --format.")
    with connect(target) as client:
        detail = client.detail(job)
    lines = summary(detail, datetime.now(UTC), client.flags)
    if summarize:
        echo("\n".join([f"{detail.job['jobId']}: {detail.state}", *lines]))
        return
    if everything:
        echo(formats.render(output, detail.model_dump(mode="json", exclude_none=True)))
        return
    check_keys("--format", [column.key for column in output.columns], [detail.job])
    if output.for_people:
        notify("\n" + "\n".join(lines))
    echo(formats.render(output, detail.job))


@click.command()
@job_argument
@click.option("--update-labels", type=KeyValues(), multiple=True, help="Set these labels.")
@click.option(
    "--remove-labels", type=CommaSeparated(), multiple=True, metavar="KEY,...", help="Remove these labels."
)
@click.option("--clear-labels", is_flag=True, help="Remove all labels, before --update-labels.")
@gcloud_wide_flags
@server_options
@output_options
def update(target: Target, output: Output, job: str, **parameters: Any) -> None:
    """Change a job's labels."""
    changes = {key: value for pairs in parameters["update_labels"] for key, value in pairs.items()}
    remove = [key for words in parameters["remove_labels"] for key in words]
    clear = parameters["clear_labels"]
    if clear and remove:
        raise click.UsageError(
            "argument --clear-labels: At most one of --clear-labels | --remove-labels can be specified."
        )
    if not (changes or remove or clear):
        raise click.UsageError(
            "At least one of --clear-labels | --remove-labels | --update-labels must be specified."
        )
    with connect(target) as client:
        updated = _update_labels(client, job, update=changes, remove=remove, clear=clear)
    if not formats.printed(output, updated):
        echo(f"Updated job [{job}].", err=True)


@click.command()
@job_argument
@click.option(
    "--name", "names", multiple=True, metavar="METRIC", help="Only this metric. May be given several times."
)
@click.option("--task", "--task-name", default="", shell_complete=task_names, help="Only of this replica.")
@click.option("--curves", is_flag=True, help="With -o json: also every curve as steps, values and times.")
@click.option(
    "--points",
    type=click.IntRange(_FEWEST_POINTS, 10_000),
    default=1000,
    help="Points of each curve.  [default: 1000]",
)
@server_options
@output_options
def metrics(target: Target, output: Output, job: str, **parameters: Any) -> None:
    """Show the metrics of a job: the last value of each, its minimum and its maximum."""
    with as_wrong_usage():
        task = task_name(parameters["task"]) if parameters["task"] else ""
    with connect(target) as client:
        view = client.metrics(job, names=parameters["names"], task=task, points=parameters["points"])
        if output.for_people and not view.metrics:
            notify(_no_metrics(client.metrics(job, points=_FEWEST_POINTS)))
    rows = _metrics_rows(view, curves=parameters["curves"])
    if not formats.printed(output, rows) and rows:
        echo(_metrics_text(rows))


@click.command()
@job_argument
@connected
@output_options
def why(client: Client, output: Output, job: str) -> None:
    """Show why a job is queued and what would start it.

    Lists the jobs that hold what it needs, and the smallest changes that would start it now.
    """
    view = client.why(job)
    if not formats.printed(output, view.model_dump(mode="json", exclude_none=True)):
        echo(queue_explanation.text(view, client.project, datetime.now(UTC)))


@click.command()
@job_argument
@click.argument("replica", default="master-replica-0", shell_complete=task_names)
@click.option("--run", type=click.IntRange(1), help="Number of the run.  [default: the latest]")
@server_options
@output_options
def explain(target: Target, output: Output, job: str, replica: str, run: int | None) -> None:
    """Show a replica's environment and the command to run it by hand."""
    with as_wrong_usage():
        task = task_name(replica)
    with connect(target) as client:
        explanation = client.explain(job, task, run)
        if client.server.local:
            explanation = with_storage(explanation, LocalState(target.state_dir).storage_url())
    if not formats.printed(output, explanation):
        echo(_explanation_text(explanation))


@click.command()
@job_argument
@click.option(
    "--host", default="127.0.0.1", help="Address that TensorBoard listens on.  [default: 127.0.0.1]"
)
@click.option(
    "--port", type=click.IntRange(1, 2**16 - 1), help="[default: the first free port from 6006 upwards]"
)
@server_options
def tensorboard(target: Target, job: str, host: str, port: int | None) -> int:
    """Run TensorBoard on this machine for a job, until Ctrl-C.

    Shows the event files in the job's jobDir, while the job runs and after it.
    """
    from trainyard_cli.tensorboard import server as curves

    with connect(target) as client:
        detail = client.detail(job)
        emulator = LocalState(target.state_dir).storage_url() if client.server.local else ""
    return curves.show(detail, emulator, host=host, port=port)


def summary(detail: JobDetail, now: datetime, flags: str = "") -> list[str]:
    """Lines for a person: what the job waits for, what runs where, why it ended. `flags` select its server and
    project. Pure."""
    lines = [_trial_line(detail)] if detail.study else []
    lines += [f"Owner: {detail.owner}"] if detail.owner else []
    if detail.job_dir:
        lines.append(f"Job dir: {detail.job_dir}")
    if detail.waiting:
        lines.append(f"Waiting: {detail.waiting}")
    if detail.runs:
        lines += _run_lines(detail.runs[-1], len(detail.runs), now)
        lines += progress.lines(detail, now)
    lines += _reason(detail)
    job_id = detail.job.get("jobId")
    if study := study_status.summary(detail.job):
        lines += [
            *study,
            *study_status.next_step(detail.job, flags),
            f"To see its trials:  jobs trials {job_id}{flags}",
        ]
    return [*lines, f"To see its log:  jobs stream-logs {job_id}{flags}"]


def _reason(detail: JobDetail) -> list[str]:
    """Cause of an end without success, in a line or two."""
    if detail.state not in (JobState.FAILED, JobState.CANCELLED):
        return []
    verdict = detail.verdict
    if verdict is None or not verdict.replica or detail.state is JobState.CANCELLED:
        return str(detail.job.get("errorMessage", "")).splitlines()[:1]
    failed_first = f"{verdict.replica} failed first ({verdict.reason})."
    return [failed_first, verdict.cause or verdict.message.partition("\n")[0]]


def _trial_line(detail: JobDetail) -> str:
    metric = detail.trial_metric
    reported = f": {metric.name} {metric.value:.6g} at step {metric.step}" if metric else ""
    return without_control(f"Trial {detail.trial} of {detail.study}{reported}.")


def _run_lines(run: RunView, count: int, now: datetime) -> list[str]:
    ended = run.ended_at or now
    number = f"Run {run.number} of {count}" if count > 1 else "Run 1"
    took = elapsed(run.created_at.isoformat(), ended)
    headline = f"{number} on {run.agent}: {run.state}, {took}" + (f", {run.activity}" if run.activity else "")
    place = describe_runtime(run.runtime, run.runtime_reason)
    rows = []
    for life, replica in run.lives:
        exited = replica.state is ReplicaState.EXITED
        code = "" if replica.exit_code is None else str(replica.exit_code)
        rows.append(
            [
                f"  {replica.task}" + (f" (again, run {life})" if life != run.number else ""),
                str(replica.state),
                f"{replica.reason or ''} {code}".strip() if exited else "",
                replica.machine_type,
                _cpus(replica),
                _used(replica),
                formats.count(replica.log_lines, "line")
                + (", cut by the log quota" if replica.log_kept is not None else ""),
            ]
        )
    lines = [headline, *([f"{place[0].upper()}{place[1:]}."] if place else [])]
    waits = [f"  {replica.task} waits: {replica.waits}" for _, replica in run.lives if replica.waits]
    return [*lines, formats.table([], rows), *waits] if rows else lines


def _cpus(replica: ReplicaView) -> str:
    """CPU numbers on a machine, else the number of vCPU and devices in an engine."""
    if replica.cpus:
        return f"CPU {','.join(map(str, replica.cpus))}"
    devices = f", {replica.devices}" if replica.devices else ""
    return f"{replica.vcpus} vCPU{devices}" if replica.vcpus else ""


def _used(replica: ReplicaView) -> str:
    """CPU, memory and GPU use of a running replica, with what it was given."""
    if replica.memory_used_bytes is None:
        return ""
    of_cpus = f" of {replica.cores}" if replica.cores else ""
    of_memory = f" of {sized(replica.memory_bytes)}" if replica.memory_bytes else ""
    cpu = "" if replica.cpu_used is None else f"{replica.cpu_used:.1f}{of_cpus} cores, "
    busy = [gpu.utilization for gpu in replica.gpus_used if gpu.utilization is not None]
    gpus = f", GPU {' '.join(f'{share:.0%}' for share in busy)}" if busy else ""
    return f"{cpu}{sized(replica.memory_used_bytes)}{of_memory}{gpus}"


def _update_labels(
    client: Client, job: str, *, update: Mapping[str, str], remove: Sequence[str], clear: bool
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


def with_storage(explanation: Explanation, storage_url: str) -> Explanation:
    """The environment with the secret of the local service's gs://, which the server does not know. Pure."""
    shown = explanation.environment.get(EMULATOR, "")
    port = urlsplit(storage_url).port
    if not shown.endswith(f"/{HIDDEN}") or urlsplit(shown).port != port:
        return explanation
    address = shown.removesuffix(HIDDEN) + storage_url.rpartition("/")[2]
    return explanation.model_copy(
        update={
            "environment": {**explanation.environment, EMULATOR: address},
            "reproduce": explanation.reproduce.replace(shown, address),
        }
    )


def _explanation_text(explanation: Explanation) -> str:
    """Environment and command of one replica, to be read and pasted."""
    variables = [f"{name}={value}" for name, value in explanation.environment.items()]
    place = describe_runtime(explanation.runtime, explanation.runtime_reason)
    title = f"# {explanation.task}, run {explanation.run}" + (f", {place}" if place else "")
    lines = [title, "", "# Environment", *variables, ""]
    packages = [uri.rpartition("/")[2] for uri in explanation.packages]
    needs = f" (needs {', '.join(packages)} installed)" if packages else ""
    return "\n".join([*lines, f"# Command to run it by hand{needs}", explanation.reproduce])


def _metrics_rows(view: MetricsView, *, curves: bool) -> list[dict[str, Any]]:
    """One row for each metric, replica and run: its last value and its extremes; with `curves` also its points. Pure.

    Values that are no numbers of JSON are strings, as in the API. NaN is no extreme.
    """
    rows = []
    for series in view.metrics:
        known = [value for value in series.values if not math.isnan(value)]
        row: dict[str, Any] = {
            "name": series.name,
            "task": series.task,
            "run": series.run,
            "step": series.steps[-1],
            "value": number(series.values[-1]),
            "min": number(min(known, default=math.nan)),
            "max": number(max(known, default=math.nan)),
            "points": series.total,
        }
        if curves:
            row["steps"] = list(series.steps)
            row["values"] = list(map(number, series.values))
            row["times"] = list(series.times)
        rows.append(row)
    return rows


def _no_metrics(every: MetricsView) -> str:
    """The message where no metric is as requested: those that the job has. Pure."""
    if not every.metrics:
        return "The job has reported no metrics. One is a line of its output such as `step: 100, loss: 0.31`."
    names = dict.fromkeys(series.name for series in every.metrics)
    tasks = dict.fromkeys(series.task for series in every.metrics)
    return f"The job has no such metrics. It has {formats.shortened(names)} of {formats.shortened(tasks)}."


def _metrics_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table."""
    shown = [
        [
            without_control(row["name"]),
            row["task"],
            str(row["run"]),
            str(row["step"]),
            *(
                value if isinstance(value, str) else f"{value:.6g}"
                for value in (row["value"], row["min"], row["max"])
            ),
        ]
        for row in rows
    ]
    return formats.table(["METRIC", "REPLICA", "RUN", "STEP", "LAST", "MIN", "MAX"], shown)
