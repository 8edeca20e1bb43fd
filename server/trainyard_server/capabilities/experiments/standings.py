"""Standings: how a job's result compares with those of the jobs that ran the same program."""

from collections.abc import Mapping
from typing import NamedTuple

from trainyard_protocol.job.config.programs import program_of
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_server.context import Backend
from trainyard_server.domain.metrics.summary import rated
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.db.tables.job_values import JobValues

NEWEST = 1000
"""Jobs of a project that a result is compared with, the newest."""

_MOST_PARAMETERS = 12


class DifferingParameter(NamedTuple):
    """A parameter of the job and of the best one; None where a job does not have it."""

    name: str
    own: str | None
    best: str | None


class Standing(NamedTuple):
    """The rank of a job, from 1, among `of` jobs of its project with the same program, by the best value of a metric.

    `best_job` has the best value; `differing` are the parameters in which the two differ."""

    metric: str
    value: float
    rank: int
    of: int
    best_job: str
    best_value: float
    differing: tuple[DifferingParameter, ...]


class OwnResult(NamedTuple):
    """A job's parameters, the metric that it is judged by ("" without one whose name says what is better), and how it
    compares; None where no other job ran the same program."""

    parameters: Mapping[str, str]
    metric: str
    standing: Standing | None


class Standings:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def result(self, project: str, job_id: str) -> OwnResult:
        """Raises NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            own = job_values.values_of(reader, [job.key], None, None)[job.key]
            metric = next(iter(rated(own.metrics)), "")
            return OwnResult(own.parameters, metric, _standing(reader, job, own, metric) if metric else None)


def _standing(reader: Reader, job: JobRow, own: JobValues, metric: str) -> Standing | None:
    value, program = own.metrics[metric].best(metric), program_of(job.training_input)
    others = [
        result
        for result in job_values.results_of(reader, job.project, metric, NEWEST)
        if program_of(result.training_input) == program and result.key != job.key
    ]
    if value is None or not others:
        return None
    sign = 1 if lower_is_better(metric) else -1
    best = min(others, key=lambda result: sign * result.best)
    better = sum(sign * result.best < sign * value for result in others)
    if not better:
        return Standing(metric, value, 1, len(others) + 1, job.job_id, value, ())
    parameters = job_values.values_of(reader, [best.key], None, ())[best.key].parameters
    differing = _differing(own.parameters, parameters)
    return Standing(metric, value, better + 1, len(others) + 1, best.job_id, best.best, differing)


def _differing(own: Mapping[str, str], best: Mapping[str, str]) -> tuple[DifferingParameter, ...]:
    names = sorted(name for name in {*own, *best} if own.get(name) != best.get(name))
    return tuple(DifferingParameter(name, own.get(name), best.get(name)) for name in names[:_MOST_PARAMETERS])
