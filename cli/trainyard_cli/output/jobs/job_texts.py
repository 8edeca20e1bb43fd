"""Texts about a job for a person: its summary, its metrics, and the environment of a replica. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from trainyard_cli.output.jobs import formats, study_status
from trainyard_cli.output.log import progress
from trainyard_cli.output.log.log_screen import elapsed
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.answers.jobs import Explanation, JobDetail, ReplicaView, RunView, describe_runtime
from trainyard_protocol.answers.metrics import MetricSeries, MetricsView, number
from trainyard_protocol.answers.origin import OriginSummary
from trainyard_protocol.errors import nearest
from trainyard_protocol.fields import sized
from trainyard_protocol.net.gcs import EMULATOR, HIDDEN
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState


def summary(detail: JobDetail, now: datetime, flags: str = "") -> list[str]:
    """Lines for a person: what the job waits for, what runs where, why it ended. `flags` select its server and
    project. Pure."""
    lines = [_trial_line(detail)] if detail.study else []
    lines += [f"Owner: {detail.owner}"] if detail.owner else []
    for key, name in (("customJob", "Custom"), ("tuningJob", "Tuning")):
        if given := detail.job.get("trainingInput", {}).get(key):
            lines.append(f"{name} job of Vertex AI: {without_control(given['displayName'])}")
    if detail.job_dir:
        lines.append(f"Job dir: {detail.job_dir}")
    lines += _origin_lines(detail.origin)
    lines += [f"Note: {without_control(detail.note)}"] if detail.note else []
    if detail.waiting:
        lines.append(f"Waiting: {detail.waiting}")
    if detail.runs:
        lines += _run_lines(detail.runs[-1], len(detail.runs), now)
        lines += [f"WARNING: {detail.without_gpus}"] if detail.without_gpus else []
        lines += _retry(detail)
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


def _origin_lines(origin: OriginSummary | None) -> list[str]:
    if origin is None:
        return []
    lines = [f"Origin: {origin.text}"] if origin.text else []
    lines += [f"Rerun of: {origin.rerun_of}"] if origin.rerun_of else []
    return list(map(without_control, lines))


def _reason(detail: JobDetail) -> list[str]:
    """Cause of an end without success, in a line or two."""
    if detail.state not in (JobState.FAILED, JobState.CANCELLED):
        return []
    verdict = detail.verdict
    if verdict is None or not verdict.replica or detail.state is JobState.CANCELLED:
        return str(detail.job.get("errorMessage", "")).splitlines()[:1]
    failed_first = f"{verdict.replica} failed first ({verdict.reason})."
    lines = [failed_first, verdict.cause or verdict.message.partition("\n")[0]]
    return [*lines, verdict.retry] if verdict.retry else lines


def _retry(detail: JobDetail) -> list[str]:
    """The retry rule by which the last run that ended is followed by another, while the job goes on."""
    verdicts = [(run.number, run.verdict) for run in detail.runs if run.verdict is not None]
    if detail.state in FINAL_JOB_STATES or not verdicts or not verdicts[-1][1].retry:
        return []
    number, verdict = verdicts[-1]
    return [f"Run {number} failed. {verdict.retry}"]


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
                replica.machine_type + (f" on {replica.agent}" if replica.agent else ""),
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


def explanation_text(explanation: Explanation) -> str:
    """Environment and command of one replica, to be read and pasted."""
    variables = [f"{name}={value}" for name, value in explanation.environment.items()]
    place = describe_runtime(explanation.runtime, explanation.runtime_reason)
    title = f"# {explanation.task}, run {explanation.run}" + (f", {place}" if place else "")
    lines = [title, "", "# Environment", *variables, ""]
    if explanation.mounts:
        rights = {True: "read-only", False: "may be written"}
        mounts = [f"{mount.name} at {mount.path}, {rights[mount.read_only]}" for mount in explanation.mounts]
        lines += ["# Mounts", *mounts, ""]
    packages = [uri.rpartition("/")[2] for uri in explanation.packages]
    needs = f"needs {', '.join(packages)} installed; " if packages else ""
    job = explanation.environment.get("CLOUD_ML_JOB_ID", "JOB")
    return "\n".join([*lines, f"# Command to run it by hand ({needs}or: jobs repro {job})", explanation.reproduce])


def metrics_rows(view: MetricsView, *, curves: bool) -> list[dict[str, Any]]:
    """One row for each metric and replica: its last value, its best one and its extremes, over all runs; with `curves`
    also its points. Pure.

    Values that are no numbers of JSON are strings, as in the API. NaN is no extreme.
    """
    series: dict[tuple[str, str], list[MetricSeries]] = {}
    for part in view.metrics:
        series.setdefault((part.name, part.task), []).append(part)
    rows = []
    for result in view.results:
        parts = series.get((result.name, result.task), [])
        row: dict[str, Any] = {
            "name": result.name,
            "task": result.task,
            "run": result.run,
            "step": result.step,
            "value": number(result.last),
            "best": result.best,
            "bestStep": result.best_step,
            "min": result.lowest,
            "max": result.highest,
            "points": sum(part.total for part in parts),
        }
        if curves:
            row["steps"] = [step for part in parts for step in part.steps]
            row["values"] = [number(value) for part in parts for value in part.values]
            row["times"] = [time for part in parts for time in part.times]
        rows.append(row)
    return rows


def missing_metrics(every: MetricsView, names: Sequence[str], task: str = "") -> list[str]:
    """Messages about metrics that were asked for and are not there, with those that were probably meant. `every`: all
    that the job has. Pure."""
    if not every.results:
        return ["The job has reported no metrics. One is a line of its output such as `step: 100, loss: 0.31`."]
    has = list(dict.fromkeys(series.name for series in every.results))
    tasks = list(dict.fromkeys(series.task for series in every.results))
    messages = []
    for name in names:
        if name not in has:
            near = nearest(name, has)
            hint = f"Did you mean {near}?" if near else f"It has {formats.shortened(has)}."
            messages.append(without_control(f"The job has no metric {name}. {hint}"))
    if task and not messages and task not in tasks:
        return [f"{task} has reported no such metrics; {formats.shortened(tasks)} has."]
    return messages


def metrics_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table."""
    shown = [
        [
            without_control(row["name"]),
            row["task"],
            str(row["step"]),
            *(_value(row[column]) for column in ("value", "best", "min", "max")),
        ]
        for row in rows
    ]
    return formats.table(["METRIC", "REPLICA", "STEP", "LAST", "BEST", "MIN", "MAX"], shown)


def _value(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"
