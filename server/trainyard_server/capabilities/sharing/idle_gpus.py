"""GPUs that jobs hold and do not use: a warning, and after as long again the end of the job (`minGpuUse`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard_protocol.states import JobState, RunState
from trainyard_server.capabilities.sharing import store
from trainyard_server.capabilities.sharing.store import UnrecordedRun
from trainyard_server.capabilities.sharing.usage import mean_use
from trainyard_server.capabilities.sharing.usage_recording import gpu_points, share_of
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.domain.durations import duration
from trainyard_server.domain.scheduling.sharing import IdlePolicy
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import IDLE_GPUS, Event
from trainyard_server.storage.events.notifier import job_topic
from trainyard_server.storage.streams import Stream

_EVERY_S = 60.0
_LATE = timedelta(minutes=5)
"""The latest that a warned run is ended after its time; where the server was away for longer, it is warned again."""

_MEASURED = 0.8
"""The part of the time of a policy that must have been measured."""


@dataclass(frozen=True, slots=True)
class _IdleRun:
    """A run whose GPUs were used less than its project asks for, and when it was warned of that."""

    key: int
    run: int
    use: float
    policy: IdlePolicy
    warned_at: datetime | None


class IdleGpus:
    """Call `step` now and then, in the process that ticks."""

    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller
        self._next_at = 0.0

    def step(self, now_s: float) -> None:
        """Warn of idle runs and end those that were warned of, once a minute by this time of a monotonic clock."""
        sharing = self._backend.quotas.sharing
        every = (sharing.default, *sharing.projects.values())
        if now_s < self._next_at or all(rules.idle is None for rules in every):
            return
        self._next_at = now_s + _EVERY_S
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            idle = [found for run in store.live(reader) if (found := self._idle(reader, run, now)) is not None]
        for run in idle:
            age = None if run.warned_at is None else now - run.warned_at
            if age is None or age > run.policy.over + _LATE:  # it was used again since
                self._warn(run, now)
            elif age >= run.policy.over:
                self._controller.cancel(run.key, f"The job was cancelled because of idle GPUs. {_sentence(run)}")

    def _idle(self, reader: Reader, live: UnrecordedRun, now: datetime) -> _IdleRun | None:
        run, job, replicas = live
        policy = self._backend.quotas.sharing.of(job.project).idle
        if policy is None or run.state is not RunState.RUNNING or job.state is not JobState.RUNNING:
            return None
        since = now - policy.over
        points: list[Sequence[tuple[float, Sequence[float | None]]]] = []
        for replica in replicas:
            if (share := share_of(replica)).gpus:
                stream = Stream(run.number, replica.task)
                measured = gpu_points(self._backend, job.project, job.job_id, stream, share)
                points.append([point for point in measured if point[0] >= since.timestamp()])
        use, measured_s = mean_use(points)
        if measured_s < _MEASURED * policy.over.total_seconds() or use * 100 >= policy.percent:
            return None
        warned = [event.time for event in reader.events(job.key) if event.kind == IDLE_GPUS and event.run == run.number]
        return _IdleRun(job.key, run.number, use, policy, max(warned, default=None))

    def _warn(self, idle: _IdleRun, now: datetime) -> None:
        message = f"{_sentence(idle)} Unless they are used, the job is cancelled in {_time(idle.policy.over)}."
        with self._backend.store.write() as writer:
            writer.add_event(idle.key, Event(IDLE_GPUS, message, idle.run), now)
        self._backend.notifier.publish(job_topic(idle.key))
        self._controller.write_log(idle.key)


def _sentence(idle: _IdleRun) -> str:
    over = _time(idle.policy.over)
    return f"Its GPUs were used {idle.use:.1%} of the last {over}; its project asks for {idle.policy.percent:g}%."


def _time(span: timedelta) -> str:
    return duration(span.total_seconds())
