"""A day of a large installation in virtual time.

The scheduler's plan and the agents' `reconcile` are the service's own code. What they and all other calls cost the
server comes from `Costs`: cores that serve calls in their order, and a lock that lets one write transaction run at a
time. An agent has one sync at a time, so it asks less of a slow server; one that is not heard for `SILENT_S` gets no
work.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from benchmarks.scale.bed import agent_info
from benchmarks.scale.costs import Cost, Costs
from benchmarks.scale.measures import queued_job
from benchmarks.scale.workload import DrawnJob, Load
from trainyard_agent.control.reconcile import LocalRun, Prepare, Remove, Start, Stop, reconcile
from trainyard_agent.staging.base import Staging
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.wire.sync import RunOrder
from trainyard_server.control.queue_plan import QueuePlan
from trainyard_server.control.workload import QueueChanges
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.scheduling.scheduler import Placement, Waiting
from trainyard_server.domain.snapshots import JobSnapshot

# The defaults of the service.
HOLD_S, SILENT_S, LEASE_S, TICK_S = 20.0, 30.0, 600.0, 1.0
_LONG_PLAN_S, _PLAN_REST, _TICK_REST, _NOTES_AT_ONCE = 0.1, 3.0, 2.0, 500

_START_S = 0.5
_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
_LIMITS = Quotas()
_INPUT = TrainingInput()


class CountedPlan(QueuePlan):
    """Plan of the queue that tells whether the last update planned everything."""

    was_whole = True

    def _is_over(self, changes: QueueChanges, now: datetime) -> bool:
        self.was_whole = super()._is_over(changes, now)
        return self.was_whole


@dataclass(slots=True)
class Server:
    """Cores that serve calls in their order, and the lock of write transactions. `busy_s` is by the kind of call."""

    cores: int
    commit_ms: float
    free: list[float] = field(default_factory=list)
    lock_free: float = 0.0
    lock_s: float = 0.0
    writes: float = 0.0
    busy_s: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.free = [0.0] * self.cores

    def serve(self, kind: str, at: float, cost: Cost) -> float:
        """The time at which a call that arrives now is answered."""
        began = max(at, heapq.heappop(self.free))
        done = began + cost.cpu_ms / 1000
        heapq.heappush(self.free, done)
        self.busy_s[kind] += cost.cpu_ms / 1000  # type: ignore[assignment]
        if not cost.writes:
            return done
        holds_s = (cost.held_ms + cost.writes * self.commit_ms) / 1000
        self.lock_free = max(began, self.lock_free) + holds_s
        self.lock_s += holds_s
        self.writes += cost.writes
        return max(done, self.lock_free)


@dataclass(slots=True)
class _Run:
    job: JobSnapshot
    drawn: DrawnJob
    agent: int
    gang: Gang
    order: RunOrder
    ends_at: float = float("inf")
    ended: bool = False
    """On the server."""


@dataclass(slots=True)
class _Agent:
    """`orders` are the server's; `running` and `staging` what the machine has."""

    last_contact: float
    orders: dict[str, RunOrder] = field(default_factory=dict)
    running: dict[str, LocalRun] = field(default_factory=dict)
    staging: dict[str, Staging] = field(default_factory=dict)
    is_away: bool = False
    has_change: bool = False
    is_syncing: bool = False
    held: int = 0
    """Number of the sync that is held; a later one replaces it."""


@dataclass(slots=True)
class Result:
    """Outcome of a simulation. Seconds; `waits` are from the submission to the placement."""

    seconds: float
    cores: int
    agents: int
    arrived: int = 0
    ended: int = 0
    queued: int = 0
    running: int = 0
    most_queued: int = 0
    syncs: int = 0
    plans: int = 0
    silenced: int = 0
    lost: int = 0
    writes: float = 0.0
    lock_s: float = 0.0
    busy_s: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)

    @property
    def utilization(self) -> float:
        return sum(self.busy_s.values()) / self.seconds / self.cores

    @property
    def lock_use(self) -> float:
        return self.lock_s / self.seconds


