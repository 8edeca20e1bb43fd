"""Monitors the progress of the replicas, and dumps their stacks when a run stalls or is silent.

It reads each log to its end with its own cursor, independent of the server; lines that the shipper has read are not
read again. A replica is judged only when its log was read to the end. Stalls are added to the replica's reports; the
server decides what follows.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate, groupby
from operator import attrgetter

from trainyard_agent.host.clock import Clock
from trainyard_agent.monitoring.silence import RunSilence
from trainyard_agent.monitoring.stack_dump import StackDumper
from trainyard_agent.monitoring.stall_detector import ADVANCES, StepHistory
from trainyard_agent.runtimes.base import KEPT, Runtime
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.lines.progress import parse
from trainyard_protocol.lines.shapes import shapes
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.logs import LogLine
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder, StallPolicy

POLL_S = 0.5
"""Seconds between two polls."""

_LINES, _BYTES = 1000, 1 << 19
_CHUNKS = 32  # of one log in one poll
_SHARED_LINES = 4000  # of one that is read elsewhere too, and need not be read twice
STACKS_BYTES = 2 << 20
"""Bytes of the stacks in one report, as JSON: the server refuses a report of 4 MiB."""

_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""


@dataclass(slots=True)
class _LogPosition:
    """A read position in a log, and its progress. `at_end`: when (monotonic) it was last read to its end; `cut`: its
    quota is used up, so its progress is unknown. `kept`: its program has failed. `shared`: lines were read elsewhere
    since the last poll."""

    next: int = 0
    shared: bool = False
    at_end: float | None = None
    cut: bool = False
    kept: bool = False
    progress: StepHistory = field(default_factory=StepHistory)


@dataclass(slots=True)
class _StalledRun:
    """The stacks and stalls of a stalled run, by task. `silent`: it stalled as a whole, whatever its steps."""

    stacks: dict[str, str]
    stalls: dict[str, Stall]
    silent: bool = False


@dataclass(slots=True)
class _RunWatch:
    """The silence of a run. `polled_at`: when (monotonic) all its logs were last read to their ends."""

    silence: RunSilence = field(default_factory=RunSilence)
    polled_at: float | None = None


class StallMonitor:
    """Detects stalls of all runs that have a stall policy."""

    def __init__(self, runtime: Runtime, clock: Clock, stacks: StackDumper) -> None:
        self._runtime = runtime
        self._clock = clock
        self._stacks = stacks
        self._logs: dict[Key, _LogPosition] = {}
        self._stalled: dict[str, _StalledRun] = {}
        self._watches: dict[str, _RunWatch] = {}
        self._lock = threading.Lock()

    def ingest(self, key: Key, start: int, lines: Sequence[LogLine]) -> None:
        """Add lines `start`, `start + 1`, ... of a log that were read elsewhere. A gap before them is read later."""
        log = self._logs.get(key)
        if log is not None and lines:
            log.shared = start <= log.next
            self._add(log, start, lines)

    def _add(self, log: _LogPosition, start: int, lines: Sequence[LogLine]) -> None:
        with self._lock:
            if not log.next - len(lines) <= start <= log.next:
                return
            printed = [line for line in lines[log.next - start :] if line.stream == "stdout" and not line.partial]
            log.kept = log.kept or any(KEPT in line.text for line in printed if not line.text.startswith("{"))
            for time, together in groupby((line for line in printed if line.text.startswith("{")), attrgetter("time")):
                at = _parse_time(time)
                for event in map(parse, _telling([line.text for line in together])):
                    if event is not None and at is not None:
                        log.progress.add(event, at)
            log.next = start + len(lines)

    async def poll(self, orders: Iterable[RunOrder], observed: Mapping[str, Sequence[ReplicaReport]]) -> None:
        """Check all runs with a stall policy once. `observed` are the states of their replicas."""
        policies = {
            order.run_id: order.stall
            for order in orders
            if order.stall is not None and order.target == "run" and order.run_id in observed
        }
        self._logs = {key: log for key, log in self._logs.items() if key[0] in policies}
        self._stalled = {run_id: run for run_id, run in self._stalled.items() if run_id in policies}
        self._watches = {run_id: self._watches.get(run_id) or _RunWatch() for run_id in policies}
        for run_id, policy in policies.items():
            await self._poll_run(run_id, policy, observed[run_id])

    def annotate(self, run_id: str, reports: Iterable[ReplicaReport]) -> tuple[ReplicaReport, ...]:
        """The reports with their stalls and stacks."""
        run = self._stalled.get(run_id)
        if run is None:
            return tuple(reports)
        return tuple(
            report.model_copy(update={"stall": run.stalls.get(report.task), "stacks": run.stacks.get(report.task, "")})
            for report in reports
        )

    async def _poll_run(self, run_id: str, policy: StallPolicy, reports: Sequence[ReplicaReport]) -> None:
        tasks = [report.task for report in reports if report.state is ReplicaState.RUNNING]
        read = await self._catch_up(run_id, tasks, policy)
        if any(self._logs[(run_id, task)].kept for task in tasks):  # the others may wait for it
            self._stalled.pop(run_id, None)
            self._watches[run_id] = _RunWatch()
            return
        logs = {task: self._logs[(run_id, task)] for task in read if _is_judged(task)}
        histories = {task: log.progress for task, log in logs.items() if not log.cut}
        silence = await self._silence(run_id, tasks, read, policy)
        run = self._stalled.get(run_id)
        if run is not None and run.silent:
            if not silence.is_silent:
                del self._stalled[run_id]
                _log.info("run %s is no longer silent", run_id)
        elif run is not None:
            self._update(run_id, run, histories, policy)
        elif any(progress.is_stalled(policy) for progress in histories.values()):
            dumped = await self._dump_stacks(run_id, tasks)
            stacks = that_fit(dumped, [text for other in self._stalled.values() for text in other.stacks.values()])
            await self._catch_up(run_id, tasks, policy)  # it may have made progress meanwhile
            stalled = [progress for progress in histories.values() if progress.is_stalled(policy)]
            if stalled:
                # Replicas that wait for a stalled one are idle for as long, but have another limit.
                half = min(progress.limit_s(policy) for progress in stalled) / 2
                stalls = {task: p.stall(policy) for task, p in histories.items() if p.is_idle(half)}
                self._stalled[run_id] = _StalledRun(stacks, stalls)
                for task, stall in stalls.items():
                    _log.warning("run %s: %s has stalled at step %d", run_id, task, stall.step)
        elif silence.is_silent:
            stacks = await self._dump_stacks(run_id, tasks)
            await self._catch_up(run_id, tasks, policy)  # with what its program wrote for that
            silence.expect(self._lines(run_id, tasks))
            since = self._clock.now() - timedelta(seconds=silence.idle_s)
            stalls = {
                task: Stall(
                    step=self._logs[(run_id, task)].progress.step or 0,
                    since=since,
                    limit_s=policy.silent_s,
                    for_s=round(silence.idle_s, 3),
                    silent=True,
                )
                for task in filter(_is_judged, tasks)
            }
            self._stalled[run_id] = _StalledRun(stacks, stalls, silent=True)
            _log.warning("run %s prints nothing and uses no CPU", run_id)

    async def _silence(
        self, run_id: str, tasks: Collection[str], read: Collection[str], policy: StallPolicy
    ) -> RunSilence:
        """The silence of the run, with this poll. Time counts if the logs of all its replicas were read to the end. A
        run that is judged by its steps is not silent."""
        if any(self._logs[(run_id, task)].progress.is_judged(policy) for task in filter(_is_judged, tasks)):
            self._watches[run_id] = _RunWatch()
        watch = self._watches[run_id]
        cut = any(self._logs[(run_id, task)].cut for task in tasks)
        if not policy.silent_s or not tasks or cut or len(read) < len(tasks):
            watch.polled_at = None
            return watch.silence
        now = self._clock.monotonic()
        seconds = now - watch.polled_at if watch.polled_at is not None else 0.0
        watch.polled_at = now
        lines = self._lines(run_id, tasks)

        def usage() -> Mapping[str, ReplicaUse] | None:
            try:
                use = {task: self._runtime.usage(run_id, task) for task in tasks}
            except Exception:  # noqa: BLE001 - an engine may not answer; it is asked again
                _log.debug("the usage of run %s cannot be measured", run_id, exc_info=True)
                return None
            measured = {task: replica_use for task, replica_use in use.items() if replica_use is not None}
            return measured if len(measured) == len(use) else None

        await asyncio.to_thread(watch.silence.add, lines, seconds, policy.silent_s, usage)
        return watch.silence

    def _lines(self, run_id: str, tasks: Collection[str]) -> int:
        return sum(self._logs[(run_id, task)].next for task in tasks)

    def _update(self, run_id: str, run: _StalledRun, histories: Mapping[str, StepHistory], policy: StallPolicy) -> None:
        for task, progress in histories.items():
            stall = run.stalls.get(task)
            if stall is None and progress.is_stalled(policy):
                run.stalls[task] = progress.stall(policy)
            elif stall is not None and progress.idle_s < stall.for_s - 0.001:  # it has made progress
                del run.stalls[task]
        if not run.stalls:
            del self._stalled[run_id]
            _log.info("run %s makes progress again", run_id)

    async def _catch_up(self, run_id: str, tasks: Collection[str], policy: StallPolicy) -> list[str]:
        """Read new lines. Returns the tasks whose logs were read to the end, for which idle time is counted."""
        logs = {task: self._logs.get((run_id, task)) or _LogPosition() for task in tasks}
        self._logs |= {(run_id, task): log for task, log in logs.items()}

        def ended() -> list[str]:
            return [task for task, log in logs.items() if self._read_on((run_id, task), log)]

        now = self._clock.monotonic()  # before reading: later lines are for the next poll
        at_end = await asyncio.to_thread(ended)
        for task, log in logs.items():
            if task in at_end:
                log.progress.add_idle(now - log.at_end if log.at_end is not None else 0.0, policy)
                log.at_end = now
            elif log.at_end is not None:
                log.at_end = now
        return at_end

    def _read_on(self, key: Key, log: _LogPosition) -> bool:
        """Read new lines of one log. True if it was read to the end."""
        room, log.shared = _SHARED_LINES if log.shared else _CHUNKS * _LINES, False
        for _ in range(_CHUNKS):
            start = log.next
            new = self._runtime.read_log(*key, start, _LINES, _BYTES)
            if not new.lines:
                log.cut = new.cut
                return True
            self._add(log, start, new.lines)
            room -= len(new.lines)
            if room <= 0:
                break
        return False

    async def _dump_stacks(self, run_id: str, tasks: Sequence[str]) -> dict[str, str]:
        async def dump(task: str) -> str:
            log = self._logs[(run_id, task)]
            try:
                return await asyncio.to_thread(self._stacks.dump, run_id, task, log.progress.stacks, log.next)
            except Exception as error:  # noqa: BLE001 - reported; the others are dumped all the same
                _log.exception("the stacks of %s of run %s cannot be read", task, run_id)
                return f"Its stacks cannot be read: {type(error).__name__}: {error}."

        return dict(zip(tasks, await asyncio.gather(*map(dump, tasks)), strict=True))


def _telling(texts: Sequence[str]) -> Sequence[str]:
    """Those that tell what all do, of texts that were printed together: of one shape, the first ones and the last."""
    if len(texts) <= ADVANCES + 2 or len(set(shapes(texts))) > 1:
        return texts
    return [*texts[: ADVANCES + 1], texts[-1]]


@lru_cache(1024)
def _is_judged(task: str) -> bool:
    """Whether the task has steps of its own: a parameter server has none, an evaluator waits for checkpoints."""
    return Task.parse(task).type in ("master", "worker")


def that_fit(stacks: Mapping[str, str], others: Iterable[str]) -> dict[str, str]:
    """The stacks, from the first replica on, that fit into a report beside those of other runs."""
    left = STACKS_BYTES - sum(map(_json_size, others))
    sizes = accumulate(map(_json_size, stacks.values()))
    return {task: text for (task, text), size in zip(stacks.items(), sizes, strict=True) if size <= left}


def _json_size(text: str) -> int:
    return len(json.dumps(text))


def _parse_time(time: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None
