"""Jobs as answers: structured, and as text for a language model. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trainyard_cli.capabilities.mcp.answers import (
    ComparisonAnswer,
    DifferenceAnswer,
    FirstFailure,
    JobAnswer,
    JobListAnswer,
    ListedJobAnswer,
    MetricAnswer,
    MetricsAnswer,
)
from trainyard_cli.capabilities.mcp.program_text import cut, plain, quoted
from trainyard_cli.output.jobs import job_texts, study_status
from trainyard_cli.output.jobs.formats import to_yaml
from trainyard_cli.output.log import progress
from trainyard_cli.output.log.follow import exit_code
from trainyard_protocol.answers.comparison import ComparisonView
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.metrics import MetricsView, number
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

_LONGEST_CONFIG = 6000
_LONGEST_CAUSE = 300
_LONGEST_VALUE = 200
_MOST_METRICS = 40
_MOST_OF_A_JOB = 12
_MOST_FIELDS = 60


def answer(detail: JobDetail, project: str, *, with_config: bool = False) -> JobAnswer:
    """A job as it is now."""
    job = detail.job
    run = detail.runs[-1] if detail.runs else None
    leader = progress.leader(run) if run is not None else None
    config = to_yaml({"trainingInput": job.get("trainingInput", {})}) if with_config else ""
    return JobAnswer(
        job=str(job.get("jobId", "")),
        project=project,
        state=str(detail.state),
        ended=detail.state in FINAL_JOB_STATES,
        owner=detail.owner,
        created=str(job.get("createTime", "")),
        started=str(job.get("startTime", "")),
        ended_at=str(job.get("endTime", "")),
        waiting=cut(detail.waiting),
        runs=len(detail.runs),
        activity=cut(run.activity) if run is not None else "",
        step=leader.step if leader is not None else None,
        steps=leader.steps if leader is not None else None,
        metrics=_newest(detail),
        failure=failure_of(detail),
        exit_code=exit_code(detail) if detail.state in FINAL_JOB_STATES else None,
        job_dir=detail.job_dir,
        labels={key: str(value) for key, value in job.get("labels", {}).items()},
        is_study=detail.is_study,
        config=plain(config)[:_LONGEST_CONFIG],
    )


def failure_of(detail: JobDetail) -> FirstFailure | None:
    """The first failure of a job that failed, or whose last run that ended did."""
    verdicts = [run.verdict for run in detail.runs if run.verdict is not None]
    verdict = detail.verdict or (verdicts[-1] if verdicts else None)
    if verdict is None or not verdict.replica or detail.state in (JobState.SUCCEEDED, JobState.CANCELLED):
        return None
    return FirstFailure(
        replica=verdict.replica,
        reason=str(verdict.reason),
        exit_code=verdict.exit_code,
        cause=cut(verdict.cause),
        cause_cursor=verdict.cause_cursor,
        retry=cut(verdict.retry),
    )


def job_text(found: JobAnswer, detail: JobDetail, now: datetime) -> str:
    """A job for a language model: what the service says, then what the program and people wrote."""
    lines = [f"{found.job}: {found.state}"]
    lines += [f"Owner: {found.owner}"] if found.owner else []
    lines += [f"Waiting: {found.waiting}"] if found.waiting else []
    if detail.runs:
        run = detail.runs[-1]
        doing = f", {found.activity}" if found.activity else ""
        replicas = ", ".join(f"{replica.task} {replica.state}" for _, replica in run.lives[:_MOST_OF_A_JOB])
        lines.append(f"Run {run.number} on {run.agent}: {run.state}{doing}. Replicas: {replicas}.")
    lines += [f"Job dir: {found.job_dir}"] if found.job_dir else []
    lines += [plain(line) for line in study_status.summary(detail.job)]
    if found.failure is not None:
        lines.append(failure_text(found.failure))
    written = [*progress.lines(detail, now)]
    written += [f"Cause: {found.failure.cause}"] if found.failure is not None and found.failure.cause else []
    written += [f"Note: {detail.note}"] if detail.note else []
    if not written and detail.state in (JobState.FAILED, JobState.CANCELLED):
        written = str(detail.job.get("errorMessage", "")).splitlines()[:1]
    lines += [quoted(written, "PROGRAM")] if written else []
    lines += [f"Config:\n{found.config}"] if found.config else []
    return "\n".join(lines)


def failure_text(failure: FirstFailure) -> str:
    """The first failure without what the program wrote."""
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    retry = f" {failure.retry}" if failure.retry else ""
    return f"{failure.replica} failed first ({failure.reason}{code}).{retry}"


def job_list(jobs: Sequence[Mapping[str, Any]], *, more: bool) -> JobListAnswer:
    """The rows of a list."""
    return JobListAnswer(jobs=[_listed(job) for job in jobs], more=more)


def _listed(job: Mapping[str, Any]) -> ListedJobAnswer:
    cause = str(job.get("errorMessage", "")).partition("\n")[0] if job.get("state") == JobState.FAILED else ""
    metrics = list(job.get("metrics", {}).items())[:_MOST_OF_A_JOB]
    return ListedJobAnswer(
        job=str(job["jobId"]),
        state=str(job["state"]),
        created=str(job.get("createTime", "")),
        owner=str(job.get("owner", "")),
        duration_s=job.get("duration"),
        metrics={cut(name, _LONGEST_VALUE): value for name, value in metrics},
        cause=cut(cause, _LONGEST_CAUSE),
    )


def metrics_answer(job: str, view: MetricsView) -> MetricsAnswer:
    """The last value and the extremes of each metric."""
    rows = job_texts.metrics_rows(view, curves=False)
    return MetricsAnswer(
        job=job,
        metrics=[
            MetricAnswer(
                name=cut(row["name"], _LONGEST_VALUE),
                replica=row["task"],
                run=row["run"],
                step=row["step"],
                last=row["value"],
                best=row["best"],
                best_step=row["bestStep"],
                minimum=row["min"],
                maximum=row["max"],
                points=row["points"],
            )
            for row in rows[:_MOST_METRICS]
        ],
        names=[cut(name, _LONGEST_VALUE) for name in view.names[: 2 * _MOST_METRICS]],
        left_out=max(0, len(rows) - _MOST_METRICS),
    )


def comparison(view: ComparisonView) -> ComparisonAnswer:
    """The fields in which jobs differ, and their results."""
    names = [job.job_id for job in view.jobs]
    return ComparisonAnswer(
        jobs=names,
        states=[str(job.state) for job in view.jobs],
        metric=cut(view.metric, _LONGEST_VALUE),
        goal=view.goal,
        best=names[view.best] if view.best is not None else "",
        differences=[
            DifferenceAnswer(
                section=field.section,
                field=cut(field.name, _LONGEST_VALUE),
                values=[cut(value, _LONGEST_VALUE) if isinstance(value, str) else value for value in field.values],
                best=[names[place] for place in field.best],
            )
            for field in view.differing[:_MOST_FIELDS]
        ],
        left_out=max(0, len(view.differing) - _MOST_FIELDS),
    )


def _newest(detail: JobDetail) -> dict[str, float | str]:
    values = list(detail.last_values.items())[:_MOST_OF_A_JOB]
    return {cut(name, _LONGEST_VALUE): number(value) for name, value in values}
