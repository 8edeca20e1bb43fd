"""Answers about custom jobs, as Vertex AI's API has them."""

from typing import Any, Literal

from trainyard_protocol.message import Message

CustomJobState = Literal[
    "JOB_STATE_QUEUED",
    "JOB_STATE_PENDING",
    "JOB_STATE_RUNNING",
    "JOB_STATE_SUCCEEDED",
    "JOB_STATE_FAILED",
    "JOB_STATE_CANCELLING",
    "JOB_STATE_CANCELLED",
]


class CustomJobError(Message):
    """`google.rpc.Status`."""

    code: int
    message: str


class CustomJobEncryption(Message):
    kms_key_name: str


class CustomJobAnswer(Message):
    """A custom job. `job_spec` has the fields that were sent; its enums are names."""

    name: str
    display_name: str
    job_spec: dict[str, Any]
    state: CustomJobState
    create_time: str
    update_time: str
    start_time: str = ""
    end_time: str = ""
    error: CustomJobError | None = None
    labels: dict[str, str] | None = None
    encryption_spec: CustomJobEncryption | None = None
    web_access_uris: dict[str, str] | None = None


class CustomJobPage(Message):
    """Both fields are left out where they are empty."""

    custom_jobs: list[CustomJobAnswer] | None = None
    next_page_token: str = ""


class Deletion(Message):
    """`google.longrunning.Operation`, which is done."""

    name: str
    done: bool
    response: dict[str, str]
