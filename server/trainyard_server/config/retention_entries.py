"""Entry of the quota file about retention, of each project."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

from trainyard_protocol.fields import validation_error
from trainyard_protocol.job.config.yaml_file import SiteEntry
from trainyard_protocol.lines.time_parsing import parse_duration
from trainyard_server.domain.retention import ALL


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
    """`keepJobs: 90d` of a project."""

    keep_jobs: Annotated[timedelta | None, BeforeValidator(_keep_jobs)] = None
