"""Translation of a job to the custom job of Vertex AI that it came as. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from trainyard_protocol.job.cluster import Task, pool_of
from trainyard_protocol.states import JobState

STATES: Mapping[JobState, str] = {
    JobState.QUEUED: "JOB_STATE_QUEUED",
    JobState.PREPARING: "JOB_STATE_PENDING",
    JobState.RUNNING: "JOB_STATE_RUNNING",
    JobState.SUCCEEDED: "JOB_STATE_SUCCEEDED",
    JobState.FAILED: "JOB_STATE_FAILED",
    JobState.CANCELLING: "JOB_STATE_CANCELLING",
    JobState.CANCELLED: "JOB_STATE_CANCELLED",
}
_CODES = {JobState.FAILED: 3, JobState.CANCELLED: 1}
"""Codes of google.rpc: INVALID_ARGUMENT, which Vertex AI has for a program that failed, and CANCELLED."""

_REPLICA = re.compile(r"\bThe replica (master|worker|ps|evaluator) (\d+)\b")
_TIMES = ("createTime", "startTime", "endTime")


def custom_job(project: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """The custom job of a job as the v1 API returns it."""
    answer = {**vertex_job(project, "customJobs", job), **job["trainingInput"]["customJob"]}
    if uris := job["trainingOutput"].get("webAccessUris"):
        answer["webAccessUris"] = {_replica_of(task): uri for task, uri in uris.items()}
    return answer


def vertex_job(project: str, collection: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that jobs of all collections have."""
    sent = job["trainingInput"]
    state = JobState(job["state"])
    times = {name: job[name] for name in _TIMES if name in job}
    answer = {
        "name": name_of(project, sent["region"], collection, job["jobId"]),
        "state": STATES[state],
        **times,
        "updateTime": max(times.values()),
    }
    if state in _CODES:
        answer["error"] = {"code": _CODES[state], "message": _REPLICA.sub(_renamed, job.get("errorMessage", ""))}
    if "labels" in job:
        answer["labels"] = job["labels"]
    if "encryptionConfig" in sent:
        answer["encryptionSpec"] = sent["encryptionConfig"]
    return answer


def name_of(project: str, location: str, collection: str, job_id: str) -> str:
    return f"projects/{project}/locations/{location}/{collection}/{job_id}"


def _renamed(replica: re.Match[str]) -> str:
    return f"The replica {pool_of(replica[1])}-{replica[2]}"


def _replica_of(task_name: str) -> str:
    """`worker-replica-0` -> `workerpool1-0`."""
    task = Task.parse(task_name)
    return f"{pool_of(task.type)}-{task.index}"
