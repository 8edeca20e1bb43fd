"""Queue explanation: what a job needs, what is free, the holders of the rest, the jobs ahead, and suggestions."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice

from trainyard_protocol.config.fields import rfc3339
from trainyard_protocol.states import JobState
from trainyard_protocol.views import (
    HolderView,
    QueuedAheadView,
    QueueExplanationView,
)
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import agents_now, job_snapshot, queued_snapshots
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang, by_type, describe, needs
from trainyard_server.domain.scheduling.scheduler import Waiting, in_order, plan
from trainyard_server.domain.scheduling.suggestions import Situation, suggestions
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.services.jobs import known_job
from trainyard_server.storage.db.models import JobRow
from trainyard_server.storage.db.reader import Reader

_MAX_CHANGES = 3
_MAX_AHEAD = 20


class QueueExplanation:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def explain(self, project: str, job_id: str) -> QueueExplanationView:
        """The reason why the job waits; of a job that does not wait, its present state. Raises NotFound."""
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            row = known_job(reader, project, job_id)
            if row.state is not JobState.QUEUED:
                return _view(row, summary=_present_state(reader, row))
            rows = {job.key: job for job in reader.queued()}
            queue = queued_snapshots(reader, rows.values())
            agents = agents_now(reader, self._backend)
            gangs = [(agent, gang) for agent in agents for gang in agent.gangs]
            for _, gang in gangs:
                rows[gang.key] = reader.job_by_key(gang.key)
            holders = [_holder(reader, rows[gang.key], agent, gang) for agent, gang in gangs]
        job = next((one for one in queue if one.key == row.key), None)
        if job is None:
            return _view(
                row, summary="It cannot be read, so it is not scheduled. The server's log has the error."
            )
        situation = Situation(tuple(queue), tuple(agents), now, self._backend.quotas, self._backend.catalog)
        result = plan(queue, agents, now, self._backend.quotas)
        waiting = result.waiting.get(job.key)
        if waiting is None:
            return _view(row, needs=needs(job.gang), summary="It starts now.")
        if waiting.kind == "backoff":
            return _view(
                row, needs=needs(job.gang), summary=f"It backs off after a failed run: {waiting.reason}."
            )

        def name_of(key: int) -> str:
            one = rows[key]
            return one.job_id if one.project == project else f"{one.job_id} of project {one.project}"

        helpful = tuple(islice(suggestions(job, situation, name_of), _MAX_CHANGES))
        agent_views = candidates(job, situation.agents, situation.limits)
        possible = {fit.agent for fit in agent_views if fit.home}
        return _view(
            row,
            needs=needs(job.gang),
            summary=f"It waits: {waiting.reason}.",
            kind=waiting.kind,
            position=waiting.position,
            ahead=_ahead(queue, rows, result.waiting, waiting.position),
            agents=agent_views,
            holders=tuple(
                one
                for one in holders
                if (one.project == project if waiting.kind == "quota" else one.agent in possible)
            ),
            changes=helpful,
            nothing="" if helpful else _nothing(waiting, job),
        )


def _view(row: JobRow, **given: object) -> QueueExplanationView:
    return QueueExplanationView.model_validate(
        {"project": row.project, "job_id": row.job_id, "state": row.state, "priority": row.priority, **given}
    )


def _present_state(reader: Reader, row: JobRow) -> str:
    """The state of a job that does not wait, in a sentence."""
    run = reader.live_run(row.key)
    agent = reader.agent(run.agent_id) if run is not None else None
    on = f" on agent {agent.info['name']}" if agent is not None else ""
    match row.state:
        case JobState.PREPARING:
            activity = f": {run.activity}" if run is not None and run.activity else ""
            since = f" since {rfc3339(run.created_at)}" if run is not None else ""
            return f"It does not wait: it is being prepared{on}{since}{activity}."
        case JobState.RUNNING:
            since = f" since {rfc3339(row.started_at)}" if row.started_at is not None else ""
            return f"It does not wait: it runs{on}{since}."
        case JobState.CANCELLING:
            return f"It does not wait: it is being cancelled. {row.stop_message}"
        case JobState.SUCCEEDED:
            ended = f" at {rfc3339(row.ended_at)}" if row.ended_at is not None else ""
            return f"It does not wait: it has succeeded{ended}."
        case _:
            first = row.error_message.partition("\n")[0]
            return f"It does not wait: it ended as {row.state}. {first}".rstrip()


def _holder(reader: Reader, row: JobRow, agent: AgentSnapshot, gang: Gang) -> HolderView:
    job = job_snapshot(reader, row.key)
    running = row.state is JobState.RUNNING and row.started_at is not None
    return HolderView(
        project=row.project,
        job_id=row.job_id,
        state=row.state,
        priority=row.priority,
        agent=agent.name,
        holds=_amount(gang, agent),
        running_since=row.started_at if running else None,
        ends_by=_limit(row.started_at, job.max_running_s) if running else None,
        left_over=gang.ended,
    )


def _limit(since: datetime | None, seconds: float) -> datetime | None:
    try:
        return None if since is None else since + timedelta(seconds=seconds)
    except OverflowError:
        return None  # beyond the last date


def _amount(gang: Gang, agent: AgentSnapshot) -> str:
    gpus = by_type(gpu for gpu in agent.capacity.gpus if gpu.id in gang.gpus)
    return describe(len(gang.cpus), gang.memory_bytes, gpus)


def _ahead(
    queue: list[JobSnapshot], rows: dict[int, JobRow], waiting: Mapping[int, Waiting], position: int
) -> tuple[QueuedAheadView, ...]:
    first = [one for one in in_order(queue) if one.key in waiting][: position - 1]
    return tuple(
        QueuedAheadView(
            project=rows[one.key].project,
            job_id=rows[one.key].job_id,
            priority=one.priority,
            position=waiting[one.key].position,
            needs=needs(one.gang),
            waiting=waiting[one.key].reason,
        )
        for one in first[:_MAX_AHEAD]
    )


def _nothing(waiting: Waiting, job: JobSnapshot) -> str:
    match waiting.kind:
        case "no-agent":
            return "Nothing short of an agent that it can run on (on one machine: `trainyard up`)."
        case "no-engine":
            return "Nothing short of a container engine that answers: start Docker on an agent's machine."
        case "never":
            return f"Nothing short of an agent that has {needs(job.gang)}."
        case "quota":
            return "Nothing short of a larger quota and more room at once."
        case _:
            return "Nothing short of several of these at once: other jobs ended, fewer replicas, smaller machines."
