"""Work that runs of a job have done again, by what their replicas report. Pure.

A program reports a step once it is completed. Evaluators report those of checkpoints, and count for nothing here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.answers.jobs import LostWork, ReplicaView, RunView
from trainyard_protocol.states import Reason
from trainyard_server.domain.lifecycle.evaluators import is_evaluator

_FAILURE = "failure"
_CAUSES = {
    Reason.PREEMPTED: "preemption",
    Reason.DRAINED: "drain",
    Reason.HOST_SHUTDOWN: "shutdown",
    Reason.HOST_LOST: "lost machine",
    Reason.RESTORED: "restore",
    Reason.TIME_LIMIT: "time limit",
}


def resumed_at(first: int, saved: Iterable[int]) -> int:
    """The step behind which a run has begun that reports `first` at first: the newest checkpoint of earlier runs that
    is not above it; where none was announced, the step before."""
    return max((step for step in saved if step <= first), default=max(0, first - 1))


def continuation(run: int, begin: int, reached: int) -> str:
    """The sentence about a run that goes on behind a step, where the last run that reported any had reached another."""
    again = max(0, reached - begin)
    verb = "continues" if begin else "begins anew"
    steps = "no step is" if not again else "1 step is" if again == 1 else f"{again:,} steps are"
    return f"Run {run} {verb} at step {begin:,}: {steps} done again."


@dataclass(slots=True)
class _Stretch:
    """Steps that a run has done: those above `begin`, up to `end`, in so many seconds. `saved` is its newest
    checkpoint, after which it went on for `unsaved_s`."""

    begin: int
    end: int
    seconds: float
    saved: int | None
    unsaved_s: float

    def cut(self, step: int) -> tuple[int, float]:
        """Drop what is above this step. Returns the dropped steps, and their seconds."""
        kept = max(step, self.begin)
        if kept >= self.end:
            return 0, 0.0
        steps, seconds = self.end - kept, self.seconds * (self.end - kept) / (self.end - self.begin)
        if kept == self.saved:
            seconds = self.unsaved_s
        self.end, self.seconds, self.saved = kept, self.seconds - seconds, None
        return steps, seconds


def lost_work(runs: Sequence[RunView]) -> tuple[LostWork, ...]:
    """The work that was lost, by cause, over all runs of a job, in order. Empty while none has begun again below a step
    that one before it had reported."""
    gangs = [[replica for replica in run.replicas if not is_evaluator(replica.task)] for run in runs]
    has_gpus = any(_gpus(replica) for gang in gangs for replica in gang)
    reports = any(replica.step is not None for gang in gangs for replica in gang)
    lost: dict[str, tuple[int, float]] = {}
    done, checkpoints, cause = list[_Stretch](), list[int](), _FAILURE

    def lose(cause: str, steps: int, seconds: float) -> None:
        before = lost.get(cause, (0, 0.0))
        lost[cause] = before[0] + steps, before[1] + seconds

    for run, gang in zip(runs, gangs, strict=True):
        firsts = [replica.first_step for replica in gang if replica.first_step is not None]
        begin = resumed_at(min(firsts), checkpoints) if firsts else 0
        for stretch in done if firsts else ():
            lose(cause, *stretch.cut(begin))
        if run is runs[-1]:
            break
        own = _CAUSES.get(run.verdict.reason, _FAILURE) if run.verdict is not None else _FAILURE
        saved = [replica.durable_step for replica in gang if replica.durable_step is not None]
        seconds = _seconds(gang, gpus=has_gpus)
        if firsts:
            cause = own
            end = max(replica.step for replica in gang if replica.step is not None)
            saved_at = max((replica.durable_at for replica in gang if replica.durable_at is not None), default=None)
            unsaved_s = _seconds(gang, saved_at, gpus=has_gpus)
            done.append(_Stretch(begin, end, seconds, max(saved, default=None), unsaved_s))
        elif reports:  # it came to no step
            lose(own, 0, seconds)
        checkpoints += saved
    unit = "GPU" if has_gpus else "CPU"
    return tuple(
        LostWork(cause=cause, steps=steps, seconds=round(seconds, 1), unit=unit)
        for cause, (steps, seconds) in lost.items()
        if steps or seconds
    )


def _gpus(replica: ReplicaView) -> int:
    return len(replica.gpus) or replica.accelerator_count


def _seconds(gang: Iterable[ReplicaView], since: datetime | None = None, *, gpus: bool) -> float:
    """The seconds for which ended replicas had their GPUs, or CPUs: each counts; from a time on, if one is given."""
    return sum(
        (_gpus(replica) if gpus else replica.cores)
        * max(0.0, (replica.finished_at - max(replica.started_at, since or replica.started_at)).total_seconds())
        for replica in gang
        if replica.started_at is not None and replica.finished_at is not None
    )
