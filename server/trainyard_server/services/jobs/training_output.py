"""The `trainingOutput` of jobs as the v1 API has it, and what a new study starts with."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Violation
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.job.hyperparameters import Algorithm
from trainyard_protocol.job.training_input import Job, TrainingInput
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.domain.tuning.measurements import Measurement
from trainyard_server.domain.tuning.search import GridSearch
from trainyard_server.domain.tuning.seed import seed_of
from trainyard_server.domain.tuning.study import LONGEST_STUDY_ID, TrialSnapshot, ranked, tag_of
from trainyard_server.domain.tuning.suggester import PastTrial
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies

_VCPUS_OF_A_UNIT = 4  # an n1-standard-4, the machine of BASIC
_RESUMED = "hyperparameters.resume_previous_job_id"

Past = list[tuple[Mapping[str, str], float]]
"""Parameters and value of trials of a study that another one resumes."""


def check_study(reader: Reader, project: str, job: Job) -> tuple[int, Past]:
    """The seed of a new study, and the trials that it resumes. Raises InvalidArgument, FailedPrecondition."""
    spec = job.training_input.hyperparameters
    if len(job.job_id) > LONGEST_STUDY_ID:
        message = (
            f"The name of a job with hyperparameters has at most {LONGEST_STUDY_ID} characters, since each trial is "
            f"a job of its own, NAME.1 and so on; this one has {len(job.job_id)}."
        )
        raise InvalidArgument(Violation("job.job_id", message))
    past = _past(reader, project, spec.resume_previous_job_id) if spec and spec.resume_previous_job_id else []
    if spec is not None and past and spec.algorithm is Algorithm.GRID_SEARCH:
        tried = [PastTrial(0, parameters, value, ended=True) for parameters, value in past]
        if GridSearch().suggest(spec, 0, tried, 1) is None:
            message = f"The trials of {spec.resume_previous_job_id} have all points of this grid: none is left to try."
            raise FailedPrecondition(Violation(_RESUMED, message))
    return seed_of(job.job_id, job.labels), past


def training_output(reader: Reader, job: JobRow) -> dict[str, Any]:
    """The `trainingOutput` of a job; that of a study has its trials, the best first."""
    study = studies.snapshot(reader, job.key, measurements=True) if _may_be_study(job) else None
    if study is None:
        return _units(job, [job])
    trials = [_trial_output(trial) for trial in ranked(study.trials, maximize=study.maximizes)]
    output = _output(study.tag, study.counts) | _units(job, study.trials)
    return output | ({"trials": trials} if trials else {})


def new_training_output(training_input: TrainingInput) -> dict[str, Any]:
    """The `trainingOutput` of a job that was just created."""
    spec = training_input.hyperparameters
    return {} if spec is None else _output(spec.hyperparameter_metric_tag, {})


def web_access_uris(job: JobRow, site: str) -> dict[str, Any]:
    """`webAccessUris` of a running job that allows web access: where to enter each of its replicas."""
    if job.state is not JobState.RUNNING or not job.training_input.get("enableWebAccess"):
        return {}
    page = f"{site.rstrip('/')}/projects/{job.project}/jobs/{job.job_id}#terminal"
    return {"webAccessUris": {replica["task"]: page for replica in job.gang}}


def training_outputs(reader: Reader, jobs: Sequence[JobRow]) -> dict[int, dict[str, Any]]:
    """The `trainingOutput` of the jobs of a list, by key. A study's has counts alone: trials take long to read."""
    studied = {job.key: reader.job_input(job)[0].hyperparameters for job in jobs if _may_be_study(job)}
    specs = {key: spec for key, spec in studied.items() if spec is not None}
    counts = studies.counts(reader, specs) if specs else {}
    taken = studies.metrics_of(reader, specs) if specs else {}
    tags = {key: tag_of(spec, taken.get(key, "")) for key, spec in specs.items()}
    return {
        job.key: _output(tags[job.key], counts.get(job.key, {})) if job.key in tags else _units(job, [job])
        for job in jobs
    }


def whole_second(time: datetime) -> str:
    """A time of the v1 API: in whole seconds."""
    return rfc3339(time.replace(microsecond=0))


def _may_be_study(job: JobRow) -> bool:
    return "hyperparameters" in job.training_input


def _units(job: JobRow, ran: Iterable[JobRow | TrialSnapshot]) -> dict[str, Any]:
    """`consumedMLUnits` of a job, or of the trials of one, that have run: hours of its gang, where 4 vCPU are one
    unit."""
    times = [
        (run.ended_at - run.started_at).total_seconds()
        for run in ran
        if run.started_at is not None and run.ended_at is not None
    ]
    units = sum(replica["vcpus"] for replica in job.gang) / _VCPUS_OF_A_UNIT
    return {"consumedMLUnits": round(units * sum(times) / 3600, 2)} if times else {}


def _past(reader: Reader, project: str, job_id: str) -> Past:
    job = reader.job(project, job_id)
    study = studies.snapshot(reader, job.key) if job is not None else None
    if study is None:
        raise InvalidArgument(Violation(_RESUMED, f"The project {project} has no job {job_id} with trials."))
    if study.state not in FINAL_JOB_STATES:
        message = f"The job {job_id} is {study.state}. Only a job that has ended can be resumed."
        raise FailedPrecondition(Violation(_RESUMED, message))
    own = [(trial.parameters, trial.value) for trial in study.trials]
    return [*study.past, *((parameters, value) for parameters, value in own if value is not None)]


def _output(tag: str, counts: Mapping[JobState, int]) -> dict[str, Any]:
    return {
        "completedTrialCount": str(counts.get(JobState.SUCCEEDED, 0)),
        "isHyperparameterTuningJob": True,
        "hyperparameterMetricTag": tag,
    }


def _trial_output(trial: TrialSnapshot) -> dict[str, Any]:
    """A `HyperparameterOutput` of the API."""
    output: dict[str, Any] = {
        "trialId": str(trial.number),
        "hyperparameters": dict(trial.parameters),
        "state": trial.state.value,
    }
    if trial.started_at is not None:
        output["startTime"] = whole_second(trial.started_at)
    if trial.ended_at is not None:
        output["endTime"] = whole_second(trial.ended_at)
    if trial.final is not None:
        output["finalMetric"] = _metric(trial.final)
        output["allMetrics"] = [_metric(measurement) for measurement in trial.measurements]
    if trial.stopped_early:
        output["isTrialStoppedEarly"] = True
    return output


def _metric(measurement: Measurement) -> dict[str, Any]:
    step, value = measurement
    return {"trainingStep": str(step), "objectiveValue": value}
