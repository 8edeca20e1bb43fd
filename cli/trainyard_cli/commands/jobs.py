"""The verbs on jobs that exist: describe, list, update labels, explain; and what `validate` shows.

Each returns text for stdout; what only people want goes through `say`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainyard_cli.client import Client, LogQuery
from trainyard_cli.output import formats
from trainyard_cli.output import progress as steps
from trainyard_cli.output.formats import Output
from trainyard_cli.output.log_screen import elapsed, moment
from trainyard_protocol.cluster import TASK_TYPES
from trainyard_protocol.errors import Aborted, InvalidArgument, Violation
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.health import sized
from trainyard_protocol.machines import GIGABYTE, Catalog, gang, replicas_of
from trainyard_protocol.moments import moment_of
from trainyard_protocol.states import JobState, ReplicaState
from trainyard_protocol.training_input import TrainingInput
from trainyard_protocol.views import SEVERITIES, Explanation, JobDetail, ReplicaView, RunView

Say = Callable[[str], None]

_LABEL_ATTEMPTS = 5
_COUNTS = ("worker_count", "parameter_server_count", "evaluator_count")


def describe(client: Client, job: str, output: Output, say: Say, *, everything: bool) -> str:
    """The v1 job; with `everything` also its runs, replicas, events and verdict."""
    detail = client.detail(job)
    if everything:
        return formats.render(output, detail.model_dump(mode="json", exclude_none=True))
    if output.for_people:
        say("\n" + "\n".join(summary(detail, datetime.now(UTC))))
    return formats.render(output, detail.job)


def summary(detail: JobDetail, now: datetime) -> list[str]:
    """A few lines for a person: what it waits for, what runs where, and why it ended. Pure."""
    lines = [f"Owner: {detail.owner}"] if detail.owner else []
    if detail.waiting:
        lines.append(f"Waiting: {detail.waiting}")
    if detail.runs:
        lines += _run_lines(detail.runs[-1], len(detail.runs), now)
        lines += steps.lines(detail, now)
    if detail.verdict and detail.state is JobState.FAILED and detail.verdict.replica:
        lines.append(f"{detail.verdict.replica} failed first ({detail.verdict.reason}).")
    job_id = detail.job.get("jobId")
    return [*lines, f"Its log:  jobs stream-logs {job_id}"]


def _run_lines(run: RunView, count: int, now: datetime) -> list[str]:
    ended = run.ended_at or now
    number = f"Run {run.number} of {count}" if count > 1 else "Run 1"
    took = elapsed(run.created_at.isoformat(), ended)
    headline = f"{number} on {run.agent}: {run.state}, {took}" + (f", {run.activity}" if run.activity else "")
    rows = []
    for replica in run.replicas:
        over = replica.state is ReplicaState.EXITED
        code = "" if replica.exit_code is None else str(replica.exit_code)
        rows.append(
            [
                f"  {replica.task}",
                str(replica.state),
                f"{replica.reason or ''} {code}".strip() if over else "",
                replica.machine_type,
                f"CPU {','.join(map(str, replica.cpus))}" if replica.cpus else "",
                _used(replica),
                f"{replica.log_lines} lines"
                + (", cut by the log quota" if replica.log_kept is not None else ""),
            ]
        )
    return [headline, formats.table([], rows)] if rows else [headline]


def _used(replica: ReplicaView) -> str:
    """What a replica that runs uses, of what it was given."""
    if replica.memory_used_bytes is None:
        return ""
    of_cpus = f" of {len(replica.cpus)}" if replica.cpus else ""
    of_memory = f" of {sized(replica.memory_bytes)}" if replica.memory_bytes else ""
    cpu = "" if replica.cpu_used is None else f"{replica.cpu_used:.1f}{of_cpus} cores, "
    busy = [gpu.utilization for gpu in replica.gpus_used if gpu.utilization is not None]
    gpus = f", GPU {' '.join(f'{share:.0%}' for share in busy)}" if busy else ""
    return f"{cpu}{sized(replica.memory_used_bytes)}{of_memory}{gpus}"


def list_jobs(
    client: Client, output: Output, say: Say, *, filter_: str, limit: int | None, sort_by: str, uri: bool
) -> str:
    """`JOB_ID STATUS CREATED`, or what `output` wants. Sorting looks at all jobs, then `limit` applies."""
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
        say("Listed 0 items.")
        return ""
    rows = [[job["jobId"], job["state"], _created(job)] for job in jobs]
    return formats.table(["JOB_ID", "STATUS", "CREATED"], rows)


def sort(jobs: Iterable[Mapping[str, Any]], sort_by: str) -> list[Any]:
    """Sort by `KEY,~KEY`: `~` is descending; a job without the key comes last either way."""
    ordered = list(jobs)
    for key in reversed([part.strip() for part in sort_by.split(",") if part.strip()]):
        name = key.removeprefix("~")
        with_key = [job for job in ordered if formats.value_at(job, name) is not None]
        without = [job for job in ordered if formats.value_at(job, name) is None]
        with_key.sort(key=_by(name), reverse=key.startswith("~"))
        ordered = with_key + without
    return ordered


def _by(key: str) -> Callable[[Mapping[str, Any]], tuple[int, float, str]]:
    """Numbers (and int64s, which are strings in JSON) by their value, before all other text."""

    def sort_key(job: Mapping[str, Any]) -> tuple[int, float, str]:
        text = str(formats.value_at(job, key))
        return (0, float(text), "") if re.fullmatch(r"-?\d+(\.\d+)?", text) else (1, 0.0, text)

    return sort_key


def update_labels(
    client: Client, job: str, *, update: Mapping[str, str], remove: Sequence[str], clear: bool
) -> dict[str, Any]:
    """Change some labels and keep the others, also while somebody else changes them."""
    for _ in range(_LABEL_ATTEMPTS):
        found = client.get_job(job)
        labels = {} if clear else dict(found.get("labels", {}))
        labels = {key: value for key, value in labels.items() if key not in remove} | dict(update)
        if labels == found.get("labels", {}):
            return found
        try:
            return client.patch_labels(job, labels, found.get("etag", ""))
        except Aborted:
            continue
    raise Aborted(f"The labels of {job} are being changed by somebody else all the time; try again.")


def explanation_text(explanation: Explanation) -> str:
    """What one replica sees, to be read and to be pasted."""
    variables = [f"{name}={value}" for name, value in explanation.environment.items()]
    lines = [f"# {explanation.task}, run {explanation.run}", "", "# Environment", *variables, ""]
    packages = [uri.rpartition("/")[2] for uri in explanation.packages]
    needs = f", in a Python that has {', '.join(packages)} installed" if packages else ""
    return "\n".join([*lines, f"# The same by hand{needs}", explanation.reproduce])


def gang_of(training_input: TrainingInput, catalog: Catalog) -> list[dict[str, Any]]:
    """The replicas that a training input asks for, one entry for each group of equal ones.

    Empty when a machine type is in another server's catalogue alone.
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
    """The gang as a table, and what it needs all in all."""
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
    total = f"{replicas} replica{'s' if replicas > 1 else ''}, {vcpus} vCPUs, {memory:g} GB in all"
    return f"{formats.table(['TASK', 'COUNT', 'MACHINE_TYPE', 'VCPUS', 'MEMORY', 'ACCELERATORS'], rows)}\n{total}"


