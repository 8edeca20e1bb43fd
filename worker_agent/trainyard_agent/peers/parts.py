"""Parts of runs over several agents, which this agent has placed and not started.

A part is placed, then its addresses are reported. Once the server knows those of all parts, each connects to the
others; one that has, and to which all others have, listens no more and is ready. Once each is, all start. Whatever
fails before gives the whole run back.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trainyard_agent.peers import shared_dir
from trainyard_agent.peers.meeting import Meeting, Unreached
from trainyard_agent.runtimes.base import Handle, Runtime, StartFailed
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder, RunReport

_log = logging.getLogger(__name__)

ACTIVITY = "waiting for the parts on other agents"


@dataclass(frozen=True, slots=True)
class PartState:
    """A placed part: its addresses by task, whether it `reaches` the others and they reach it, and why it never will,
    or "". `is_asking`: it is finding out."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    reaches: bool = False
    is_asking: bool = False
    reason: Reason = Reason.HOST_FAILED
    problem: str = ""


@dataclass(slots=True)
class _Part:
    state: PartState
    meeting: Meeting
    mark: shared_dir.SharedMark | None = None
    asking: "asyncio.Task[None] | None" = None


class Parts:
    """Placed parts, by run."""

    def __init__(
        self,
        runtime: Runtime,
        meet: Callable[[str], Meeting] = Meeting,
        note_unreached: Callable[[Collection[str]], None] = lambda _: None,
    ) -> None:
        """`meet` makes the listeners of a part, from the id of its gang. `note_unreached` gets the ids of agents that a
        part does not reach."""
        self._runtime = runtime
        self._meet = meet
        self._note_unreached = note_unreached
        self._parts: dict[str, _Part] = {}

    def states(self) -> dict[str, PartState]:
        return {run_id: part.state for run_id, part in self._parts.items()}

    def report(self, order: RunOrder) -> RunReport | None:
        """The report of a part that is placed; None for another run."""
        part = self._parts.get(order.run_id)
        if part is None or part.state.problem:
            return None
        replicas = tuple(
            ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
            for task, address in part.state.addresses.items()
        )
        return RunReport(run_id=order.run_id, replicas=replicas, activity=ACTIVITY, ready=part.state.reaches)

    async def place(self, order: RunOrder, job_dir_source: str = "") -> None:
        """Reserve what the part needs, and listen at its addresses. What fails is the problem of the part.
        `job_dir_source` is what its containers have mounted of the job-dir."""
        assert order.spread is not None
        part = self._parts[order.run_id] = _Part(PartState(), self._meet(order.spread.gang))
        try:
            handle: Handle = await asyncio.to_thread(self._runtime.place, order)
            await part.meeting.open(handle.addresses.values())
            if PRIMARY.name in handle.addresses:
                where = (order.directory, order.spread.gang, job_dir_source, handle.user)
                part.mark = await asyncio.to_thread(shared_dir.leave_mark, *where)
            part.state = PartState(handle.addresses)
        except StartFailed as failure:
            part.state = PartState(reason=failure.reason, problem=failure.message)
        except OSError as error:
            part.state = PartState(problem=f"It cannot listen at its address: {error.strerror or error}.")
        except shared_dir.NotShared as failure:
            part.state = PartState(reason=Reason.START_FAILED, problem=str(failure))

    def ask(self, order: RunOrder) -> None:
        """Begin to connect to the other parts."""
        part = self._parts[order.run_id]
        part.state = PartState(part.state.addresses, is_asking=True)
        part.asking = asyncio.create_task(self._ask(part, order))

    async def _ask(self, part: _Part, order: RunOrder) -> None:
        assert order.spread is not None
        addresses = part.state.addresses
        others = {task: there for task, there in order.spread.addresses.items() if task not in addresses}
        try:
            await part.meeting.reach(addresses, others)
            if PRIMARY.name not in addresses:
                await asyncio.to_thread(shared_dir.find_mark, order.directory, order.spread.gang)
            await part.meeting.was_reached(len(others))
            part.state = PartState(addresses, reaches=True)
        except Unreached as failure:
            agents = order.spread.agents
            self._note_unreached({agents[task] for task in failure.tasks if task in agents})
            mine = ", ".join(sorted(addresses))
            part.state = PartState(
                reason=Reason.UNREACHED,
                problem=f"The machine of {mine} does not reach {failure}. Let the machines of the group reach each "
                "other's --ports, give an agent its --address, or one that cannot be reached a --group of its own.",
            )
        except shared_dir.NotShared as failure:
            part.state = PartState(reason=Reason.START_FAILED, problem=str(failure))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the other parts waiting
            _log.exception("the parts of run %s on other agents cannot be asked", order.run_id)
            part.state = PartState(problem=f"The agent failed with {type(error).__name__}: {error}.")

    async def close(self, run_id: str) -> None:
        """Free the addresses of a part, which starts now or never. Unknown run: nothing."""
        part = self._parts.pop(run_id, None)
        if part is None:
            return
        if part.asking is not None:
            part.asking.cancel()
            await asyncio.gather(part.asking, return_exceptions=True)
        await part.meeting.close()
        if part.mark is not None:
            await asyncio.to_thread(part.mark.remove)

    async def drop(self, run_id: str) -> None:
        """Close a part that never starts, and free what it has reserved. Unknown run: nothing."""
        if run_id in self._parts:
            await self.close(run_id)
            await asyncio.to_thread(self._runtime.remove, run_id)
