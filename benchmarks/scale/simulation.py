"""A large installation in virtual time.

The scheduler's plan and the agents' `reconcile` are the service's own code. What they and all other calls cost the
server comes from `Costs`: a core that serves calls in their order, and a lock that lets one write transaction run at a
time. An agent has one sync at a time, so it asks less of a slow server; one that is silent for `_SILENT_S` gets no
work.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from benchmarks.scale.bed import CPUS, agent_info
from benchmarks.scale.costs import Cost, Costs
from benchmarks.scale.workload import NOW, DrawnJob, Load
from trainyard_agent.control.reconcile import LocalRun, Prepare, Remove, Start, reconcile
from trainyard_agent.staging.base import Staging
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.wire.sync import RunOrder
from trainyard_server.control.queue_plan import QueuePlan
from trainyard_server.control.workload import QueueChanges
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.snapshots import JobSnapshot

# The defaults of the service.
_HOLD_S, _SILENT_S, _TICK_S = 20.0, 30.0, 1.0
_LONG_PLAN_S, _PLAN_REST, _TICK_REST = 0.1, 3.0, 2.0

_START_S = 0.5
_BUSY_CPUS = 29
"""CPUs in use on each machine at the beginning, at least."""

_MACHINE_CPUS = 4 * CPUS
"""CPUs of a machine: a job waits for the server and hardly ever for room."""

_LIMITS = Quotas()
_INPUT = TrainingInput()

Event = Callable[[float], object]
"""Something that happens at a time."""


class CountedPlan(QueuePlan):
    """Plan of the queue that knows whether the last update planned everything."""

    was_whole = True

    def _is_over(self, changes: QueueChanges, now: datetime) -> bool:
        self.was_whole = super()._is_over(changes, now)
        return self.was_whole


@dataclass(slots=True)
class Server:
    """A core that serves calls in their order, and the lock of write transactions."""

    commit_ms: float
    core_free: float = 0.0
    lock_free: float = 0.0
    core_s: float = 0.0
    lock_s: float = 0.0

    def serve(self, at: float, cost: Cost) -> float:
        """The time at which a call that arrives now is answered."""
        began = max(at, self.core_free)
        self.core_free = began + cost.cpu_ms / 1000
        self.core_s += cost.cpu_ms / 1000
        if not cost.writes:
            return self.core_free
        holds_s = (cost.held_ms + cost.writes * self.commit_ms) / 1000
        self.lock_free = max(began, self.lock_free) + holds_s
        self.lock_s += holds_s
        return max(self.core_free, self.lock_free)


@dataclass(frozen=True, slots=True)
class _Run:
    drawn: DrawnJob
    gang: Gang
    order: RunOrder


@dataclass(slots=True)
class _Agent:
    """`snapshot` and `orders` are the server's; `running` and `staging` what the machine has. `held`: the number of the
    sync that is held; a later one replaces it."""

    snapshot: AgentSnapshot
    last_contact: float = 0.0
    orders: dict[str, RunOrder] = field(default_factory=dict)
    running: dict[str, LocalRun] = field(default_factory=dict)
    staging: dict[str, Staging] = field(default_factory=dict)
    has_change: bool = False
    is_syncing: bool = False
    held: int = 0


@dataclass(slots=True)
class Result:
    """Outcome of a simulation. Seconds; `waits` are from the submission to the placement."""

    agents: int
    server: Server
    seconds: float = 0.0
    arrived: int = 0
    ended: int = 0
    queued: int = 0
    running: int = 0
    silenced: int = 0
    waits: list[float] = field(default_factory=list)
    ticks: int = 0
    answers: list[float] = field(default_factory=list)


class Simulation:
    def __init__(self, load: Load, costs: Costs) -> None:
        self._costs = costs
        self._server = Server(costs.commit_ms)
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._arrivals = load.arrivals()
        self._plan, self._changes = CountedPlan(), QueueChanges({}, other=True)
        self._plan_after = 0.0
        self._rests_until = 0.0
        self._queue: dict[int, JobSnapshot] = {}
        self._drawn: dict[int, DrawnJob] = {}
        self._runs: dict[str, _Run] = {}
        snapshots = machines(load.agents, _MACHINE_CPUS)
        self._agents = {number: _Agent(snapshot) for number, snapshot in enumerate(snapshots)}
        self.result = Result(load.agents, self._server)
        self._fill(load)

    def run(self, seconds: float) -> Result:
        """Simulate so many seconds, once."""
        for number, agent in self._agents.items():  # their syncs are spread over a hold
            self._at(_HOLD_S * number / len(self._agents), partial(self._sync, agent))
        self._expect()
        self._at(0.0, self._tick)
        while self._events[0][0] <= seconds:
            at, _, event = heapq.heappop(self._events)
            event(at)
        self.result.seconds = seconds
        self.result.queued, self.result.running = len(self._queue), len(self._runs)
        return self.result

    def _at(self, at: float, event: Event) -> None:
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def _fill(self, load: Load) -> None:
        """Let the machines have the jobs that run at the beginning."""
        waiting = load.running()
        for agent in self._agents.values():
            free = list(agent.snapshot.capacity.cpus)
            left = len(free) - _BUSY_CPUS
            while len(free) > left and (drawn := next(waiting)).cpus <= len(free):
                mine, free = free[: drawn.cpus], free[drawn.cpus :]
                self.result.arrived += 1
                run = self._place(next(self._numbers), drawn, agent, frozenset(mine))
                agent.running[run.order.run_id] = LocalRun(alive=True, grace_s=30.0)
                self._at(drawn.duration_s, partial(self._exit, agent, run))

    def _place(self, key: int, drawn: DrawnJob, agent: _Agent, cpus: frozenset[int]) -> _Run:
        memory = sum(replica.resources.memory_bytes for replica in drawn.gang)
        gang = Gang(key, drawn.project, cpus, memory_bytes=memory)
        order = RunOrder.model_construct(
            run_id=str(key), number=1, target="run", project=drawn.project, job_id=f"job_{key}",
            training_input=_INPUT, replicas=(), grace_s=30.0, unreadable="",
        )  # fmt: skip
        run = self._runs[order.run_id] = _Run(drawn, gang, order)
        agent.orders[order.run_id] = order
        self._change(agent, replace(agent.snapshot, gangs=(*agent.snapshot.gangs, gang)))
        return run

    def _change(self, agent: _Agent, snapshot: AgentSnapshot) -> None:
        agent.snapshot = snapshot
        self._changes.other = True

    # Submissions, ticks and plans.

    def _expect(self) -> None:
        drawn = next(self._arrivals)
        self._at(drawn.at, partial(self._arrive, drawn))

    def _arrive(self, drawn: DrawnJob, at: float) -> None:
        key = next(self._numbers)
        self.result.arrived += 1
        self._drawn[key] = drawn
        self._queue[key] = self._changes.added[key] = drawn.queued(key, _time(at))
        self._at(self._server.serve(at, self._costs.submit), self._wake)
        self._expect()

    def _wake(self, at: float) -> None:
        """Tick now, unless the pause after the last tick is not over."""
        if at >= self._rests_until:
            self._tick(at)

    def _tick(self, at: float) -> None:
        for agent in self._agents.values():
            alive = at - agent.last_contact <= _SILENT_S
            if alive is not agent.snapshot.alive:
                self._change(agent, replace(agent.snapshot, alive=alive))
                self.result.silenced += not alive
        done = self._schedule(self._server.serve(at, Cost(self._costs.round_ms)))
        self.result.ticks += 1
        self._rests_until = done + min(_TICK_S, _TICK_REST * (done - at))
        self._at(self._rests_until + _TICK_S, partial(self._tick_again, self.result.ticks))

    def _tick_again(self, number: int, at: float) -> None:
        if self.result.ticks == number:
            self._tick(at)

    def _schedule(self, at: float) -> float:
        """Plan if something has changed; returns when that is done."""
        if at < self._plan_after:
            return at
        changes, self._changes = self._changes, QueueChanges({}, other=False)
        self._plan.was_whole = True
        queue, agents = list(self._queue.values()), [agent.snapshot for agent in self._agents.values()]
        plan = self._plan.update(queue, agents, changes, _time(at), _LIMITS)
        if plan is None:
            return at
        cost = self._costs.planning(len(queue), self._plan.was_whole)
        at = self._server.serve(at, cost)
        if cost.cpu_ms / 1000 > _LONG_PLAN_S:
            self._plan_after = at + _PLAN_REST * cost.cpu_ms / 1000
        for placement in plan.placements:
            at = self._server.serve(at, self._costs.start)
            agent = self._agents[int(placement.agent_id.removeprefix("a"))]
            cpus = frozenset(cpu for assigned in placement.assignments for cpu in assigned.cpus)
            drawn = self._drawn.pop(placement.key)
            del self._queue[placement.key]
            self._place(placement.key, drawn, agent, cpus)
            self.result.waits.append(at - drawn.at)
            self._notify(agent, at)
        return at

    # Agents.

    def _notify(self, agent: _Agent, at: float) -> None:
        """Something has changed, on the server or there: the held sync ends, or the next one has it."""
        agent.has_change = True
        if not agent.is_syncing:
            self._at(at, partial(self._sync, agent))

    def _sync(self, agent: _Agent, at: float) -> None:
        if agent.is_syncing:
            return
        agent.is_syncing, agent.has_change = True, False
        done = self._server.serve(at, self._costs.syncing(len(agent.orders)))
        self.result.answers.append(done - at)
        self._at(done, partial(self._answer, agent))

    def _answer(self, agent: _Agent, at: float) -> None:
        agent.is_syncing, agent.last_contact = False, at
        agent.held += 1
        if self._act(agent, at) or agent.has_change:
            self._sync(agent, at)
        else:
            self._at(at + _HOLD_S, partial(self._end_hold, agent, agent.held))

    def _end_hold(self, agent: _Agent, number: int, at: float) -> None:
        if agent.held == number:
            self._sync(agent, at)

    def _act(self, agent: _Agent, at: float) -> bool:
        """Do what `reconcile` says. Whether anything was done, which is reported at once."""
        orders = list(agent.orders.values())
        actions = reconcile(orders, agent.running, agent.staging, set(), no_images="")
        for action in actions:
            if isinstance(action, Prepare):
                run = self._runs[action.order.run_id]
                agent.staging[run.order.run_id] = Staging("preparing")
                self._at(at + run.drawn.stage_s, partial(self._stage, agent, run))
            elif isinstance(action, Start):
                run = self._runs[action.order.run_id]
                del agent.staging[run.order.run_id]
                agent.running[run.order.run_id] = LocalRun(alive=True, grace_s=30.0)
                self._at(at + _START_S, partial(self._notify, agent))
                self._at(at + _START_S + run.drawn.duration_s, partial(self._exit, agent, run))
            elif isinstance(action, Remove):
                del agent.running[action.run_id]
        return bool(actions)

    def _stage(self, agent: _Agent, run: _Run, at: float) -> None:
        agent.staging[run.order.run_id] = Staging("ready")
        self._notify(agent, at)

    def _exit(self, agent: _Agent, run: _Run, at: float) -> None:
        """The end of a replica: its log is sent and its end is reported."""
        agent.running[run.order.run_id] = LocalRun(alive=False, grace_s=30.0)
        self._notify(agent, at)
        self._at(self._server.serve(at, self._costs.end), partial(self._end, agent, run))

    def _end(self, agent: _Agent, run: _Run, at: float) -> None:
        """The end of a run on the server."""
        self.result.ended += 1
        del self._runs[run.order.run_id], agent.orders[run.order.run_id]
        gangs = tuple(gang for gang in agent.snapshot.gangs if gang is not run.gang)
        self._change(agent, replace(agent.snapshot, gangs=gangs))
        self._notify(agent, at)
        self._schedule(at)


def machines(number: int, cpus: int = CPUS) -> list[AgentSnapshot]:
    """Equal machines without jobs, as the scheduler sees them."""
    infos = [agent_info(count, cpus) for count in range(number)]
    return [AgentSnapshot(info.agent_id, info.name, info.capacity, "strict", False) for info in infos]


def _time(at: float) -> datetime:
    return NOW + timedelta(seconds=at)