def log_query(task: str, severity: str, since: str, search: str) -> LogQuery:
    """What stream-logs asks for. A time that counts from now is fixed here, so that it stays the same over
    reconnections. Raises InvalidArgument with everything that is wrong."""
    wrong = []
    if severity and severity.upper() not in SEVERITIES:
        wrong.append(
            Violation("", f"--severity must be one of {', '.join(SEVERITIES)}; this is {severity!r}.")
        )
    moment = ""
    try:
        moment = rfc3339(moment_of(since, datetime.now(UTC))) if since else ""
    except ValueError as error:
        wrong.append(Violation("", f"--since {error}."))
    if wrong:
        raise InvalidArgument(wrong)
    return LogQuery(task_name(task) if task else "", severity.upper(), moment, search)


def task_name(replica: str) -> str:
    """`worker-replica-0`, also from `worker 0`, `worker-0` or `chief`. Raises InvalidArgument."""
    match = re.fullmatch(r"(chief|master|worker|ps|evaluator)(?:-replica)?(?:[- ](\d+))?", replica.strip())
    if match is None:
        raise InvalidArgument(f"{replica!r} is no replica; a replica looks like worker-replica-0.")
    kind = "master" if match[1] == "chief" else match[1]
    return f"{kind}-replica-{match[2] or 0}"


def _created(job: Mapping[str, Any]) -> str:
    created = job.get("createTime")
    return moment(created).astimezone().strftime("%Y-%m-%dT%H:%M:%S") if created else ""
