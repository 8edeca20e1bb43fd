"""Watches the steps of the replicas, and looks closer when a run stands still.

It reads each log to its end by itself, with a cursor of its own: what the shipper has read on its way to the server
is not read twice, and whether the server is there makes no difference. A replica is judged only at a moment when all
that it has written was read. What was found goes out with the replica's reports; the server decides what follows.
"""

import asyncio
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from trainyard_agent.host.clock import Clock
from trainyard_agent.monitoring.stack_dump import Stacks
from trainyard_agent.monitoring.stall_detector import Watched
from trainyard_agent.runtimes.base import Runtime
from trainyard_protocol.cluster import Task
from trainyard_protocol.progress import parse
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.sync import LogLine, ReplicaReport, RunOrder, Stall, StallPolicy

LOOK_S = 0.5
"""Between two looks."""

_LINES, _BYTES = 1000, 1 << 19
_CHUNKS = 32  # of one log at one look: the rest is read at the next ones
_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""


@dataclass(slots=True)
class _Log:
    """How far a log was read, and what it told. `at_end`: when (monotonic) it was last read to its end; `cut`: its
    quota is used up, so nobody knows what the replica says by now."""

    next: int = 0
    at_end: float | None = None
    cut: bool = False
    watched: Watched = field(default_factory=Watched)


@dataclass(slots=True)
class _Found:
    """Of a run that stands still: what its replicas are doing, and which of them stand still."""

    stacks: dict[str, str]
    stalls: dict[str, Stall]


class StallWatch:
    def __init__(self, runtime: Runtime, clock: Clock, stacks: Stacks) -> None:
        self._runtime = runtime
        self._clock = clock
        self._stacks = stacks
        self._logs: dict[Key, _Log] = {}
        self._found: dict[str, _Found] = {}
        self._lock = threading.Lock()

    def take(self, key: Key, start: int, lines: Sequence[LogLine]) -> None:
        """Lines `start`, `start + 1`, ... of a log, read by somebody. A gap before them is read later."""
        log = self._logs.get(key)
        if log is None:
            return
        with self._lock:
            if not log.next - len(lines) <= start <= log.next:
                return
            for line in lines[log.next - start :]:
                mark = parse(line.text) if line.stream == "stdout" and not line.partial else None
                at = _moment(line.time) if mark is not None else None
                if mark is not None and at is not None:
                    log.watched.take(mark, at)
            log.next = start + len(lines)

    async def look(self, orders: Iterable[RunOrder], observed: Mapping[str, Sequence[ReplicaReport]]) -> None:
        """Once around all runs that are to be watched. `observed` is how their replicas stand."""
        watched = {
            order.run_id: order.stall
            for order in orders
            if order.stall is not None and order.target == "run" and order.run_id in observed
        }
        self._logs = {key: log for key, log in self._logs.items() if key[0] in watched}
        self._found = {run_id: found for run_id, found in self._found.items() if run_id in watched}
        for run_id, policy in watched.items():
            await self._look(run_id, policy, observed[run_id])

    def told(self, run_id: str, reports: Iterable[ReplicaReport]) -> tuple[ReplicaReport, ...]:
        """The reports with what was found."""
        found = self._found.get(run_id)
        if found is None:
            return tuple(reports)
        return tuple(
            report.model_copy(
                update={"stall": found.stalls.get(report.task), "stacks": found.stacks.get(report.task, "")}
            )
            for report in reports
        )

    async def _look(self, run_id: str, policy: StallPolicy, reports: Sequence[ReplicaReport]) -> None:
        tasks = [report.task for report in reports if report.state is ReplicaState.RUNNING]
        read = await self._catch_up(run_id, tasks, policy)
        logs = {task: self._logs[(run_id, task)] for task in read if _is_judged(task)}
        known = {task: log.watched for task, log in logs.items() if not log.cut}
        found = self._found.get(run_id)
        if found is not None:
            self._follow(run_id, found, known, policy)
        elif any(watched.is_stalled(policy) for watched in known.values()):
            stacks = await self._examine(run_id, tasks)
            await self._catch_up(run_id, tasks, policy)  # it may have moved on meanwhile
            stalled = [watched for watched in known.values() if watched.is_stalled(policy)]
            if stalled:
                # Those who wait for it have stood still for as long, but have another limit.
                half = min(watched.limit_s(policy) for watched in stalled) / 2
                stalls = {t: w.stall(policy) for t, w in known.items() if w.stands_still(half)}
                self._found[run_id] = _Found(stacks, stalls)
                for task, stall in stalls.items():
                    _log.warning("run %s: %s stands still at step %d", run_id, task, stall.step)

    def _follow(self, run_id: str, found: _Found, known: Mapping[str, Watched], policy: StallPolicy) -> None:
        for task, watched in known.items():
            stall = found.stalls.get(task)
            if stall is None and watched.is_stalled(policy):
                found.stalls[task] = watched.stall(policy)
            elif stall is not None and watched.idle_s < stall.for_s - 0.001:  # there was a sign of it
                del found.stalls[task]
        if not found.stalls:
            del self._found[run_id]
            _log.info("run %s moves on", run_id)

    async def _catch_up(self, run_id: str, tasks: Collection[str], policy: StallPolicy) -> list[str]:
        """Reads what is new. Those tasks whose logs were read to their end; time counts for them alone."""
        logs = {task: self._logs.setdefault((run_id, task), _Log()) for task in tasks}

        def ended() -> list[str]:
            return [task for task, log in logs.items() if self._read_on((run_id, task), log)]

        now = self._clock.monotonic()  # before it: what is written while it reads is for the next time
        at_end = await asyncio.to_thread(ended)
        for task, log in logs.items():
            if task in at_end:
                log.watched.wait(now - log.at_end if log.at_end is not None else 0.0, policy)
                log.at_end = now
            elif log.at_end is not None:
                log.at_end = now
        return at_end

    def _read_on(self, key: Key, log: _Log) -> bool:
        """True if nothing is left to be read."""
        for _ in range(_CHUNKS):
            start = log.next
            found = self._runtime.read_log(*key, start, _LINES, _BYTES)
            if not found.lines:
                log.cut = found.cut
                return True
            self.take(key, start, found.lines)
        return False

    async def _examine(self, run_id: str, tasks: Sequence[str]) -> dict[str, str]:
        async def one(task: str) -> str:
            log = self._logs[(run_id, task)]
            try:
                return await asyncio.to_thread(self._stacks.take, run_id, task, log.watched.stacks, log.next)
            except Exception as error:  # noqa: BLE001 - said to the user; the others are looked at all the same
                _log.exception("the stacks of %s of run %s cannot be taken", task, run_id)
                return f"Its stacks cannot be told: {type(error).__name__}: {error}."

        return dict(zip(tasks, await asyncio.gather(*map(one, tasks)), strict=True))


def _is_judged(task: str) -> bool:
    """Servers of parameters take no steps of their own; an evaluator waits for checkpoints, and nobody for it."""
    return Task.parse(task).type in ("master", "worker")


def _moment(time: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
