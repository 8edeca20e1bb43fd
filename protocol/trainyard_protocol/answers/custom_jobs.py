"""Answers about custom jobs and hyperparameter tuning jobs, as Vertex AI's API has them."""

from typing import Any, Literal

from trainyard_protocol.message import Message

VertexJobState = Literal[
    "JOB_STATE_QUEUED",
    "JOB_STATE_PENDING",
    "JOB_STATE_RUNNING",
    "JOB_STATE_SUCCEEDED",
    "JOB_STATE_FAILED",
    "JOB_STATE_CANCELLING",
    "JOB_STATE_CANCELLED",
]


class VertexJobError(Message):
    """`google.rpc.Status`."""

    code: int
    message: str


class VertexJobEncryption(Message):
    kms_key_name: str


class VertexJobAnswer(Message):
    """The fields that jobs of all collections have."""

    name: str
    display_name: str
    state: VertexJobState
    create_time: str
    update_time: str
    start_time: str = ""
    end_time: str = ""
    error: VertexJobError | None = None
    labels: dict[str, str] | None = None
    encryption_spec: VertexJobEncryption | None = None


class CustomJobAnswer(VertexJobAnswer):
    """A custom job. `job_spec` has the fields that were sent; its enums are names."""

    job_spec: dict[str, Any]
    web_access_uris: dict[str, str] | None = None


class CustomJobPage(Message):
    """Both fields are left out where they are empty."""

    custom_jobs: list[CustomJobAnswer] | None = None
    next_page_token: str = ""


class TrialParameter(Message):
    parameter_id: str
    value: float | str


class MeasuredMetric(Message):
    metric_id: str
    value: float


class FinalMeasurement(Message):
    step_count: str
    metrics: list[MeasuredMetric]


class TuningTrial(Message):
    """A trial. `custom_job`: the name of its job."""

    id: str
    state: Literal["REQUESTED", "ACTIVE", "STOPPING", "SUCCEEDED", "INFEASIBLE"]
    parameters: list[TrialParameter]
    custom_job: str
    start_time: str = ""
    end_time: str = ""
    final_measurement: FinalMeasurement | None = None


class TuningJobAnswer(VertexJobAnswer):
    """A hyperparameter tuning job. `study_spec` and `trial_job_spec` have the fields that were sent; their enums are
    names. Lists leave the trials out."""

    study_spec: dict[str, Any]
    max_trial_count: int = 0
    parallel_trial_count: int = 0
    max_failed_trial_count: int = 0
    trial_job_spec: dict[str, Any]
    trials: list[TuningTrial] | None = None


class TuningJobPage(Message):
    """Both fields are left out where they are empty."""

    hyperparameter_tuning_jobs: list[TuningJobAnswer] | None = None
    next_page_token: str = ""


class Deletion(Message):
    """`google.longrunning.Operation`, which is done."""

    name: str
    done: bool
    response: dict[str, str]
