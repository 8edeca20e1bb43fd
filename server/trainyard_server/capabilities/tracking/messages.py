"""Bodies and answers of MLflow's REST API, with the fields that count.

Texts have no limits of their own where a longer one must not end a program: the body has one, and what is too long is
cut or left out.

Source: https://mlflow.org/docs/latest/rest-api.html, mlflow/protos/service.proto
"""

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from trainyard_protocol.answers.metrics import Number as Value

MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
"""Limits of one call of log-batch, as MLflow's server has them."""

MAX_RESULTS = 1000

_LONGEST = 8000
_LATEST_MS = 1 << 53


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


def _text(value: Any) -> Any:
    return "" if value is None else value


Short = Annotated[str, BeforeValidator(_text), Field(max_length=_LONGEST)]
Text = Annotated[str, BeforeValidator(_text)]
Key = Annotated[str, Field(min_length=1)]
Number = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, str) else value)]


class LoggedMetric(_Body):
    """A value of a metric; `timestamp` is in milliseconds since 1970. `model_id`: it is of that model too."""

    key: Key
    value: Number
    timestamp: int = 0
    step: int = 0
    model_id: Text = ""
    dataset_name: Text = ""
    dataset_digest: Text = ""

    def time_ms(self, now_ms: int) -> int:
        """Its time in milliseconds since 1970, now where it has none that a float keeps."""
        return self.timestamp if 0 < self.timestamp < _LATEST_MS else now_ms


class KeyValue(_Body):
    key: Key
    value: Text = ""


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


class DeleteTag(OfRun):
    key: Key


class LoggedBatch(_Body):
    """Values of a run. With `change_params`, which MLflow does not have, parameters may get other values, as those of
    W&B's config may."""

    run_id: Short = ""
    change_params: bool = False
    metrics: Annotated[tuple[LoggedMetric, ...], Field(max_length=MAX_METRICS)] = ()
    params: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_PARAMS)] = ()
    tags: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_TAGS)] = ()


class CreateRun(_Body):
    experiment_id: Short = ""
    run_name: Text = ""
    start_time: int = 0
    tags: tuple[KeyValue, ...] = ()


class UpdateRun(OfRun):
    status: Short = ""
    end_time: int = 0
    run_name: Text = ""


class LogModelText(OfRun):
    """A model of older clients, which is a tag of its run."""

    model_json: Text = ""


class Dataset(_Body):
    name: Text = ""
    digest: Text = ""
    source_type: Text = ""
    source: Text = ""
    schema_text: Text = Field("", validation_alias=AliasChoices("schema", "schema_text"))
    profile: Text = ""


class DatasetInput(_Body):
    dataset: Dataset = Dataset()
    tags: tuple[KeyValue, ...] = ()


class ModelUse(_Body):
    """A model that a run has read or written, at a step."""

    model_id: Short = ""
    step: int = 0


class LogInputs(OfRun):
    datasets: tuple[DatasetInput, ...] = ()
    models: tuple[ModelUse, ...] = ()


class LogOutputs(OfRun):
    models: tuple[ModelUse, ...] = ()


class SearchRuns(_Body):
    experiment_ids: Annotated[tuple[Short, ...], Field(max_length=1000)] = ()
    filter: Text = ""
    run_view_type: Short = ""
    max_results: Annotated[int, Field(ge=1, le=50_000)] = MAX_RESULTS
    order_by: tuple[Text, ...] = ()
    page_token: Short = ""


class SearchExperiments(_Body):
    filter: Text = ""
    view_type: Short = ""
    max_results: Annotated[int, Field(ge=1, le=50_000)] = MAX_RESULTS
    order_by: tuple[Text, ...] = ()
    page_token: Short = ""


class NamedExperiment(_Body):
    name: Short


class CreateLoggedModel(_Body):
    experiment_id: Short = ""
    name: Text = ""
    model_type: Text = ""
    source_run_id: Short = ""
    params: tuple[KeyValue, ...] = ()
    tags: tuple[KeyValue, ...] = ()


class FinalizeLoggedModel(_Body):
    status: Short = ""


class LoggedModelTags(_Body):
    tags: tuple[KeyValue, ...] = ()


class LoggedModelParams(_Body):
    params: tuple[KeyValue, ...] = ()


class DatasetOfMetrics(_Body):
    dataset_name: Text = ""
    dataset_digest: Text = ""


class ModelOrder(DatasetOfMetrics):
    field_name: Text = ""
    ascending: bool = True


class SearchLoggedModels(_Body):
    experiment_ids: Annotated[tuple[Short, ...], Field(max_length=1000)] = ()
    filter: Text = ""
    datasets: tuple[DatasetOfMetrics, ...] = ()
    max_results: Annotated[int, Field(ge=1, le=50_000)] = 100
    order_by: tuple[ModelOrder, ...] = ()
    page_token: Short = ""


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
    """A page of experiments; without `next_page_token` it is the last one."""

    experiments: tuple[Experiment, ...]
    next_page_token: str | None = None


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


class RunInputs(_Body):
    dataset_inputs: tuple[dict[str, Any], ...] = ()
    model_inputs: tuple[dict[str, Any], ...] = ()


class RunOutputs(_Body):
    model_outputs: tuple[dict[str, Any], ...] = ()


class TrackedRun(_Body):
    info: RunInfo
    data: RunData
    inputs: RunInputs = RunInputs()
    outputs: RunOutputs = RunOutputs()


class OneRun(_Body):
    run: TrackedRun


class UpdatedRun(_Body):
    run_info: RunInfo


class FoundRuns(_Body):
    """A page of runs; without `next_page_token` it is the last one."""

    runs: tuple[TrackedRun, ...]
    next_page_token: str | None = None


class MetricHistory(_Body):
    """A page of points; without `next_page_token` it is the last one."""

    metrics: tuple[MetricValue, ...]
    next_page_token: str | None = None


class LoggedModel(_Body):
    """A model: `info` and `data`, as MLflow's JSON has them."""

    info: dict[str, Any]
    data: dict[str, Any]


class OneLoggedModel(_Body):
    model: LoggedModel


class FoundLoggedModels(_Body):
    """A page of models; without `next_page_token` it is the last one."""

    models: tuple[LoggedModel, ...]
    next_page_token: str | None = None


class ArtifactFile(_Body):
    path: str
    is_dir: bool = False
    file_size: int | None = None


class ArtifactList(_Body):
    files: tuple[ArtifactFile, ...] = ()
    root_uri: str | None = None
