"""Continuations: where a run goes on that others of its job came before."""

from collections.abc import Sequence

from trainyard_server.domain.lifecycle.evaluators import is_evaluator
from trainyard_server.domain.lifecycle.lost_work import continuation, resumed_at
from trainyard_server.storage.db.base.models import ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader


def continuation_of(reader: Reader, run: RunRow | None, task: str, first: int) -> str:
    """The sentence about a run of which this replica is the first to report a step; "" where there is nothing to say:
    another one has reported, or no run before has."""
    if run is None or run.number == 1 or run.beside is not None or is_evaluator(task):
        return ""
    if any(replica.first_step is not None for replica in _gang(reader, run)):
        return ""
    before = [_gang(reader, earlier) for earlier in reader.runs(run.job_key) if earlier.number < run.number]
    steps = [[replica.step for replica in gang if replica.step is not None] for gang in before]
    reached = next((max(gang) for gang in reversed(steps) if gang), None)
    if reached is None:
        return ""
    saved = (replica.durable_step for gang in before for replica in gang)
    return continuation(run.number, resumed_at(first, (step for step in saved if step is not None)), reached)


def _gang(reader: Reader, run: RunRow) -> Sequence[ReplicaRow]:
    return [replica for replica in reader.gang(run) if not is_evaluator(replica.task)]
