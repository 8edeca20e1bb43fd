"""The fake runtime: scripted replicas without processes, and a clock that the test moves.

It implements the whole contract of `base.Runtime`. Its state is in a `FakeHost`, which outlives the runtime object as a
machine outlives an agent. The state of a replica is a pure function of its script and the clock.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate

from trainyard_agent.host.clock import Clock
from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.attaching.local_command import LocalCommand, LocalConnection
from trainyard_agent.runtimes.base import (
    GONE,
    HOST,
    KEPT,
    STOPPED,
    Handle,
    Keep,
    Launch,
    LogSlice,
    StartFailed,
    Traits,
    metric_tag,
)
from trainyard_agent.runtimes.exits import StopOrder, exit_report, preempted_exit
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.logs import LogGap, LogLine, LogPosition, Stream
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder

_SIGTERM_CODE, _SIGKILL_CODE = 143, 137
_FIRST_PORT = 20_000


@dataclass(frozen=True, slots=True)
class Print:
    """The program prints a line."""

    text: str
    stream: Stream = "stdout"


@dataclass(frozen=True, slots=True)
class Measure:
    """The program reports its metric, as cloudml-hypertune does."""

    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Exit:
    """The program ends. `code` None: it vanishes without an exit status."""

    code: int | None = 0


@dataclass(frozen=True, slots=True)
class Script:
    """The steps of one replica, by seconds after its start, in ascending order. Without an Exit it runs for ever.

    `starts_after_s` is how long it stays STARTING, and `waits` says why. `failure`: it cannot be executed. On SIGTERM
    it ends at once, with `code_on_sigterm`, unless it `ignores_sigterm`. It always uses `cores` and `memory_bytes`.
    """

    steps: tuple[tuple[float, Print | Measure | Exit], ...] = ()
    starts_after_s: float = 0.0
    waits: str = ""
    failure: str = ""
    ignores_sigterm: bool = False
    code_on_sigterm: int = _SIGTERM_CODE
    cores: float = 1.0
    memory_bytes: int = 1 << 20


FOREVER = Script()
SUCCEEDS = Script(((0.0, Print("hello")), (1.0, Exit(0))))

Programs = Callable[[Launch], Script]
"""The script for a launch."""


def by_module(modules: Mapping[str, Mapping[str, Script]]) -> Programs:
    """Scripts by Python module (`python -m MODULE`) and task; the task `*` is any other one.

    An unknown module or task exits with 1, as Python does for a module that it cannot find.
    """

    def script(launch: Launch) -> Script:
        module = launch.command[launch.command.index("-m") + 1] if "-m" in launch.command else ""
        tasks = modules.get(module, {})
        missing = Script(((0.0, Print(f"No module named {module}", "stderr")), (0.0, Exit(1))))
        return tasks.get(launch.task) or tasks.get("*", missing)

    return script


@dataclass(slots=True)
class _Replica:
    launch: Launch
    script: Script
    vanished_at: float | None = None
    order: int = 0
    preempted_at: float = float("inf")
    dropped: int = 0


@dataclass(slots=True)
class _Run:
    handle: Handle
    log_quota: int = 0
    replicas: dict[str, _Replica] = field(default_factory=dict)
    began: float = 0.0
    stop: StopOrder | None = None
    kill_at: float = float("inf")


class FakeHost:
    """The fake machine, which survives an agent. `launches` are all that were ever started. `address` is the one of
    parts of runs over several agents."""

    def __init__(self, clock: Clock, programs: Programs, address: str = "127.0.0.1") -> None:
        self.address = address
        self.clock = clock
        self.programs = programs
        self.runs: dict[str, _Run] = {}
        self.launches: list[tuple[str, Launch]] = []
        self.ports = _FIRST_PORT
        self._epoch = clock.now() - timedelta(seconds=clock.monotonic())

    def set_clock(self) -> None:
        """Let the times of its replicas be those of its clock from now on, which was set."""
        self._epoch = self.clock.now() - timedelta(seconds=self.clock.monotonic())

    def time_at(self, monotonic: float) -> datetime:
        return self._epoch + timedelta(seconds=monotonic)

    def vanish(self, run_id: str, task: str) -> None:
        """The replica disappears now, as after `kill -9` of its supervisor."""
        self.runs[run_id].replicas[task].vanished_at = self.clock.monotonic()

    def drop_log(self, run_id: str, task: str, lines: int) -> None:
        """The engine drops the first lines of the replica's log."""
        self.runs[run_id].replicas[task].dropped = lines

    def preempt(self, run_id: str, task: str) -> None:
        """The engine takes the replica away now: SIGTERM, and SIGKILL after the run's grace period."""
        self.runs[run_id].replicas[task].preempted_at = self.clock.monotonic()

    def stop_all(self, reason: Reason = Reason.HOST_SHUTDOWN) -> None:
        """Stop as `--stop-all` does on a machine without an agent."""
        for run_id, run in self.runs.items():
            FakeRuntime(self, run.handle.runtime).stop(run_id, 0.0, reason)


