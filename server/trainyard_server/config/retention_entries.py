"""Entries of the quota file about retention, of each project."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trainyard_protocol.fields import validation_error
from trainyard_protocol.job.config.yaml_file import SiteEntry
from trainyard_protocol.lines.time_parsing import parse_duration
from trainyard_server.domain.retention import ALL, ProjectRetention


def read_keep_jobs(text: str) -> timedelta:
    """The time of `90d`; ALL for `all`. Raises ValueError with the rest of a sentence."""
    if text == "all":
        return ALL
    try:
        time = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"must be `all`, or {str(error).removeprefix('must be ')}") from error
    if not time:
        raise ValueError("must be above 0: a job that ends must be there to be read")
    return time


def _keep_jobs(value: Any) -> Any:
    if value is None or isinstance(value, timedelta):
        return value
    try:
        return read_keep_jobs(str(value))
    except ValueError as error:
        raise validation_error(f"{error}.") from error


class RetentionEntries(SiteEntry):
    """`keepJobs: 90d` and `keepLogsGb: 5` of a project."""

    keep_jobs: Annotated[timedelta | None, BeforeValidator(_keep_jobs)] = None
    keep_logs_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    def retention(self, default: "RetentionEntries | None" = None) -> ProjectRetention:
        """The limits, those that are not in the file out of `default`."""
        given = self.model_fields_set
        keep_jobs, size = self.keep_jobs, self.keep_logs_gb
        if default is not None:
            keep_jobs = keep_jobs if "keep_jobs" in given else default.keep_jobs
            size = size if "keep_logs_gb" in given else default.keep_logs_gb
        return ProjectRetention(keep_jobs, round(size * 10**9) or None if size is not None else None)
