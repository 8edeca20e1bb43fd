"""Translation of a hyperparameter tuning job of Vertex AI to a study, of errors back to its fields, and of a study to
the tuning job that it came as. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job import custom_job_training
from trainyard_protocol.job.hyperparameters import (
    Algorithm,
    ArgumentStyle,
    Goal,
    HyperparameterSpec,
    MeasurementSelection,
    ParameterSpec,
    ParameterType,
)
from trainyard_protocol.job.parsing import parse
from trainyard_protocol.job.training_input import Job
from trainyard_protocol.job.tuning_jobs import (
    ConditionalParameterSpec,
    HyperparameterTuningJob,
    TunedParameter,
    TuningStudySpec,
    VertexScaleType,
)
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.google.custom_jobs.training import name_of, vertex_job
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.trial_input import trial_id

_ROOT = "hyperparameter_tuning_job"
_STUDY = f"{_ROOT}.study_spec"
_BESIDE = ("labels", "encryptionSpec")
"""Fields of a tuning job that are kept as those of every job."""

_RANGE = {"minValue": "min_value", "maxValue": "max_value"}
_SPACES: Mapping[str, tuple[ParameterType, Mapping[str, str]]] = {
    "double_value_spec": (ParameterType.DOUBLE, _RANGE),
    "integer_value_spec": (ParameterType.INTEGER, _RANGE),
    "categorical_value_spec": (ParameterType.CATEGORICAL, {"categoricalValues": "values"}),
    "discrete_value_spec": (ParameterType.DISCRETE, {"discreteValues": "values"}),
}
"""The type of a parameter and its fields, by its kind in Vertex AI."""

_FIELDS = {
    "max_trials": f"{_ROOT}.max_trial_count",
    "max_parallel_trials": f"{_ROOT}.parallel_trial_count",
    "max_failed_trials": f"{_ROOT}.max_failed_trial_count",
    "hyperparameter_metric_tag": f"{_STUDY}.metrics[0].metric_id",
    "params": f"{_STUDY}.parameters",
}
_TRIAL_STATES: Mapping[JobState, str] = {
    JobState.QUEUED: "REQUESTED",
    JobState.PREPARING: "ACTIVE",
    JobState.RUNNING: "ACTIVE",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "INFEASIBLE",
    JobState.CANCELLING: "STOPPING",
    JobState.CANCELLED: "INFEASIBLE",
}


def create_request(asked: HyperparameterTuningJob, job_id: str, location: str) -> dict[str, Any]:
    """The create request of the study. Raises InvalidArgument, with fields of the tuning job, for what cannot be said
    as a study. Other rules are those of every job: see `renamed`."""
    sent = _training_input(asked, location)
    if asked.encryption_spec is not None:
        sent["encryptionConfig"] = asked.encryption_spec.canonical()
    sent["tuningJob"] = {name: value for name, value in asked.canonical().items() if name not in _BESIDE}
    return {"jobId": job_id, "trainingInput": sent, **({"labels": asked.labels} if asked.labels else {})}


def check(job: Job) -> None:
    """Raises InvalidArgument where a training input is not what its tuning job is translated to: one of the two would
    be shown, and the other run."""
    training = job.training_input
    if training.tuning_job is None:
        return
    if not training.region:
        raise InvalidArgument(Violation("region", "is required with tuningJob: the location of the tuning job."))
    asked = parse(HyperparameterTuningJob, training.tuning_job.canonical(), "tuning_job")
    if others := custom_job_training.unlike(training, _training_input(asked, training.region)):
        raise custom_job_training.another_job("tuning_job", others)


def renamed(error: InvalidArgument, asked: HyperparameterTuningJob) -> InvalidArgument:
    """The error of a study with the fields of the tuning job that it was made from."""
    violations = custom_job_training.with_fields_of(error, asked.trial_job_spec).violations
    return type(error)([replace(violation, field=_field(violation.field)) for violation in violations])


def tuning_job(project: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """The tuning job of a study as the v1 API returns it, with the trials that it has, by their numbers."""
    sent = job["trainingInput"]
    answer = {**vertex_job(project, "hyperparameterTuningJobs", job), **sent["tuningJob"]}
    if trials := job["trainingOutput"].get("trials"):
        spec = HyperparameterSpec.model_validate(sent["hyperparameters"])
        params = space.by_name(spec)
        name = name_of(project, sent["region"], "customJobs", job["jobId"])
        by_number = sorted(trials, key=lambda trial: int(trial["trialId"]))
        answer["trials"] = [_trial(trial, params, spec.hyperparameter_metric_tag, name) for trial in by_number]
    return answer


def _training_input(asked: HyperparameterTuningJob, location: str) -> dict[str, Any]:
    violations = list(_violations(asked.study_spec))
    sent: dict[str, Any] = {}
    try:
        sent = custom_job_training.training_input(asked.trial_job_spec, location)
    except InvalidArgument as error:
        violations += renamed(error, asked).violations
    if violations:
        raise InvalidArgument(violations)
    return {**sent, "hyperparameters": _hyperparameters(asked)}


def _violations(study: TuningStudySpec) -> Iterator[Violation]:
    if len(study.metrics) != 1:
        yield Violation(
            f"{_STUDY}.metrics",
            f"must have one metric; it has {len(study.metrics)}. A study has one goal. Its trials may report more "
            "metrics, by which `trainyard jobs trials JOB --metric NAME` ranks them.",
        )
        return
    if not study.metrics[0].metric_id:
        yield Violation(f"{_STUDY}.metrics[0].metric_id", "is required: the metric that the program reports.")
    if study.metrics[0].goal is Goal.GOAL_TYPE_UNSPECIFIED:
        yield Violation(f"{_STUDY}.metrics[0].goal", "is required: MAXIMIZE or MINIMIZE.")


def _hyperparameters(asked: HyperparameterTuningJob) -> dict[str, Any]:
    study = asked.study_spec
    sent: dict[str, Any] = {
        "goal": study.metrics[0].goal.value,
        "hyperparameterMetricTag": study.metrics[0].metric_id,
        "maxTrials": asked.max_trial_count,
        "maxParallelTrials": asked.parallel_trial_count,
        "maxFailedTrials": asked.max_failed_trial_count,
        "argumentStyle": ArgumentStyle.FLAGS_WITH_EQUALS.value,
        "params": [_param(parameter) for parameter in study.parameters],
    }
    if study.algorithm is not Algorithm.ALGORITHM_UNSPECIFIED:
        sent["algorithm"] = study.algorithm.value
    if study.measurement_selection_type is MeasurementSelection.BEST_MEASUREMENT:
        sent["measurementSelectionType"] = study.measurement_selection_type.value
    if study.median_automated_stopping_spec is not None:
        sent["enableTrialEarlyStopping"] = True
    return sent


def _param(parameter: TunedParameter) -> dict[str, Any]:
    sent: dict[str, Any] = {"parameterName": parameter.parameter_id}
    for name, (kind, fields) in _SPACES.items():
        if (given := getattr(parameter, name)) is not None:
            sent |= {"type": kind.value} | {ours: getattr(given, theirs) for ours, theirs in fields.items()}
    if parameter.scale_type is not VertexScaleType.SCALE_TYPE_UNSPECIFIED:
        sent["scaleType"] = parameter.scale_type.value
    if parameter.conditional_parameter_specs:
        sent["childParameterSpecs"] = [_child(child) for child in parameter.conditional_parameter_specs]
    return sent


def _child(child: ConditionalParameterSpec) -> dict[str, Any]:
    names = ("parent_categorical_values", "parent_discrete_values", "parent_int_values")
    conditions = {to_camel(name): getattr(child, name) for name in names}
    given = {name: condition.canonical() for name, condition in conditions.items() if condition is not None}
    return _param(child.parameter_spec) | given


def _field(name: str) -> str:
    """`hyperparameters.params[0].parameter_name` -> `hyperparameter_tuning_job.study_spec.parameters[0].parameter_id`;
    `custom_job.job_spec.network` -> `hyperparameter_tuning_job.trial_job_spec.network`."""
    if name.startswith("custom_job"):
        return name.replace("custom_job.job_spec", "custom_job.trial_job_spec", 1).replace("custom_job", _ROOT, 1)
    match = re.fullmatch(r"hyperparameters\.(\w+)(.*)", name)
    if match is None or match[1] not in _FIELDS:
        return name
    rest = re.sub(r"\.child_parameter_specs(\[\d+\])", r".conditional_parameter_specs\1.parameter_spec", match[2])
    rest = rest.replace(".parameter_spec.parent_", ".parent_").replace(".parameter_name", ".parameter_id")
    rest = re.sub(r"\.type$", ".double_value_spec", rest)  # that of a grid
    return f"{_FIELDS[match[1]]}{rest}"


def _trial(
    trial: Mapping[str, Any], params: Mapping[str, ParameterSpec], metric: str, custom_job: str
) -> dict[str, Any]:
    number = int(trial["trialId"])
    answer: dict[str, Any] = {
        "id": str(number),
        "state": _TRIAL_STATES[JobState(trial["state"])],
        "parameters": [
            {"parameterId": name, "value": space.parsed(params[name], text)}
            for name, text in trial["hyperparameters"].items()
        ],
        "customJob": trial_id(custom_job, number),
    }
    answer |= {name: trial[name] for name in ("startTime", "endTime") if name in trial}
    if final := trial.get("finalMetric"):
        values = [{"metricId": metric, "value": final["objectiveValue"]}]
        answer["finalMeasurement"] = {"stepCount": final["trainingStep"], "metrics": values}
    return answer
