"""Contents of notifications: of an event of a job as JSON, as a message of Slack, and as a mail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.job.keys.notifications import Bound, JobEvent
from trainyard_protocol.states import JobState
from trainyard_server.domain.durations import duration

MAX_METRICS = 8
"""Metrics in one notification."""

_LONGEST_MESSAGE = 1500
_ENDED = {JobState.SUCCEEDED: "succeeded", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}
_FOR_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class NotifiedJob:
    """A job as its notifications describe it. `url`: its page, "" if the server does not know its own address."""

    project: str
    job_id: str
    owner: str
    state: JobState
    labels: Mapping[str, str]
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    error: str
    metrics: Mapping[str, float]
    url: str = ""


def events_of_end(state: JobState) -> Sequence[JobEvent]:
    """The events that the end of a job is."""
    return (JobEvent.END, JobEvent.FAILURE) if state is JobState.FAILED else (JobEvent.END,)


def of_end(job: NotifiedJob, at: datetime) -> dict[str, Any]:
    """The content for the end of a job."""
    ended = _ENDED[job.state]
    since = job.started_at
    lasted = f" after {duration((job.ended_at - since).total_seconds())}" if since and job.ended_at else ""
    because = f": {job.error}" if job.error else "."
    kind = {JobState.CANCELLED: "cancelled"}.get(job.state, ended)
    return _content(job, f"job.{kind}", at, f"Job {job.job_id} {ended}{lasted}{because}")


def of_stall(job: NotifiedJob, at: datetime, message: str) -> dict[str, Any]:
    """The content for a stalled run. `message`: the service's line."""
    return _content(job, "job.stalled", at, f"Job {job.job_id} has stalled: {message}")


def of_bound(job: NotifiedJob, at: datetime, bound: Bound, value: float, step: int) -> dict[str, Any]:
    """The content for a metric that was beyond its bound."""
    message = f"{bound.metric} of job {job.job_id} was {value:.6g} at step {step} or before: its bound is {bound}."
    content = _content(job, "job.metric", at, message)
    return content | {"metric": {"name": bound.metric, "value": value, "bound": str(bound)}}


def of_test(project: str, channel: str, by: str, at: datetime, url: str) -> dict[str, Any]:
    """The content of a test of a channel."""
    message = f"This is a test of the channel {channel} of the project {project}, sent by {by}."
    return {"type": "test", "time": rfc3339(at), "project": project, "message": message, "url": url}


def _content(job: NotifiedJob, kind: str, at: datetime, message: str) -> dict[str, Any]:
    times = {"createTime": job.created_at, "startTime": job.started_at, "endTime": job.ended_at}
    return {
        "type": kind,
        "time": rfc3339(at),
        "project": job.project,
        "message": message[:_LONGEST_MESSAGE],
        "url": job.url,
        "job": {
            "jobId": job.job_id,
            "owner": job.owner,
            "state": str(job.state),
            "labels": dict(job.labels),
            **{name: rfc3339(time) for name, time in times.items() if time is not None},
            **({"errorMessage": job.error} if job.error else {}),
            "metrics": dict(job.metrics),
        },
    }


def slack(content: Mapping[str, Any]) -> dict[str, Any]:
    """The body for an incoming webhook of Slack (api.slack.com/messaging/webhooks), which others take too."""
    text = f"{content['message']}{_values(content)}".translate(_FOR_SLACK)
    return {"text": f"{text}\n<{content['url']}|{content['project']}>" if content["url"] else text}


def subject(content: Mapping[str, Any]) -> str:
    """The subject of a mail: the first sentence of the message, in one line."""
    return f"[{content['project']}] {' '.join(content['message'].split(': ')[0].split())}"[:200]


def text(content: Mapping[str, Any]) -> str:
    """The text of a mail."""
    lines = [content["message"] + _values(content), ""]
    job = content.get("job")
    if job:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(job["labels"].items()))
        facts = {
            "Project": content["project"],
            "Owner": job["owner"],
            "State": job["state"],
            "Created": job["createTime"],
            "Started": job.get("startTime", ""),
            "Ended": job.get("endTime", ""),
            "Labels": labels,
        }
        lines += [f"{name + ':':10}{value}" for name, value in facts.items() if value]
    if content["url"]:
        lines += ["", content["url"]]
    return "\n".join(lines) + "\n"


def _values(content: Mapping[str, Any]) -> str:
    metrics = content.get("job", {}).get("metrics", {})
    return "".join(f"\n{name} = {value:.6g}" for name, value in metrics.items())
