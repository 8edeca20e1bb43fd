"""Use cases of preemption: runs give way to jobs of a higher band, and leave agents that are drained.

A run whose next checkpoint is due within the time that the site allows for that is stopped once it has announced it, or
at the end of that time; any other at once. Both then have SIGTERM and their grace, as at every stop.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import starmap

from trainyard_protocol.answers.agents import AgentsView
from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.job.keys.scheduling import Band
from trainyard_protocol.states import JobState, Outcome, Reason, RunState
from trainyard_server.capabilities.preemption import store
from trainyard_server.capabilities.preemption.rules import PreemptibleRun, is_due, preemption, starting
from trainyard_server.capabilities.preemption.store import RequestRow
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.snapshots import live_runs
from trainyard_server.domain.durations import duration
from trainyard_server.domain.lifecycle.retries import are_disabled
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.sharing import Sharing
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.services.agents.agents import found_agent, view_of
from trainyard_server.storage.db.base.models import ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, agent_topic, job_topic

_LIVE = (RunState.PREPARING, RunState.RUNNING)


class Preemptions:
    """Call `step` now and then, in one thread of one server."""

    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller

    def step(self) -> None:
        """Ask runs to give way where that lets a job start, and stop those that have saved their work since."""
        queue, agents, jobs = self._controller.seen()
        jobs = [job for job in jobs if job.run is not None]
        if not jobs:
            return
        with self._backend.store.read() as reader:
            asked = store.requests(reader)
        stopping = {job.key for job in jobs if _is_preempted(job)}
        stopping |= {request.job_key for request in asked if request.for_job is not None}
        self._settle(asked, queue, agents, stopping)
        sharing = self._backend.quotas.sharing
        if sharing.preempts and any(sharing.band_of(job) is not Band.BATCH for job in queue):
            requested = {request.job_key for request in asked}
            batch = {job.key for job in jobs if job.key not in requested and _is_preemptible(job, sharing)}
            self._choose(queue, agents, batch, stopping)

    def evict(self, agent: str) -> AgentsView:
        """Give an agent no new run, and ask its runs to leave it, but for those of jobs without retries. Raises
        NotFound, FailedPrecondition as `found_agent` does."""
        backend, now = self._backend, self._backend.clock()
        with backend.store.write() as writer:
            row = found_agent(writer, agent)
            writer.set_draining(row, True)
            view = view_of(writer, row)
            lead = sorted({run.part_of or run.run_id for run in writer.live_runs(row.agent_id) if run.beside is None})
            runs = [run for run in map(writer.run, lead) if run is not None and _may_stop(writer, run)]
            for run in runs:
                reason = f"Moved off the agent {view.agents[0].name}, which is drained."
                self._ask(writer, run, reason, now, for_agent=row.agent_id)
            topics = [agent_topic(part.agent_id) for run in runs for part in writer.parts(run)]
        backend.notifier.publish(AGENTS_TOPIC, agent_topic(row.agent_id), *topics)
        backend.notifier.publish(*(job_topic(run.job_key) for run in runs))
        self._controller.write_log(*(run.job_key for run in runs))
        self._controller.schedule()
        return view

    def _settle(
        self,
        asked: Iterable[RequestRow],
        queue: Sequence[JobSnapshot],
        agents: Sequence[AgentSnapshot],
        stopping: Collection[int],
    ) -> None:
        """Stop the runs that have saved their work, or had the time to, and let those go on that nobody waits for."""
        backend, now = self._backend, self._backend.clock()
        draining = {agent.agent_id for agent in agents if agent.draining}
        starts = frozenset[int]()
        if any(request.for_job is not None for request in asked):
            starts = starting(queue, agents, stopping, now, backend.quotas, backend.shared_dirs)
        for request in asked:
            is_wanted = request.for_agent in draining if request.for_job is None else request.for_job in starts
            with backend.store.live() as reader:
                run = reader.run(request.run_id)
                is_live = run is not None and run.state in _LIVE
                is_due = run is None or now >= request.until or _has_saved(reader.gang(run), request.saved)
            if is_live and is_wanted and not is_due:
                continue
            with backend.store.write() as writer:
                run = writer.run(request.run_id)
                store.remove(writer, request.run_id)
                if run is None or run.state not in _LIVE:
                    continue
                if is_wanted:
                    _stop(writer, run, request.reason, _reason(request), now)
                else:
                    message = f"Run {run.number} goes on: its room is not needed any more."
                    writer.add_event(run.job_key, Event("preemption", message, run.number), now)
                topics = [agent_topic(part.agent_id) for part in writer.parts(run)]
            backend.notifier.publish(job_topic(request.job_key), *topics)
            self._controller.write_log(request.job_key)

    def _choose(
        self,
        queue: Sequence[JobSnapshot],
        agents: Sequence[AgentSnapshot],
        batch: Collection[int],
        stopping: Collection[int],
    ) -> None:
        """Ask the runs to give way by which a job of a higher band gets room, if any do."""
        backend, now = self._backend, self._backend.clock()
        limits = backend.quotas
        with backend.store.read() as reader:
            preemptible = _runs(reader, batch, limits.sharing, now)
        chosen = preemption(queue, agents, preemptible, stopping, now, limits, backend.shared_dirs)
        if chosen is None:
            return
        job = chosen.job
        band = limits.sharing.band_of(job).lower()
        reason = f"Preempted for the job {job.job_id} of {job.project}, of the band {band}."
        for number, victim in enumerate(chosen.victims):
            with backend.store.write() as writer:
                run = writer.live_run(victim.key)
                if run is None or not _may_stop(writer, run):
                    return  # it has changed since it was read: the next step decides anew
                self._ask(writer, run, reason, now, for_job=job.key)
                topics = [agent_topic(part.agent_id) for part in writer.parts(run)]
                if not number:
                    runs = "a run gives" if len(chosen.victims) == 1 else f"{len(chosen.victims)} runs give"
                    writer.add_event(
                        job.key, Event("preemption", f"Job {job.job_id} gets room: {runs} way to it."), now
                    )
            backend.notifier.publish(job_topic(victim.key), job_topic(job.key), *topics)
            self._controller.write_log(victim.key, job.key)

    def _ask(
        self,
        writer: Writer,
        run: RunRow,
        reason: str,
        now: datetime,
        *,
        for_job: int | None = None,
        for_agent: str = "",
    ) -> None:
        """Ask a run to give way once it has saved; stop it at once where that is not likely to be soon."""
        wait, gang = self._backend.quotas.sharing.checkpoint_wait, writer.gang(run)
        request = RequestRow(
            run_id=run.run_id,
            job_key=run.job_key,
            until=now + wait,
            saved=max(_saved(gang), default=0),
            for_job=for_job,
            for_agent=for_agent,
            reason=reason,
        )
        if run.state is RunState.PREPARING or not _saves_soon(gang, now, wait):
            store.remove(writer, run.run_id)
            _stop(writer, run, reason, _reason(request), now)
            return
        store.add(writer, request)
        within = duration(wait.total_seconds())
        message = f"Run {run.number} is stopped once it has saved a checkpoint, in {within} at the latest. {reason}"
        writer.add_event(run.job_key, Event("preemption", message, run.number), now)


def _reason(request: RequestRow) -> Reason:
    return Reason.DRAINED if request.for_job is None else Reason.PREEMPTED


def _stop(writer: Writer, run: RunRow, message: str, reason: Reason, now: datetime) -> None:
    verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message=message, replica=PRIMARY.name, exit_code=1)
    writer.move_run(run, RunState.STOPPING, now, message, verdict=verdict.model_dump(mode="json"))


def _may_stop(reader: Reader, run: RunRow) -> bool:
    """Whether a run may be stopped for others: another one follows then."""
    job = reader.job_by_key(run.job_key)
    is_live = run.state in _LIVE and job.state in (JobState.PREPARING, JobState.RUNNING)
    return is_live and not are_disabled(reader.job_input(job)[0])


def _is_preemptible(job: JobSnapshot, sharing: Sharing) -> bool:
    is_live = job.run is not None and job.run.state in _LIVE and job.state in (JobState.PREPARING, JobState.RUNNING)
    allowed = sharing.of(job.project).preemptible and sharing.band_of(job) is Band.BATCH
    return is_live and allowed and not are_disabled(job.training_input)


def _is_preempted(job: JobSnapshot) -> bool:
    verdict = job.run.stalled if job.run is not None else None
    return verdict is not None and verdict.reason is Reason.PREEMPTED


def _runs(reader: Reader, keys: Collection[int], sharing: Sharing, now: datetime) -> Mapping[int, PreemptibleRun]:
    """The runs that have lasted long enough to be stopped, by their jobs."""
    runs = {}
    for run, replicas in live_runs(reader) if keys else ():
        is_lead = run.beside is None and run.part_of is None
        if run.job_key not in keys or not is_lead or run.state not in _LIVE:
            continue
        gang = replicas if run.agents == 1 else reader.gang(run)
        began = min((replica.started_at for replica in gang if replica.started_at), default=run.created_at)
        if now - began >= sharing.min_run:
            is_waited_for = run.state is RunState.RUNNING and _saves_soon(gang, now, sharing.checkpoint_wait)
            at_risk = 0.0 if is_waited_for else _at_risk(run, gang, began, now)
            runs[run.job_key] = PreemptibleRun(run.job_key, at_risk)
    return runs


def _at_risk(run: RunRow, replicas: Sequence[ReplicaRow], began: datetime, now: datetime) -> float:
    """The GPU-seconds since the run's last checkpoint; without GPUs a tenth of the CPU-seconds."""
    if run.state is RunState.PREPARING:
        return 0.0
    saved = max((replica.durable_at for replica in replicas if replica.durable_at is not None), default=began)
    gpus = sum(len(replica.gpus) or replica.accelerator_count for replica in replicas)
    cpus = sum(len(replica.cpus) or replica.vcpus for replica in replicas)
    return (now - max(saved, began)).total_seconds() * (gpus or cpus / 10)


def _saved(replicas: Iterable[ReplicaRow]) -> Sequence[int]:
    """The newest checkpoints of the replicas that announce any."""
    return [replica.durable_step for replica in replicas if replica.durable_step is not None]


def _saves_soon(replicas: Iterable[ReplicaRow], now: datetime, wait: timedelta) -> bool:
    """Whether all replicas that announce checkpoints, and there are some, are likely to announce one within `wait`."""
    times = [(replica.durable_at, replica) for replica in replicas if replica.durable_at is not None]

    def is_due_of(saved_at: datetime, replica: ReplicaRow) -> bool:
        first_s = (saved_at - (replica.started_at or saved_at)).total_seconds()
        every_s = first_s if replica.durable_every_s is None else replica.durable_every_s
        return is_due(saved_at, timedelta(seconds=every_s), now, wait)

    return bool(times) and all(starmap(is_due_of, times))


def _has_saved(replicas: Iterable[ReplicaRow], step: int) -> bool:
    """Whether every replica that announces checkpoints has announced one above this step."""
    return min(_saved(replicas), default=step) > step
