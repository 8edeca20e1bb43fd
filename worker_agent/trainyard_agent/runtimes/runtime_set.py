"""Several runtimes of one machine as one: each run is in the runtime that was chosen for it.

`RuntimeSet` implements the contract of `base.Runtime`. It keeps no files: after a restart each runtime recovers its own
runs. Every CPU, byte and device is assigned by the server, from one capacity, so runtimes need not know of each other.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.base import GONE, STOPPED, Handle, Launch, LogSlice, Runtime, StartFailed, Traits
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.logs import LogPosition
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime of a run. `reason` completes a sentence; "" where there was no choice."""

    runtime: RuntimeName
    reason: str = ""


class Choices:
    """The runtime of each run, chosen once: what is prepared for one runtime cannot start in another."""

    def __init__(self, choose: Callable[[RunOrder], Choice]) -> None:
        self._choose = choose
        self._chosen: dict[str, Choice] = {}

    def of(self, order: RunOrder) -> Choice:
        if order.run_id not in self._chosen:
            self._chosen[order.run_id] = self._choose(order)
        return self._chosen[order.run_id]

    def made_for(self, run_id: str) -> Choice | None:
        return self._chosen.get(run_id)

    def forget(self, run_id: str) -> None:
        self._chosen.pop(run_id, None)


class RuntimeSet:
    """The runtimes by name. `choices` decides where a new run is placed; every other call goes to the runtime that
    holds the run."""

    def __init__(self, runtimes: Mapping[RuntimeName, Runtime], choices: Choices) -> None:
        self._runtimes = runtimes
        self._choices = choices
        self._holders: dict[str, RuntimeName] = {}

    @property
    def traits(self) -> Traits:
        """The weakest of each."""
        traits = [runtime.traits for runtime in self._runtimes.values()]
        return Traits(
            starts_whole=all(runtime_traits.starts_whole for runtime_traits in traits),
            coarse_clock=any(runtime_traits.coarse_clock for runtime_traits in traits),
            splits_streams=all(runtime_traits.splits_streams for runtime_traits in traits),
            keeps_logs=all(runtime_traits.keeps_logs for runtime_traits in traits),
            measures_usage=all(runtime_traits.measures_usage for runtime_traits in traits),
            reads_metrics=all(runtime_traits.reads_metrics for runtime_traits in traits),
            tells_changes=all(runtime_traits.tells_changes for runtime_traits in traits),
        )

    def recover(self) -> list[Handle]:
        recovered: list[Handle] = []
        for name, runtime in self._runtimes.items():
            handles = runtime.recover()
            self._holders |= {handle.run_id: name for handle in handles}
            recovered += handles
        return recovered

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        with ExitStack() as stack:
            for runtime in self._runtimes.values():
                stack.callback(runtime.subscribe(changed))
            return stack.pop_all().close

    def place(self, order: RunOrder) -> Handle:
        holder = self._holder(order.run_id)
        if holder is not None:
            return holder.place(order)
        name = self._choices.of(order).runtime
        if name not in self._runtimes:
            task = order.replicas[0].task
            raise StartFailed(task, f"This agent has no {name} runtime.", Reason.HOST_FAILED)
        handle = self._runtimes[name].place(order)
        self._holders[order.run_id] = name
        return handle

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        holder = self._holder(run_id)
        if holder is None:
            raise StartFailed(launches[0].task, "Its run was not placed.")
        try:
            return holder.start(run_id, launches)
        except StartFailed:
            self._holders.pop(run_id, None)
            raise

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        holder = self._holder(run_id)
        return () if holder is None else holder.observe(run_id)

    def has_ended(self, run_id: str) -> bool:
        holder = self._holder(run_id)
        return holder is None or holder.has_ended(run_id)

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        holder = self._holder(run_id)
        if holder is None:
            return GONE
        return holder.read_log(run_id, task, start, max_lines, max_bytes)

    def resume_log(self, run_id: str, task: str, position: LogPosition) -> None:
        holder = self._holder(run_id)
        if holder is not None:
            holder.resume_log(run_id, task, position)

    def read_metrics(self, run_id: str, task: str) -> bytes:
        holder = self._holder(run_id)
        return b"" if holder is None else holder.read_metrics(run_id, task)

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        holder = self._holder(run_id)
        return () if holder is None else holder.processes(run_id, task)

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        holder = self._holder(run_id)
        return None if holder is None else holder.usage(run_id, task)

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        return self._attachable(run_id, task).execute(run_id, task, command, terminal)

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        return self._attachable(run_id, task).connect(run_id, task, port)

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        holder = self._holder(run_id)
        if holder is not None:
            holder.stop(run_id, grace_s, reason)

    def remove(self, run_id: str) -> None:
        """The runtime that holds the run forgets it; on failure it stays known."""
        holder = self._holder(run_id)
        if holder is not None:
            holder.remove(run_id)
            self._holders.pop(run_id, None)

    def _attachable(self, run_id: str, task: str) -> Runtime:
        holder = self._holder(run_id)
        if holder is None:
            raise NotAttachable(f"{task} does not run.")
        return holder

    def _holder(self, run_id: str) -> Runtime | None:
        """The runtime that holds the run; None for an unknown run. A runtime may hold what it could not recover."""
        if run_id not in self._holders:
            holders = (name for name, runtime in self._runtimes.items() if runtime.observe(run_id))
            name = next(holders, None)
            if name is None:
                return None
            self._holders[run_id] = name
        return self._runtimes[self._holders[run_id]]
