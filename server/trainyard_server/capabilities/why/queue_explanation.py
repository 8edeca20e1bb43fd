"""Queue explanation: what a job needs, what is free, the holders of the rest, the jobs ahead, and suggestions."""

from collections.abc import Mapping, Set
from datetime import datetime, timedelta
from itertools import islice

from trainyard_protocol.answers.why import HolderView, QueuedAheadView, QueueExplanationView
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.capabilities.why.suggestions import Situation, suggestions
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import agents_now, awaited_agents, job_snapshot, queued_snapshots
from trainyard_server.domain.access.permissions import Visible, is_visible
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang, describe, needs
from trainyard_server.domain.scheduling.scheduler import Planner, Waiting, in_order, plan
from trainyard_server.domain.scheduling.spreading import listed
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies

_MAX_CHANGES = 3
_MAX_AHEAD = 20


class QueueExplanation:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def explain(self, visible: Visible, project: str, job_id: str) -> QueueExplanationView:
        """The reason why the job waits; of a job that does not wait, its present state. Jobs of projects that are not
        visible are counted, not named. Raises NotFound."""
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            row = _waiting_job(reader, known_job(reader, project, job_id))
            if row.is_held:
                return _view(row, needs=needs(reader.job_input(row)[1]), summary=f"It {row.waiting}.")
            if row.state is not JobState.QUEUED or studies.kind_of(reader, row.key).is_study:
                state, silent = _present_state(reader, row), awaited_agents(reader, self._backend, row, silent=True)
                return _view(row, summary=f"{state} It waits {silent}." if silent else state)
            rows = {job.key: job for job in reader.queued()}
            before = _last_run(reader, row)
            queue = queued_snapshots(reader, rows.values())
            agents = agents_now(reader, self._backend)
            gangs = [(agent, gang) for agent in agents for gang in agent.gangs]
            for _, gang in gangs:
                rows[gang.key] = reader.job_by_key(gang.key)
            shown = {key for key, job in rows.items() if is_visible(job.project, visible)}
            holders = [_holder(reader, rows[gang.key], agent, gang) for agent, gang in gangs if gang.key in shown]
        job = next((other for other in queue if other.key == row.key), None)
        if job is None:
            return _view(row, summary="It cannot be read, so it is not scheduled. The server's log has the error.")
        quotas, shared = self._backend.quotas, self._backend.shared_dirs
        situation = Situation(tuple(queue), tuple(agents), now, quotas, self._backend.catalog, shared)
        result = plan(queue, agents, now, quotas, shared)
        waiting = result.waiting.get(job.key)
        if waiting is None:
            return _view(row, needs=needs(job.gang), summary="It starts now.")
        if waiting.kind == "backoff":
            summary = f"It backs off: {waiting.reason}. {before}".rstrip()
            return _view(row, needs=needs(job.gang), summary=summary)

        def name_of(key: int) -> str:
            row = rows[key]
            if key not in shown:
                return "a job of another project"
            return row.job_id if row.project == project else f"{row.job_id} of project {row.project}"

        reason = f"It waits: {waiting.reason}."
        helpful = tuple(islice(suggestions(job, situation, name_of), _MAX_CHANGES))
        planned = Planner(agents, now, quotas, shared).unscaled(job)
        agent_views = candidates(planned, situation.agents, situation.limits, situation.shared)
        possible = {fit.agent for fit in agent_views if fit.home}
        hidden = [agent.name for agent, gang in gangs if gang.key not in shown]
        return _view(
            row,
            needs=needs(job.gang),
            summary=" ".join(filter(None, (reason, quotas.sharing.explanation(job, now), before))),
            kind=waiting.kind,
            position=waiting.position,
            ahead=_ahead(in_order(queue, quotas.sharing, now), rows, result.waiting, waiting.position, shown),
            agents=agent_views,
            holders=tuple(
                other
                for other in holders
                if (other.project == project if waiting.kind == "quota" else other.agent in possible)
            ),
            hidden_holders=0 if waiting.kind == "quota" else sum(agent in possible for agent in hidden),
            changes=helpful,
            nothing="" if helpful else _nothing(waiting, job),
        )


def _view(row: JobRow, **given: object) -> QueueExplanationView:
    return QueueExplanationView.model_validate(
        {"project": row.project, "job_id": row.job_id, "state": row.state, "priority": row.priority, **given}
    )


def _waiting_job(reader: Reader, job: JobRow) -> JobRow:
    """The job that waits: of a study its first trial that does."""
    trials = studies.trial_jobs(reader, job.key)
    return next((trial for trial in trials if trial.state is JobState.QUEUED), job)


