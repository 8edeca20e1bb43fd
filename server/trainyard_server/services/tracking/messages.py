"""Bodies of MLflow's REST API, of which only the fields that count are read.

Source: https://mlflow.org/docs/latest/rest-api.html
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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


class LogMetric(LoggedMetric):
    run_id: Short = ""
    run_uuid: Short = ""


class LogParam(KeyValue):
    run_id: Short = ""
    run_uuid: Short = ""


class LoggedBatch(_Body):
    run_id: Short = ""
    metrics: Annotated[tuple[LoggedMetric, ...], Field(max_length=MAX_METRICS)] = ()
    params: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_PARAMS)] = ()
    tags: Annotated[tuple[KeyValue, ...], Field(max_length=MAX_TAGS)] = ()


class OfRun(_Body):
    run_id: Short = ""
    run_uuid: Short = ""


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
