"""Jobs in groups: by owner, project, state, study, a parameter or a label, with their metrics."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_protocol.states import JobState
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.services.views.job_search import JobSearchRequest, parsed
from trainyard_server.services.views.run_columns import RunColumn, column_of, columns_of, number_in
from trainyard_server.storage.db.queries import value_filters
from trainyard_server.storage.db.queries.job_queries import COUNTED, JobList
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.db.tables.job_values import JobValues

GROUPINGS = ("owner", "project", "state", "study")
"""Besides these, jobs are grouped by `labels.NAME` and `params.NAME`."""

GROUPS = 200
"""Limit of groups."""

_NAMES = 20  # of metrics, of which the most frequent rated ones are shown


class GroupMetric(NamedTuple):
    """A metric over the jobs of a group: of how many, their mean, and the best one where the name tells which is."""

    jobs: int
    mean: float
    best: float | None


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs with the same value. `metrics` are in the order of the metric columns; None where no job has any."""

    value: str
    jobs: int
    states: Mapping[JobState, int]
    metrics: Sequence[GroupMetric | None]
    term: str
    """The filter that finds these jobs."""


@dataclass(frozen=True, slots=True)
class GroupedJobs:
    """The groups of the matching jobs, the largest first. `of`: how many jobs they are of, the newest; `more`: there
    are others."""

    field: str
    groups: Sequence[JobGroup]
    columns: Sequence[RunColumn]
    of: int
    more: bool


class JobGroups:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def grouped(self, visible: Visible, question: JobSearchRequest, field: str, fields: Sequence[str]) -> GroupedJobs:
        """The matching jobs in groups by a field, with the metrics among the columns, else the best of the main ones.

        Raises InvalidArgument.
        """
        _check_grouping(field)
        columns = [column for column in columns_of(fields) if column.kind == "metric" and column.number[0] != "@"]
        query, order, descending = parsed(question, self._backend.clock())
        if field == "study":
            query = query.of_trials()
        with self._backend.store.read() as reader:
            jobs = JobList(reader, visible)
            matches = jobs.matches(query, order, descending=descending)
            states = {key: state for key, state in matches[:COUNTED] if not query.states or state in query.states}
            keys = list(states)
            columns = columns or _main_metrics(reader, keys)
            values = job_values.values_of(reader, keys, (), {column.name for column in columns})
            members: dict[str, list[int]] = {}
            for key, value in jobs.values_of_field(keys, field).items():
                members.setdefault(value, []).append(key)
        groups = [
            JobGroup(
                value,
                len(own),
                Counter(states[key] for key in own),
                [_group_metric(column, [values[key] for key in own]) for column in columns],
                _term(field, value),
            )
            for value, own in sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))[:GROUPS]
        ]
        return GroupedJobs(field, groups, columns, len(keys), len(matches) > COUNTED)


def _check_grouping(field: str) -> None:
    column = column_of(field)
    if field in GROUPINGS or (column is not None and column.kind in ("parameter", "label")):
        return
    allowed = f"{', '.join(GROUPINGS)}, labels.NAME and params.NAME"
    raise InvalidArgument(Violation("group", f"{quoted(field)} is not a group; groups are {allowed}."))


def _main_metrics(reader: Reader, keys: Sequence[int]) -> list[RunColumn]:
    """A loss and what says how good a job is, of the metrics that most of these jobs have."""
    names = job_values.metric_names(reader, keys, _NAMES)
    rated = [name for name in names if lower_is_better(name) is not None]
    return columns_of([f"{value_filters.METRICS}{name}.best" for name in rated[:2]])


def _group_metric(column: RunColumn, values: Sequence[JobValues]) -> GroupMetric | None:
    numbers = [number for each in values if (number := number_in(each, column)) is not None and math.isfinite(number)]
    if not numbers:
        return None
    lower = column.lower_is_better
    best = None if lower is None else min(numbers) if lower else max(numbers)
    return GroupMetric(len(numbers), fmean(numbers), best)


def _term(field: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field}="{escaped}"' if value else f"-{field}:*"
