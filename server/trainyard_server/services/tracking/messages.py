"""Bodies and answers of MLflow's REST API, with the fields that count.

Source: https://mlflow.org/docs/latest/rest-api.html
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from trainyard_protocol.views.views import Number as Value

MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
"""Limits of one call of log-batch, as MLflow's server has them."""

MAX_RESULTS = 1000

_LONGEST = 8000


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


Short = Annotated[str, Field(max_length=_LONGEST)]
Key = Annotated[str, Field(min_length=1, max_length=250)]
Number = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, str) else value)]


class LoggedMetric(_Body):
    """A value of a metric; `timestamp` is in milliseconds since 1970."""

    key: Key
    value: Number
    timestamp: int = 0
    step: int = 0


class KeyValue(_Body):
    key: Key
    value: Short = ""


class OfRun(_Body):
    """A body about a run; older clients say `run_uuid`."""

    run_id: Short = ""
    run_uuid: Short = ""

    @property
    def wanted(self) -> str:
        return self.run_id or self.run_uuid


class LogMetric(LoggedMetric, OfRun):
    """A value of a metric of a run."""


class LogParam(KeyValue, OfRun):
    """A parameter of a run, or a tag."""


class LoggedBatch(_Body):
    run_id: Short = ""
    metrics: Annotated[tuple[LoggedMetric, ...], Field(max_length=MAX_METRICS)] = ()
    params: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_PARAMS)] = ()
    tags: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_TAGS)] = ()


class CreateRun(_Body):
    experiment_id: Short = ""
    run_name: Short = ""
    tags: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_TAGS)] = ()


class UpdateRun(OfRun):
    status: Short = ""


class SearchRuns(_Body):
    experiment_ids: Annotated[tuple[Short, ...], Field(max_length=100)] = ()
    filter: Short = ""
    max_results: Annotated[int, Field(ge=1, le=50_000)] = MAX_RESULTS
    page_token: Short = ""


class SearchExperiments(_Body):
    filter: Short = ""
    max_results: Annotated[int, Field(ge=1, le=50_000)] = MAX_RESULTS
    page_token: Short = ""


class NamedExperiment(_Body):
    name: Short


class NothingToSay(_Body):
    """An empty answer."""


class Experiment(_Body):
    experiment_id: str
    name: str
    artifact_location: str
    lifecycle_stage: str
    tags: tuple[KeyValue, ...] = ()


class OneExperiment(_Body):
    experiment: Experiment


class ExperimentId(_Body):
    experiment_id: str


class Experiments(_Body):
    experiments: tuple[Experiment, ...]


class RunInfo(_Body):
    """Times are in milliseconds since 1970; one without `end_time` goes on."""

    run_id: str
    run_uuid: str
    run_name: str
    experiment_id: str
    user_id: str
    status: str
    start_time: int
    end_time: int | None = None
    artifact_uri: str
    lifecycle_stage: str


class MetricValue(_Body):
    key: str
    value: Value
    step: int
    timestamp: int


class RunData(_Body):
    metrics: tuple[MetricValue, ...] = ()
    params: tuple[KeyValue, ...] = ()
    tags: tuple[KeyValue, ...] = ()


class TrackedRun(_Body):
    info: RunInfo
    data: RunData
    inputs: NothingToSay = NothingToSay()


class OneRun(_Body):
    run: TrackedRun


class UpdatedRun(_Body):
    run_info: RunInfo


class FoundRuns(_Body):
    """A page of runs; without `next_page_token` it is the last one."""

    runs: tuple[TrackedRun, ...]
    next_page_token: str | None = None


class MetricHistory(_Body):
    metrics: tuple[MetricValue, ...]


class ArtifactFile(_Body):
    path: str
    is_dir: bool = False


class ArtifactList(_Body):
    files: tuple[ArtifactFile, ...] = ()