class FakeRuntime:
    """`name` is the runtime that it stands for in its handles, `traits` what it promises."""

    def __init__(self, host: FakeHost, name: RuntimeName = "fake", traits: Traits = HOST) -> None:
        self._host = host
        self.name = name
        self.traits = replace(traits, tells_changes=False)
        self._offsets: dict[tuple[str, str], int] = {}
        """Between the numbers of lines here and those in the engine, by run and task; without `keeps_logs`."""
        self._read_to: dict[tuple[str, str], int] = {}
        self._gaps: dict[tuple[str, str], dict[int, LogGap]] = {}

    def recover(self) -> list[Handle]:
        mine = [run.handle for run in self._host.runs.values() if run.handle.runtime == self.name]
        for handle in mine:
            if not handle.launched:
                del self._host.runs[handle.run_id]
        return [handle for handle in mine if handle.launched]

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002 - it tells nothing
        return lambda: None

    def place(self, order: RunOrder) -> Handle:
        if order.run_id not in self._host.runs:
            addresses = {}
            for replica in order.replicas:
                self._host.ports += 1
                host = "127.0.0.1" if order.spread is None else self._host.address
                addresses[replica.task] = f"{host}:{self._host.ports}"
            handle = Handle(
                run_id=order.run_id,
                runtime=self.name,
                addresses=addresses,
                grace_s=order.grace_s,
                metric_tag=metric_tag(order),
            )
            self._host.runs[order.run_id] = _Run(handle, order.log_quota_bytes)
        return self._host.runs[order.run_id].handle

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        run = self._run(run_id)
        if run is None:
            raise StartFailed(launches[0].task, "Its run was not placed.")
        if run.handle.launched:
            return run.handle
        try:
            replicas = {launch.task: _Replica(launch, self._accepted(launch)) for launch in launches}
        except StartFailed:
            del self._host.runs[run_id]
            raise
        run.replicas = replicas
        run.began = self._host.clock.monotonic()
        run.handle = run.handle.model_copy(update={"launched": True})
        self._host.launches += [(run_id, launch) for launch in launches]
        return run.handle

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        run = self._run(run_id)
        if run is None:
            return ()
        if self.traits.coarse_clock:
            self._count_ends(run)
        return tuple(self._observe(run, task) for task in run.handle.addresses)

    def has_ended(self, run_id: str) -> bool:
        return all(report.exit is not None for report in self.observe(run_id))

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        run = self._run(run_id)
        if run is None or task not in run.replicas:
            return GONE if run is None or run.handle.launched else LogSlice((), complete=False)
        end = self._end(run, run.replicas[task])
        now = self._host.clock.monotonic()
        written = self._written_lines(run, run.replicas[task], min(now, end[0]))
        sizes = accumulate(len(json.dumps(line._asdict())) for line in written)
        stored = [line for line, size in zip(written, sizes, strict=True) if size <= run.log_quota or not run.log_quota]
        key, dropped = (run_id, task), run.replicas[task].dropped
        gaps = self._gaps.setdefault(key, {})
        offset = self._offsets.get(key, 0)
        if not self.traits.keeps_logs and start + offset < dropped:
            if start < self._read_to.get(key, 0):
                return LogSlice((), complete=False)  # read once, and gone
            before = stored[dropped].time if dropped < len(stored) else ""
            gaps[start] = LogGap(after=stored[start + offset - 1].time if start + offset else "", before=before)
            offset = self._offsets[key] = dropped - start
        lines: list[LogLine] = []
        max_lines = min([max_lines, *(number - start for number in gaps if number > start)])
        for line in stored[start + offset :]:
            max_bytes -= len(line.text)
            if lines and (max_bytes < 0 or len(lines) >= max_lines):
                break
            lines.append(line)
        at_end = start + offset + len(lines) >= len(stored)
        self._read_to[key] = max(self._read_to.get(key, 0), start + len(lines))
        cut = at_end and len(stored) < len(written)
        return LogSlice(tuple(lines), complete=end[0] <= now and at_end, cut=cut, gap=gaps.get(start))

    def resume_log(self, run_id: str, task: str, position: LogPosition) -> None:
        run = self._run(run_id)
        if run is None or task not in run.replicas or self.traits.keeps_logs:
            return
        times = [line.time for line in self._written_lines(run, run.replicas[task], float("inf"))]
        passed = sum(time < position.last_time for time in times)
        passed += min(position.same_time, times.count(position.last_time))
        self._offsets[run_id, task] = passed - position.next
        self._read_to[run_id, task] = position.next
        self._gaps.pop((run_id, task), None)

    def read_metrics(self, run_id: str, task: str) -> bytes:
        run = self._run(run_id)
        replica = run.replicas.get(task) if run is not None else None
        if run is None or replica is None or not replica.launch.writes_metrics:
            return b""
        until = min(self._host.clock.monotonic(), self._end(run, replica)[0])
        started, tag = run.began + replica.script.starts_after_s, run.handle.metric_tag
        lines = [
            json.dumps({tag: str(step.value), "global_step": str(step.step)})
            for at, step in replica.script.steps
            if isinstance(step, Measure) and started + at <= until
        ]
        return "\n".join(lines).encode()

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:  # noqa: ARG002 - there are none
        return ()

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        run = self._run(run_id)
        replica = run.replicas.get(task) if run is not None else None
        if run is None or replica is None:
            return None
        script, now = replica.script, self._host.clock.monotonic()
        started = run.began + script.starts_after_s
        if not started <= now < self._end(run, replica)[0]:
            return None
        return ReplicaUse((now - started) * script.cores, script.memory_bytes)

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        """A real command of this machine, with the variables of the replica."""
        launch = self._running(run_id, task)
        variables = {**launch.environment, **launch.secrets}
        return LocalCommand(command, terminal, None, {"PATH": os.defpath} | variables)

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        self._running(run_id, task)
        return LocalConnection(port)

    def _running(self, run_id: str, task: str) -> Launch:
        """Raises NotAttachable."""
        run = self._run(run_id)
        if run is None or task not in run.replicas or self._observe(run, task).state is not ReplicaState.RUNNING:
            raise NotAttachable(f"{task} does not run.")
        return run.replicas[task].launch

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        run = self._run(run_id)
        now = self._host.clock.monotonic()
        if run is None or all(self._end(run, replica)[0] <= now for replica in run.replicas.values()):
            return
        run.stop = run.stop or StopOrder(now, reason)
        run.kill_at = min(run.kill_at, now + grace_s)

    def remove(self, run_id: str) -> None:
        if self._run(run_id) is not None:
            del self._host.runs[run_id]

    def _run(self, run_id: str) -> _Run | None:
        """The run, if it is of this runtime: several may share a host."""
        run = self._host.runs.get(run_id)
        return run if run is not None and run.handle.runtime == self.name else None

    def _accepted(self, launch: Launch) -> Script:
        """The script. An engine accepts a program that cannot be executed, and tells later."""
        try:
            return _kept(self._host.programs(launch), launch.keep)
        except StartFailed as failure:
            if self.traits.starts_whole:
                raise
            return Script(((0.0, Exit(None)),), failure=failure.message)

    def _observe(self, run: _Run, task: str) -> ReplicaReport:
        address = run.handle.addresses[task]
        replica = run.replicas.get(task)
        if replica is None:
            return ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
        now = self._host.clock.monotonic()
        started = run.began + replica.script.starts_after_s
        ended, code = self._end(run, replica)
        up = started <= min(now, ended) and not replica.script.failure
        report = ReplicaReport(
            task=task,
            state=ReplicaState.RUNNING if up else ReplicaState.STARTING,
            address=address,
            started_at=self._time_at(started) if up else None,
            waits="" if up or ended <= now else replica.script.waits,
        )
        if ended > now:
            return report
        preempted = replica.preempted_at <= ended and (run.stop is None or replica.preempted_at < run.stop.at)
        how = (
            preempted_exit(code, self._time_at(ended))
            if preempted
            else exit_report(code, self._time_at(ended), ended, run.stop, replica.script.failure)
        )
        how = how.model_copy(update={"order": replica.order})
        return report.model_copy(update={"state": ReplicaState.EXITED, "exit": how})

    def _time_at(self, monotonic: float) -> datetime:
        time = self._host.time_at(monotonic)
        return time.replace(microsecond=0) if self.traits.coarse_clock else time

    def _count_ends(self, run: _Run) -> None:
        """Number the replicas that have ended since the last observation."""
        counted = sum(replica.order > 0 for replica in run.replicas.values())
        ends = [(self._end(run, replica)[0], replica) for replica in run.replicas.values()]
        fresh = [end for end in ends if end[0] <= self._host.clock.monotonic() and not end[1].order]
        for number, (_, replica) in enumerate(sorted(fresh, key=lambda end: end[0]), counted + 1):
            replica.order = number

    @staticmethod
    def _end(run: _Run, replica: _Replica) -> tuple[float, int | None]:
        """The replica's end, as known now, and its exit code."""
        script = replica.script
        started = run.began + script.starts_after_s
        ends: list[tuple[float, int | None]] = [(float("inf"), None)]
        ends += [(started + at, step.code) for at, step in script.steps if isinstance(step, Exit)]
        if run.stop is not None and not script.ignores_sigterm:
            ends.append((run.stop.at, script.code_on_sigterm))
        if not script.ignores_sigterm:
            ends.append((replica.preempted_at, script.code_on_sigterm))
        ends.append((replica.preempted_at + run.handle.grace_s, _SIGKILL_CODE))
        ends.append((run.kill_at, _SIGKILL_CODE))
        if replica.vanished_at is not None:
            ends.append((replica.vanished_at, None))
        return min(ends, key=lambda end: end[0])

    def _written_lines(self, run: _Run, replica: _Replica, until: float) -> list[LogLine]:
        started = run.began + replica.script.starts_after_s
        mask = Mask(replica.launch.secret_values)
        return [
            LogLine(
                time=self._host.time_at(started + at).isoformat().replace("+00:00", "Z"),
                stream=step.stream if self.traits.splits_streams else "stdout",
                text=mask.text(step.text),
            )
            for at, step in replica.script.steps
            if isinstance(step, Print) and started + at <= until
        ]


def _kept(script: Script, keep: Keep | None) -> Script:
    """The script of a program whose replica is kept after its failure."""
    steps: list[tuple[float, Print | Measure | Exit]] = []
    for at, step in script.steps:
        if keep is None or not isinstance(step, Exit) or step.code in (0, None, *keep.retried_codes):
            steps.append((at, step))
        else:
            steps += [(at, Print(f"{KEPT} {keep.seconds} s.")), (at + keep.seconds, step)]
    return replace(script, steps=tuple(steps))