def _last_run(reader: Reader, row: JobRow) -> str:
    """The end of the job's last run, with the words of its engine, in a sentence; "" before its first."""
    for run in reversed(reader.runs(row.key)):
        if run.verdict is not None:
            retry = str(run.verdict.get("retry") or "")
            return f"Its last run, {run.number}, ended: {run.verdict['message']} {retry}".rstrip()
    return ""


def _present_state(reader: Reader, row: JobRow) -> str:
    """The state of a job that does not wait, in a sentence."""
    if studies.kind_of(reader, row.key).is_study and row.state not in FINAL_JOB_STATES:
        counts = studies.counts(reader, [row.key]).get(row.key, {})
        trials = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        return f"It does not wait: it is {row.state}. Its trials: {trials or 'none yet'}."
    run = reader.live_run(row.key)
    parts = reader.parts(run) if run is not None else ()
    agents = [agent for part in parts if (agent := reader.agent(part.agent_id)) is not None]
    on = f" on agent {listed([str(agent.info['name']) for agent in agents])}" if agents else ""
    match row.state:
        case JobState.PREPARING:
            doing = next((part.activity for part in parts if part.activity), "")
            activity = f": {doing}" if doing else ""
            since = f" since {_second(run.created_at)}" if run is not None else ""
            return f"It does not wait: it is being prepared{on}{since}{activity}."
        case JobState.RUNNING:
            since = f" since {_second(row.started_at)}" if row.started_at is not None else ""
            return f"It does not wait: it runs{on}{since}."
        case JobState.CANCELLING:
            return f"It does not wait: it is being cancelled. {row.stop_message}"
        case JobState.SUCCEEDED:
            ended = f" at {_second(row.ended_at)}" if row.ended_at is not None else ""
            return f"It does not wait: it succeeded{ended}."
        case _:
            first = row.error_message.partition("\n")[0]
            retry = str((row.verdict or {}).get("retry") or "")
            return " ".join(filter(None, (f"It does not wait: it ended as {row.state}.", first, retry)))


def _second(time: datetime) -> str:
    return rfc3339(time.replace(microsecond=0))


def _holder(reader: Reader, row: JobRow, agent: AgentSnapshot, gang: Gang) -> HolderView:
    job = job_snapshot(reader, row.key)
    running = row.state is JobState.RUNNING and row.started_at is not None
    return HolderView(
        project=row.project,
        job_id=row.job_id,
        state=row.state,
        priority=row.priority,
        agent=agent.name,
        holds=describe(gang.vcpus, gang.memory_bytes, gang.accelerators(agent.capacity)),
        running_since=row.started_at if running else None,
        ends_by=_limit(row.started_at, job.max_running_s) if running else None,
        left_over=gang.ended,
    )


def _limit(since: datetime | None, seconds: float) -> datetime | None:
    try:
        return None if since is None else since + timedelta(seconds=seconds)
    except OverflowError:
        return None  # beyond the last date


def _ahead(
    queue: list[JobSnapshot], rows: dict[int, JobRow], waiting: Mapping[int, Waiting], position: int, shown: Set[int]
) -> tuple[QueuedAheadView, ...]:
    first = [waiting_job for waiting_job in queue if waiting_job.key in waiting][: position - 1]
    return tuple(
        QueuedAheadView(
            project=rows[waiting_job.key].project,
            job_id=rows[waiting_job.key].job_id,
            priority=waiting_job.priority,
            position=waiting[waiting_job.key].position,
            needs=needs(waiting_job.gang),
            waiting=waiting[waiting_job.key].reason,
        )
        for waiting_job in [waiting_job for waiting_job in first if waiting_job.key in shown][:_MAX_AHEAD]
    )


def _nothing(waiting: Waiting, job: JobSnapshot) -> str:
    match waiting.kind:
        case "apart":
            return "Nothing short of an open way between these machines (their --address and --ports)."
        case "no-agent":
            return "Nothing short of an agent that it can run on (on one machine: `trainyard up`)."
        case "no-engine":
            return "Nothing short of a container engine that answers: start Docker on an agent's machine."
        case "no-disk":
            return "Free space on that disk, or add an agent. The job then starts automatically."
        case "no-mount":
            return "Nothing short of an agent that has its mounts for its project (`trainyard agents list`)."
        case "never":
            also = " and its mounts" if job.needs.mounts else ""
            return f"Nothing short of an agent that has {needs(job.gang)}{also}."
        case "quota":
            return "Nothing short of a larger quota and more room at once."
        case _:
            return "Nothing short of several of these at once: other jobs ended, fewer replicas, smaller machines."
