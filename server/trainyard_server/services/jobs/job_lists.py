"""Use case of jobs: list those of a project, page by page."""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_server.context import Backend
from trainyard_server.domain.filters.filter_syntax import Expression
from trainyard_server.domain.tuning.measurements import newest_values
from trainyard_server.services.jobs.filter_notes import filter_notes
from trainyard_server.services.jobs.training_output import training_outputs
from trainyard_server.services.jobs.v1_job import v1_job, with_pointer
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries import filters
from trainyard_server.storage.db.tables import job_values, studies

DEFAULT_PAGE_SIZE = 20
MAX_PAGE_SIZE = 100


class JobLists:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def page(
        self,
        project: str,
        filter_text: str = "",
        page_size: int | None = None,
        page_token: str = "",
        *,
        with_results: bool = False,
        parse: Callable[[str], Expression | None] = filters.parse,
        note: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """One page, the newest job first: `{"jobs": [...], "nextPageToken": ...}`, `{}` for nothing. A page of large
        jobs has fewer of them. `with_results`: each also with its owner, its duration in seconds, its parameters, and
        the newest value of each metric. `parse` reads the filter. `note` gets each line about a filter
        that finds nothing."""
        expression = parse(filter_text)
        if page_size is not None and page_size < 0:
            raise InvalidArgument(Violation("page_size", f"must be 0 or more; this is {page_size}."))
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        last = _read_token(page_token, filter_text) if page_token else ""
        with self._backend.store.read() as reader:
            condition = None
            if expression is not None:
                condition = filters.to_sql(expression, filters.common_in(reader, expression))
            below = reader.key_of(project, last) if last else None
            if last and below is None:
                raise _foreign_token()
            trials = filters.finds_trials(expression)
            rows, more = reader.jobs(project, condition, below, size, trials=trials)
            for line in () if rows or last else filter_notes(reader, project, expression):
                note(line)
            outputs = training_outputs(reader, rows)
            page = [with_pointer(v1_job(row, outputs[row.key])) for row in rows]
            if with_results:
                keys = [row.key for row in rows]
                reported = studies.summaries(reader, keys)
                values = job_values.values_of(reader, keys, None, ())
                now = self._backend.clock()
                page = [
                    job | _results(row, values[row.key].parameters, reported.get(row.key, ()), now)
                    for job, row in zip(page, rows, strict=True)
                ]
        answer: dict[str, Any] = {"jobs": page} if page else {}
        if more:
            answer["nextPageToken"] = _token(rows[-1].job_id, filter_text)
        return answer


def _results(
    job: JobRow, parameters: Mapping[str, str], summaries: Iterable[Mapping[str, Any]], now: datetime
) -> dict[str, Any]:
    """The fields of a list for programs beside the API's Job. `summaries`: those of its primary, run by run."""
    results: dict[str, Any] = {"owner": job.owner}
    if job.started_at is not None:
        results["duration"] = round(((job.ended_at or now) - job.started_at).total_seconds())
    if parameters:
        results["params"] = dict(parameters)
    if metrics := newest_values(summaries):
        results["metrics"] = metrics
    return results


def _token(job_id: str, filter_text: str) -> str:
    """Names the last job of a page. Its key would tell how many jobs the server has."""
    return base64.urlsafe_b64encode(f"{job_id}:{_fingerprint(filter_text)}".encode()).decode()


def _read_token(token: str, filter_text: str) -> str:
    try:
        job_id, _, fingerprint = base64.urlsafe_b64decode(token.encode()).decode().partition(":")
    except (ValueError, binascii.Error):
        raise _foreign_token() from None
    if not job_id:
        raise _foreign_token()
    if fingerprint != _fingerprint(filter_text):
        raise InvalidArgument(
            Violation("page_token", "belongs to another filter: use a page token with the filter that it came with.")
        )
    return job_id


def _foreign_token() -> InvalidArgument:
    return InvalidArgument(Violation("page_token", "is not one of this server."))


def _fingerprint(filter_text: str) -> str:
    return hashlib.sha256(filter_text.encode()).hexdigest()[:12]
