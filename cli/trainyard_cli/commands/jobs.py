"""Commands on existing jobs: describe, list, update labels, explain; and the output of `validate`.

Each returns text for stdout; `notify` prints to stderr.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainyard_cli.client import Client, LogQuery
from trainyard_cli.local.connect import notify
from trainyard_cli.output import formats, progress
from trainyard_cli.output.formats import Output
from trainyard_cli.output.log_screen import elapsed, parse_rfc3339, without_control
from trainyard_protocol.cluster import TASK_TYPES
from trainyard_protocol.config.fields import rfc3339
from trainyard_protocol.errors import Aborted, InvalidArgument, Violation
from trainyard_protocol.gcs import EMULATOR, HIDDEN
from trainyard_protocol.health import sized
from trainyard_protocol.machines import GIGABYTE, Catalog, gang, replicas_of
from trainyard_protocol.severity import SEVERITIES
from trainyard_protocol.states import JobState, ReplicaState
from trainyard_protocol.time_parsing import parse_time
from trainyard_protocol.training_input import TrainingInput
from trainyard_protocol.views import (
    Explanation,
    JobDetail,
    MetricsView,
    ReplicaView,
    RunView,
    describe_runtime,
    number,
)

_LABEL_ATTEMPTS = 5
_EXITED = re.compile(
    r"The replica \w+ \d+ (?:exited with a non-zero status of \d+|was killed by signal \d+(?: \(\w+\))?)\. ?"
)
_CAUSE_WIDTH = 100
_COUNTS = ("worker_count", "parameter_server_count", "evaluator_count")


def describe(client: Client, job: str, output: Output, *, everything: bool) -> str:
    """Describe the v1 job; with `everything` also runs, replicas, events and verdict."""
    detail = client.detail(job)
    if everything:
        return formats.render(output, detail.model_dump(mode="json", exclude_none=True))
    if output.for_people:
        notify("\n" + "\n".join(summary(detail, datetime.now(UTC))))
    return formats.render(output, detail.job)


def summary(detail: JobDetail, now: datetime) -> list[str]:
    """Lines for a person: what the job waits for, what runs where, why it ended. Pure."""
    lines = [f"Owner: {detail.owner}"] if detail.owner else []
    if detail.job_dir:
        lines.append(f"Job dir: {detail.job_dir}")
    if detail.waiting:
        lines.append(f"Waiting: {detail.waiting}")
    if detail.runs:
        lines += _run_lines(detail.runs[-1], len(detail.runs), now)
        lines += progress.lines(detail, now)
    if detail.verdict and detail.state is JobState.FAILED and detail.verdict.replica:
        lines.append(f"{detail.verdict.replica} failed first ({detail.verdict.reason}).")
        lines += [detail.verdict.cause] if detail.verdict.cause else []
    job_id = detail.job.get("jobId")
    return [*lines, f"To see its log:  jobs stream-logs {job_id}"]


def _run_lines(run: RunView, count: int, now: datetime) -> list[str]:
    ended = run.ended_at or now
    number = f"Run {run.number} of {count}" if count > 1 else "Run 1"
    took = elapsed(run.created_at.isoformat(), ended)
    headline = f"{number} on {run.agent}: {run.state}, {took}" + (f", {run.activity}" if run.activity else "")
    place = describe_runtime(run.runtime, run.runtime_reason)
    rows = []
    for replica in run.replicas:
        exited = replica.state is ReplicaState.EXITED
        code = "" if replica.exit_code is None else str(replica.exit_code)
        rows.append(
            [
                f"  {replica.task}",
                str(replica.state),
                f"{replica.reason or ''} {code}".strip() if exited else "",
                replica.machine_type,
                f"CPU {','.join(map(str, replica.cpus))}" if replica.cpus else "",
                _used(replica),
                formats.count(replica.log_lines, "line")
                + (", cut by the log quota" if replica.log_kept is not None else ""),
            ]
        )
    lines = [headline, *([f"{place[0].upper()}{place[1:]}."] if place else [])]
    return [*lines, formats.table([], rows)] if rows else lines


def _used(replica: ReplicaView) -> str:
    """CPU, memory and GPU use of a running replica, with what it was given."""
    if replica.memory_used_bytes is None:
        return ""
    of_cpus = f" of {len(replica.cpus)}" if replica.cpus else ""
    of_memory = f" of {sized(replica.memory_bytes)}" if replica.memory_bytes else ""
    cpu = "" if replica.cpu_used is None else f"{replica.cpu_used:.1f}{of_cpus} cores, "
    busy = [gpu.utilization for gpu in replica.gpus_used if gpu.utilization is not None]
    gpus = f", GPU {' '.join(f'{share:.0%}' for share in busy)}" if busy else ""
    return f"{cpu}{sized(replica.memory_used_bytes)}{of_memory}{gpus}"


def list_jobs(
    client: Client,
    output: Output,
    *,
    filter_: str,
    limit: int | None,
    sort_by: str,
    uri: bool,
) -> str:
    """List jobs as `JOB_ID STATUS CREATED` or in `output`'s format. `limit` applies after sorting."""
    jobs: Iterable[dict[str, Any]] = client.list_jobs(filter_, None if sort_by else limit)
    if sort_by:
        jobs = sort(jobs, sort_by)[:limit]
    jobs = list(jobs)
    if uri:
        base = f"{client.server.url}/v1/projects/{client.project}/jobs"
        return "\n".join(f"{base}/{job['jobId']}" for job in jobs)
    if not output.for_people:
        return formats.render(output, jobs)
    if not jobs:
        notify("Listed 0 items.")
        return ""
    causes = [_cause(job) for job in jobs]
    headers = ["JOB_ID", "STATUS", "CREATED", *(["CAUSE"] if any(causes) else [])]
    rows = [
        [job["jobId"], job["state"], _created(job), cause] for job, cause in zip(jobs, causes, strict=True)
    ]
    return formats.table(headers, [row[: len(headers)] for row in rows])