class Simulation:
    def __init__(self, load: Load, costs: Costs, cores: int = 1, clock_s: float = 14 * 3600.0) -> None:
        """`clock_s`: the time of the day at which it begins, with the jobs that run then."""
        self._load, self._costs, self._began = load, costs, clock_s
        self._server = Server(cores, costs.commit_ms)
        self._server.free = [clock_s] * cores
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._keys = count(1)
        self._plan, self._changes = CountedPlan(), QueueChanges({}, other=True)
        self._plan_after = 0.0
        self._queue: dict[int, JobSnapshot] = {}
        self._drawn: dict[int, DrawnJob] = {}
        self._runs: dict[str, _Run] = {}
        self._noted: dict[int, tuple[str, str, int]] = {}
        self._notes: dict[int, Waiting] = {}
        self._tick_due = False
        self._snapshots: list[AgentSnapshot] = []
        self._agents: list[_Agent] = []
        self._numbers_of: dict[str, int] = {}
        self.result = Result(0.0, cores, load.agents)
        self._fill()

    def run(self, seconds: float) -> Result:
        """Simulate so many seconds, once."""
        end = self._began + seconds
        for agent in range(self._load.agents):  # their syncs are spread over a hold
            self._at(self._began + HOLD_S * agent / self._load.agents, self._syncing(agent))
        jobs = self._load.jobs(self._began, end)
        self._arrive_next(jobs)
        for at, agent, down_s in self._load.failures(self._began, end):
            self._at(at, self._failing(agent))
            self._at(at + down_s, self._returning(agent))
        self._at(self._began, self._tick)
        while self._events and self._events[0][0] <= end:
            at, _, event = heapq.heappop(self._events)
            event(at)
        result, server = self.result, self._server
        result.seconds, result.busy_s = seconds, server.busy_s
        result.writes, result.lock_s = server.writes, server.lock_s
        result.queued, result.running = len(self._queue), len(self._runs)
        return result

    def _at(self, at: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def _now(self, at: float) -> datetime:
        return _MIDNIGHT + timedelta(seconds=at)

    # The beginning: machines with the jobs that run at that time.

    def _fill(self) -> None:
        load, drawn = self._load, self._load.running(self._began)
        target = min(0.97, load.offered(self._began))
        for number in range(load.agents):
            info = agent_info(number)
            self._agents.append(_Agent(last_contact=self._began))
            self._numbers_of[info.agent_id] = number
            snapshot = AgentSnapshot(info.agent_id, info.name, info.capacity, "strict", False)
            self._snapshots.append(snapshot)
            free, wanted = list(info.capacity.cpus), target * len(info.capacity.cpus)
            while len(info.capacity.cpus) - len(free) < wanted:
                job = next(drawn)
                if job.cpus > len(free):
                    break
                mine, free = free[: job.cpus], free[job.cpus :]
                self._begin(job, number, frozenset(mine))

    def _begin(self, drawn: DrawnJob, agent: int, cpus: frozenset[int]) -> None:
        key = next(self._keys)
        self.result.arrived += 1
        job = queued_job(key, drawn.project, drawn.gang, self._now(drawn.at), drawn.priority)
        run = self._place(job, drawn, agent, cpus)
        self._agents[agent].running[run.order.run_id] = LocalRun(alive=True, grace_s=30.0)
        run.ends_at = self._began + drawn.duration_s
        self._at(run.ends_at, self._exiting(run))

    def _place(self, job: JobSnapshot, drawn: DrawnJob, agent: int, cpus: frozenset[int]) -> _Run:
        memory = sum(replica.resources.memory_bytes for replica in job.gang)
        gang = Gang(job.key, job.project, cpus, memory_bytes=memory)
        order = RunOrder.model_construct(
            run_id=f"{next(self._numbers)}", number=1, target="run", project=job.project, job_id=job.job_id,
            training_input=_INPUT, replicas=(), grace_s=30.0, unreadable="",
        )  # fmt: skip
        run = self._runs[order.run_id] = _Run(job, drawn, agent, gang, order)
        self._agents[agent].orders[order.run_id] = order
        self._change(agent, gangs=(*self._snapshots[agent].gangs, gang))
        return run

    def _change(self, agent: int, **values: object) -> None:
        self._snapshots[agent] = replace(self._snapshots[agent], **values)  # type: ignore[arg-type]
        self._changes.other = True

    # Submissions, ticks and plans.

    def _arrive_next(self, jobs: Iterable[DrawnJob]) -> None:
        jobs = iter(jobs)
        drawn = next(jobs, None)
        if drawn is None:
            return

        def arrive(at: float) -> None:
            key = next(self._keys)
            self.result.arrived += 1
            self._drawn[key] = drawn
            job = queued_job(key, drawn.project, drawn.gang, self._now(drawn.at), drawn.priority)
            self._queue[key] = self._changes.added[key] = job
            self._noted[key] = ("", "", 0)
            self._at(self._server.serve("submissions", at, self._costs.submit), self._wake)
            self._arrive_next(jobs)

        self._at(drawn.at, arrive)

    def _wake(self, at: float) -> None:
        """Tick now, unless the pause after the last tick is not over."""
        if self._tick_due:
            self._tick_due = False
            self._tick(at)

    def _tick(self, at: float) -> None:
        for number, agent in enumerate(self._agents):
            silent_s = at - agent.last_contact
            if (silent_s <= SILENT_S) is not self._snapshots[number].alive:
                self._change(number, alive=silent_s <= SILENT_S)
                self.result.silenced += silent_s > SILENT_S
            if silent_s > LEASE_S and agent.orders:
                self._lose(number)
        done = self._server.serve("rounds", at, Cost(self._costs.round_ms))
        done = self._schedule(done)
        self.result.ticks.append(done - at)
        rested = done + min(TICK_S, _TICK_REST * (done - at))
        number = len(self.result.ticks)

        def listen(_: float) -> None:
            self._tick_due = True

        def tick_again(later: float) -> None:
            if len(self.result.ticks) == number:
                self._tick_due = False
                self._tick(later)

        self._at(rested, listen)
        self._at(rested + TICK_S, tick_again)

    def _schedule(self, at: float) -> float:
        """Plan if something has changed; returns when that is done."""
        if at >= self._plan_after:
            changes, self._changes = self._changes, QueueChanges({}, other=False)
            self._plan.was_whole = True
            queue = list(self._queue.values())
            plan = self._plan.update(queue, self._snapshots, changes, self._now(at), _LIMITS)
            if plan is not None:
                self.result.plans += 1
                ms = self._costs.planning(len(queue)) if self._plan.was_whole else self._costs.plan_queue_ms
                at = self._server.serve("plans", at, Cost(ms))
                if ms / 1000 > _LONG_PLAN_S:
                    self._plan_after = at + _PLAN_REST * ms / 1000
                for placement in plan.placements:
                    at = self._server.serve("starts", at, self._costs.start)
                    self._started(placement, at)
                for key, why in plan.waiting.items():
                    if (why.kind, why.reason, why.position) != self._noted.get(key):
                        self._notes[key] = why
        written = [(key, self._notes.pop(key)) for key in list(self._notes)[:_NOTES_AT_ONCE]]
        self._noted.update({k: (w.kind, w.reason, w.position) for k, w in written if k in self._queue})
        if written:
            ms = len(written) * self._costs.note_ms
            at = self._server.serve("reasons", at, Cost(ms, 1.0, ms))
        self.result.most_queued = max(self.result.most_queued, len(self._queue))
        return at

    def _started(self, placement: Placement, at: float) -> None:
        job = self._queue.pop(placement.key)
        self._noted.pop(job.key, None)
        self._notes.pop(job.key, None)
        drawn, agent = self._drawn.pop(job.key), self._numbers_of[placement.agent_id]
        cpus = frozenset(cpu for one in placement.assignments for cpu in one.cpus)
        self._place(job, drawn, agent, cpus)
        self.result.waits.append(at - drawn.at)
        self._notify(agent, at)

    # Agents.

    def _notify(self, number: int, at: float) -> None:
        """Something has changed, on the server or there: the held sync ends, or the next one has it."""
        agent = self._agents[number]
        agent.has_change = True
        if not agent.is_syncing:
            self._at(at, self._syncing(number))

    def _syncing(self, number: int) -> Callable[[float], None]:
        agent = self._agents[number]

        def sync(at: float) -> None:
            if agent.is_away or agent.is_syncing:
                return
            agent.is_syncing, agent.has_change = True, False
            self.result.syncs += 1
            done = self._server.serve("syncs", at, self._costs.syncing(len(agent.orders)))
            self.result.answers.append(done - at)
            self._at(done, answered)

        def answered(at: float) -> None:
            agent.is_syncing, agent.last_contact = False, at
            agent.held += 1
            held = agent.held
            if self._act(number, at) or agent.has_change:
                sync(at)
            else:
                self._at(at + HOLD_S, lambda later: sync(later) if agent.held == held else None)

        return sync

    def _act(self, number: int, at: float) -> bool:
        """Do what `reconcile` says. Whether anything was done, which is reported at once."""
        agent = self._agents[number]
        orders = list(agent.orders.values())
        actions = reconcile(orders, agent.running, agent.staging, set(), no_images="")
        for action in actions:
            if isinstance(action, Prepare):
                run = self._runs[action.order.run_id]
                agent.staging[action.order.run_id] = Staging("preparing")
                self._at(at + run.drawn.stage_s, self._staged(number, action.order.run_id))
            elif isinstance(action, Start):
                run = self._runs[action.order.run_id]
                del agent.staging[action.order.run_id]
                agent.running[action.order.run_id] = LocalRun(alive=True, grace_s=30.0)
                run.ends_at = at + _START_S + run.drawn.duration_s
                self._at(at + _START_S, lambda later: self._notify(number, later))
                self._at(run.ends_at, self._exiting(run))
            elif isinstance(action, Stop):
                agent.running[action.run_id] = LocalRun(alive=False, grace_s=action.grace_s)
            elif isinstance(action, Remove):
                agent.running.pop(action.run_id, None)
                agent.staging.pop(action.run_id, None)
        return bool(actions)

    def _staged(self, number: int, run_id: str) -> Callable[[float], None]:
        def staged(at: float) -> None:
            agent = self._agents[number]
            if run_id in agent.staging:
                agent.staging[run_id] = Staging("ready")
                self._notify(number, at)

        return staged

    def _exiting(self, run: _Run) -> Callable[[float], None]:
        """The end of a replica: its log is sent and its end is reported, as soon as the agent is back."""

        def exited(at: float) -> None:
            agent = self._agents[run.agent]
            if run.ended:
                return
            if agent.is_away:
                self._at(at + 1.0, exited)
                return
            run_id = run.order.run_id
            agent.running[run_id] = LocalRun(alive=False, grace_s=30.0)
            self._notify(run.agent, at)
            self._at(self._server.serve("ends", at, self._costs.end), ended)

        def ended(at: float) -> None:
            if run.ended:
                return
            self.result.ended += 1
            self._free(run)
            self._notify(run.agent, at)
            self._schedule(at)

        return exited

    def _free(self, run: _Run) -> None:
        run.ended = True
        del self._runs[run.order.run_id]
        self._agents[run.agent].orders.pop(run.order.run_id, None)
        gangs = self._snapshots[run.agent].gangs
        self._change(run.agent, gangs=tuple(gang for gang in gangs if gang is not run.gang))

    def _lose(self, number: int) -> None:
        """The lease of an agent is over: its jobs are queued again."""
        agent = self._agents[number]
        for run_id in list(agent.orders):
            run = self._runs[run_id]
            self._free(run)
            self.result.lost += 1
            self._queue[run.job.key] = self._changes.added[run.job.key] = run.job
            self._drawn[run.job.key] = run.drawn
            self._noted[run.job.key] = ("", "", 0)

    def _failing(self, number: int) -> Callable[[float], None]:
        def fail(_: float) -> None:
            self._agents[number].is_away = True

        return fail

    def _returning(self, number: int) -> Callable[[float], None]:
        def come_back(at: float) -> None:
            self._agents[number].is_away = False
            self._syncing(number)(at)

        return come_back