def _cause(job: Mapping[str, Any]) -> str:
    """The cause of a failed job: the first line of its errorMessage, without the sentence before the cause."""
    if job["state"] != JobState.FAILED:
        return ""
    line = without_control(str(job.get("errorMessage", "")).partition("\n")[0])
    cause = _EXITED.sub("", line) or line
    return cause if len(cause) <= _CAUSE_WIDTH else f"{cause[: _CAUSE_WIDTH - 1]}…"


def sort(jobs: Iterable[Mapping[str, Any]], sort_by: str) -> list[Any]:
    """Sort by `KEY,~KEY`: `~` is descending; jobs without the key come last."""
    ordered = list(jobs)
    for key in reversed([part.strip() for part in sort_by.split(",") if part.strip()]):
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


def update_labels(
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
    """With the secret of the local service's gs://, which the server does not know. Pure."""
    shown = explanation.environment.get(EMULATOR, "")
    if not shown.endswith(f"/{HIDDEN}"):
        return explanation
    address = shown.removesuffix(HIDDEN) + storage_url.rpartition("/")[2]
    return explanation.model_copy(
        update={
            "environment": {**explanation.environment, EMULATOR: address},
            "reproduce": explanation.reproduce.replace(shown, address),
        }
    )


def explanation_text(explanation: Explanation) -> str:
    """Environment and command of one replica, to be read and pasted."""
    variables = [f"{name}={value}" for name, value in explanation.environment.items()]
    place = describe_runtime(explanation.runtime, explanation.runtime_reason)
    title = f"# {explanation.task}, run {explanation.run}" + (f", {place}" if place else "")
    lines = [title, "", "# Environment", *variables, ""]
    packages = [uri.rpartition("/")[2] for uri in explanation.packages]
    needs = f" (needs {', '.join(packages)} installed)" if packages else ""
    return "\n".join([*lines, f"# Command to run it by hand{needs}", explanation.reproduce])


def metrics_rows(view: MetricsView, *, curves: bool) -> list[dict[str, Any]]:
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


def metrics_text(rows: Sequence[Mapping[str, Any]]) -> str:
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


def gang_of(training_input: TrainingInput, catalog: Catalog) -> list[dict[str, Any]]:
    """The replicas of a training input, one entry per task type.

    Empty if a machine type is only in another server's catalog.
    """
    names = {replicas_of(training_input, task_type, catalog)[0] for task_type in TASK_TYPES} - {""}
    if not names <= catalog.machine_types.keys():
        return []
    counts = {name: min(getattr(training_input, name), 1) for name in _COUNTS}
    one_of_each = training_input.model_copy(update=counts)
    return [
        {
            "taskType": request.task.type,
            "count": replicas_of(training_input, request.task.type, catalog)[1],
            "machineType": request.machine_type,
            "vcpus": request.resources.vcpus,
            "memoryGb": request.resources.memory_bytes / GIGABYTE,
            "acceleratorType": request.resources.accelerator_type,
            "acceleratorCount": request.resources.accelerator_count,
        }
        for request in gang(one_of_each, catalog)
        if request.task.index == 0
    ]


def gang_text(groups: Sequence[Mapping[str, Any]]) -> str:
    """The gang as a table, with totals."""
    rows = [
        [
            str(group["taskType"]),
            str(group["count"]),
            str(group["machineType"]),
            str(group["vcpus"]),
            f"{group['memoryGb']:g} GB",
            f"{group['acceleratorCount']} x {group['acceleratorType']}" if group["acceleratorCount"] else "-",
        ]
        for group in groups
    ]
    vcpus = sum(group["count"] * group["vcpus"] for group in groups)
    memory = sum(group["count"] * group["memoryGb"] for group in groups)
    replicas = sum(group["count"] for group in groups)
    total = f"{formats.count(replicas, 'replica')}, {formats.count(vcpus, 'vCPU')}, {memory:g} GB in total"
    return f"{formats.table(['TASK', 'COUNT', 'MACHINE_TYPE', 'VCPUS', 'MEMORY', 'ACCELERATORS'], rows)}\n{total}"


def log_query(task: str, severity: str, since: str, search: str) -> LogQuery:
    """Build the filter of stream-logs. Relative times are resolved once, so that reconnections do not move them.

    Raises InvalidArgument with every violation."""
    violations = []
    if severity and severity.upper() not in SEVERITIES:
        violations.append(
            Violation("", f"--severity must be one of {', '.join(SEVERITIES)}, not {severity!r}.")
        )
    start = ""
    try:
        start = rfc3339(parse_time(since, datetime.now(UTC))) if since else ""
    except ValueError as error:
        violations.append(Violation("", f"--since {error}."))
    if violations:
        raise InvalidArgument(violations)
    return LogQuery(task_name(task) if task else "", severity.upper(), start, search)


def task_name(replica: str) -> str:
    """`worker-replica-0`, also from `worker 0`, `worker-0` or `chief`. Raises InvalidArgument."""
    match = re.fullmatch(r"(chief|master|worker|ps|evaluator)(?:-replica)?(?:[- ](\d+))?", replica.strip())
    if match is None:
        raise InvalidArgument(f"{replica!r} is not a replica name such as worker-replica-0.")
    kind = "master" if match[1] == "chief" else match[1]
    return f"{kind}-replica-{match[2] or 0}"


def _created(job: Mapping[str, Any]) -> str:
    created = job.get("createTime")
    return parse_rfc3339(created).astimezone().strftime("%Y-%m-%dT%H:%M:%S") if created else ""
